"""The stored references that a check reads: those of the base commit, so that none that a change brings judges it."""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from regbot.baselines import Store
from regbot.baselines.names import LEDGERS, workload_folder
from regbot.baselines.query import stored_ledger
from regbot.baselines.reference import references
from regbot.checkout import export
from regbot.judge.standing import thresholds_of
from regbot.records.baseline import ENTRY
from regbot.records.files import RecordError
from regbot.records.run import Arm
from regbot.records.session import StoredTrace, TimedPlan
from regbot.records.settings import Throughput


@contextmanager
def store_at(
    repo: Path, commit: str, folder: str, given: Path | None, workloads: Iterable[tuple[str, str]]
) -> Iterator[Store]:
    """The store as ``commit`` has it, as far as it is about ``workloads`` (entries and variants), for as long as the
    context lasts; or the folder ``given`` as it stands. Raises CheckoutError."""
    if given is not None:
        yield Store(given)
        return
    with tempfile.TemporaryDirectory(prefix="regbot-") as scratch:
        names = {workload_folder(entry, variant) for entry, variant in workloads if ENTRY.fullmatch(entry)}
        export(repo, commit, [f"{folder}/{name}" for name in sorted({*names, LEDGERS})], Path(scratch))
        yield Store(Path(scratch) / folder)


def with_references(
    plan: TimedPlan, store: Store, settings: Throughput, node_class: str
) -> tuple[TimedPlan, list[str]]:
    """``plan`` with what is stored of it, and what is to be known of that."""
    found = references(store, plan, node_class, thresholds_of(settings), datetime.now(UTC))
    notes = [f"{plan.entry}: what is stored cannot all be used: {fault}"[:4000] for fault in found.faults]
    return plan.model_copy(update={"references": found.references, "no_reference": found.why[:4000]}), notes


def stored_traces(store: Store, entries: Iterable[tuple[str, str]], base: Arm) -> tuple[list[StoredTrace], list[str]]:
    """The stored ledger of each entry and variant, of base's commit where there is one; and what is wrong with any."""
    found, warnings = [], []
    for entry, variant in entries:
        if not ENTRY.fullmatch(entry):
            continue
        try:
            stored = stored_ledger(store, entry, variant, "static", base.commit)
        except RecordError as error:
            warnings.append(f"{entry}: its stored ledger cannot be used: {error}")
            continue
        if stored is not None:
            of = stored.baseline
            trace = StoredTrace(
                entry=entry,
                commit=of.commit,
                tree=of.tree,
                measured=of.measured,
                environment=of.environment,
                ledger=stored.ledger,
            )
            found.append(trace)
    return found, warnings
