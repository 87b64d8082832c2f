"""A stored ledger beside what is traced now: counts do not age, so what differs is the code or the software around it.

Of base's own tree a difference can only come of the software (another torch, another XLA), and it is no doing of the
pull request: a person has to look. Of an earlier commit it may as well be a change that was merged since, and is told.
"""

from collections.abc import Sequence

from regbot.config import Config
from regbot.judge.sharding import judge_sharding
from regbot.judge.validity import not_comparable
from regbot.records.run import Run
from regbot.records.session import StoredTrace
from regbot.records.verdict import Sharding


def against_stored(
    sharding: Sharding, base: Run, stored: Sequence[StoredTrace], config: Config
) -> tuple[Sharding, list[str]]:
    """``sharding``, REVIEW at least where base is not what was stored of its tree; and what is told beside it."""
    found = next((each for each in stored if each.entry == base.workload), None)
    if found is None or base.ledger is None:
        return sharding, []
    of = f"the ledger stored of {found.commit[:12]} ({_framework(found)})"
    if why := not_comparable(found.ledger, base.ledger):
        fix = "; replace it with 'regbot baseline refresh'" if found.ledger.source != base.ledger.source else ""
        return sharding, [f"{of} and base's cannot be compared: they {why}{fix}"]
    changed = judge_sharding(found.ledger, base.ledger, config, workload=base.workload)
    if not changed.findings:
        return sharding, []
    names = ", ".join(dict.fromkeys(finding.pattern for finding in changed.findings))
    if found.tree != base.arm.tree:
        return sharding, [f"{of} is not what base does now: {names}; refresh the stored ledgers if that was merged"]
    said = (
        f"base itself is not what was stored of the same tree: {names}; the software around it has changed, not this "
        f"pull request ({of}; {_now(base)} here)"
    )
    status = "REVIEW" if sharding.status == "PASS" else sharding.status
    return sharding.model_copy(update={"status": status, "reasons": [*sharding.reasons, said[:4000]]}), []


def _framework(stored: StoredTrace) -> str:
    return stored.environment.framework or "unknown software"


def _now(base: Run) -> str:
    return f"torch {base.environment.torch}" if base.environment and base.environment.torch else "other software"
