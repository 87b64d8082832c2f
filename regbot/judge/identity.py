"""Prove without a measurement that throughput is unchanged: nothing that can affect speed differs between the arms.

The trusted side reads changed files from git, while each arm itself reports the code that it ran. A changed file counts
even if it was not loaded, because another device may load it. Inert files, such as documentation, count only if an arm
reports that it loaded them.
"""

from regbot.records.run import Run
from regbot.records.session import SessionHeader


def first_difference(header: SessionHeader, base: Run, head: Run) -> str:
    """Return a phrase for the first difference that can change a step time, '' if there is none."""
    if header.base.overrides != header.head.overrides:
        return "the configuration overrides differ"
    if base.ledger is None or head.ledger is None or base.code is None or head.code is None:
        return "one arm has no ledger or does not prove its code"
    # ``fingerprint`` is the fingerprint of all operators; None if it is unknown.
    if base.ledger.fingerprint is None or base.ledger.fingerprint != head.ledger.fingerprint:
        return "head runs other operators than base"
    if base.ledger.config != head.ledger.config:
        return "the resolved configuration differs"
    if base.environment is None or base.environment != head.environment:
        return "the software environment differs"
    loaded_paths = base.code.files.keys() | head.code.files.keys()
    for path in sorted(loaded_paths):
        if base.code.files.get(path) != head.code.files.get(path):
            return f"the code of {path} differs"
    if header.changed_files is None:
        return "the list of files that differ between the commits is not known"
    for path in header.changed_files:
        if path not in header.inert_files or path in loaded_paths:
            return f"{path} differs"
    return ""
