"""Load stored references from the base commit, so that a pull request cannot supply its own."""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from regbot.baselines import Store
from regbot.baselines.names import LEDGERS, workload_folder
from regbot.baselines.query import newest_session
from regbot.baselines.reference import load_references
from regbot.records.baseline import ENTRY_PATTERN
from regbot.records.files import RecordError
from regbot.records.run import Arm
from regbot.records.session import StoredTrace, TimedPlan
from regbot.records.text.clip import clip_message
from regbot.workloads.checkout.export import export


@contextmanager
def store_at(
    repo: Path, commit: str, folder: str, override: Path | None, workloads: Iterable[tuple[str, str]]
) -> Iterator[Store]:
    """Yield the store ``override``, or that of ``commit``, exported from its ``folder`` to a temporary folder.

    Only the files of ``workloads`` (entry and variant) and the stored ledgers are exported. Raises CheckoutError.
    """
    if override is not None:
        yield Store(override)
        return
    with tempfile.TemporaryDirectory(prefix="regbot-") as scratch:
        # An entry whose name does not match the pattern has no folder in a store.
        names = {workload_folder(entry, variant) for entry, variant in workloads if ENTRY_PATTERN.fullmatch(entry)}
        paths = [f"{folder}/{name}" for name in sorted({*names, LEDGERS})]
        export(repo, commit, paths, Path(scratch))
        yield Store(Path(scratch) / folder)


def with_references(plan: TimedPlan, store: Store, node_class: str) -> tuple[TimedPlan, list[str]]:
    """Return ``plan`` with its stored sessions and calibrations on ``node_class``, and warnings about unusable ones."""
    lookup = load_references(store, plan, node_class, datetime.now(UTC))
    warnings = [
        clip_message(f"{plan.entry}: not all stored references can be used: {fault}") for fault in lookup.faults
    ]
    update = {"references": lookup.references, "no_reference": clip_message(lookup.reason)}
    return plan.model_copy(update=update), warnings


def stored_traces(store: Store, entries: Iterable[tuple[str, str]], base: Arm) -> tuple[list[StoredTrace], list[str]]:
    """Return the newest stored ledger of each pair of entry and variant, if possible of ``base``, and warnings."""
    traces, warnings = [], []
    for entry, variant in entries:
        if not ENTRY_PATTERN.fullmatch(entry):  # such an entry has no folder in a store
            continue
        try:
            stored = newest_session(store, entry, variant, "static", base.commit)
            ledger = store.ledger(stored.ledger) if stored is not None and stored.ledger is not None else None
        except RecordError as error:
            warnings.append(f"{entry}: its stored ledger cannot be used: {error}")
            continue
        if stored is not None and ledger is not None:
            fields = {name: getattr(stored, name) for name in ("commit", "tree", "measured", "environment")}
            traces.append(StoredTrace(entry=entry, ledger=ledger, **fields))
    return traces, warnings
