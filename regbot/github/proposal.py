"""What a refresh proposal may add to the store. The node that measured wrote it and is not trusted.

A proposal contains records and cannot name files: the path of each record in the store is computed from the record. The
numbers in its report are the node's word, and a person reviews them. A *night* is the report on one workload.
"""

from collections.abc import Callable, Iterator

from regbot.baselines import Store
from regbot.baselines.names import class_folder
from regbot.baselines.store import record_digest
from regbot.check.refresh.night import describe_absorbed_slowdown
from regbot.check.refresh.storing import remove_withheld_copies, timed_sessions
from regbot.errors import UserError
from regbot.github.artifact import read_single_file
from regbot.judge.interim import thresholds_from
from regbot.records.baseline import Anchor, Baseline
from regbot.records.config import Config
from regbot.records.files import MAX_RECORD_BYTES, parse_record
from regbot.records.proposal import Proposal
from regbot.records.refresh import WorkloadRefresh
from regbot.records.text.clip import short_commit
from regbot.stats.paired import LOOKS

ARTIFACT = "regbot-proposal"
"""Name of the uploaded artifact, or its beginning if several nodes upload artifacts."""
MEMBER = "proposal.json"
"""Name of the only file in the artifact."""
MAX_FAULTS = 5

TreeOf = Callable[[str], str | None]
"""A function that returns the tree of a commit; None if the commit is not in the history of main."""
Key = tuple[str, str]


def read_proposal(archive: bytes, origin: str) -> Proposal:
    """Return the proposal in the zip ``archive`` of an artifact. Error messages call it ``origin``. Raises
    RecordError."""
    return parse_record(read_single_file(archive, MEMBER, MAX_RECORD_BYTES, origin), Proposal, origin)


def check_proposal(proposal: Proposal, store: Store, tree_of: TreeOf, config: Config) -> None:
    """Check that a proposal does only what a refresh may do. Raises UserError.

    ``store`` and ``config`` are those of the measured commit.
    """
    nights = {(night.name, night.variant): night for night in proposal.refreshed.workloads}
    faults: list[str] = []
    for session in proposal.sessions:
        found = _find_session_faults(session, nights.get(_get_key(session)), proposal, store, tree_of, config)
        faults += [f"{session.tier} session {short_commit(session.session)} {fault}" for fault in found]
    for anchor in proposal.anchors:
        found = _find_anchor_faults(anchor, nights.get(_get_key(anchor)), proposal, store, tree_of)
        faults += [f"the anchor of {anchor.workload} {fault}" for fault in found]
    attached = {record_digest(ledger) for ledger in proposal.ledgers}
    needed = {session.ledger for session in proposal.sessions}
    faults += [f"the ledger {short_commit(digest)} belongs to no session" for digest in sorted(attached - needed)]
    if len(nights) < len(proposal.refreshed.workloads):
        faults.append("a workload is listed twice")
    if faults:
        more = f" (and {len(faults) - MAX_FAULTS} more)" if len(faults) > MAX_FAULTS else ""
        raise UserError(f"the proposal does more than a refresh may do: {'; '.join(faults[:MAX_FAULTS])}{more}")


def _find_session_faults(
    session: Baseline,
    night: WorkloadRefresh | None,
    proposal: Proposal,
    store: Store,
    tree_of: TreeOf,
    config: Config,
) -> Iterator[str]:
    """Yield what a session may not be: it must be of main or of the stored anchor, and of the series that its night
    decided. The rolling reference takes no proven slowdown that nobody has accepted."""
    if tree_of(session.commit) != session.tree:
        yield f"is of {short_commit(session.commit)}, which is not in this repository's history with this tree"
    main = proposal.commit
    if session.tier == "static":  # traces are stored with a timed session that joins the rolling reference
        joined = [other for other in proposal.refreshed.workloads if other.series == "rolling"]
        allowed: dict[str, list[str | None]] = {
            "rolling": [main] if joined else [],
            "anchor": [other.anchor for other in joined],
        }
        is_timed = any(other.tier == "timed" for other in proposal.sessions)
        if not is_timed or session.commit not in allowed.get(session.series, []):
            yield f"is stored as {session.series}, but no stored night is of {short_commit(session.commit)}"
        return
    if night is None or night.series is None:  # without a valid measurement, the night has no series
        yield "is of a workload for which the night stores nothing"
        return
    anchor = store.anchor(session.workload, session.variant, session.node_class)
    if night.anchor != (anchor.commit if anchor is not None else None):
        yield f"names the anchor {short_commit(night.anchor or 'none')}, which is not that of the store"
    if session.series == "anchor":
        if session.commit != night.anchor or session.against is not None:
            yield f"is stored as a session of the anchor, but is of {short_commit(session.commit)}"
        return
    is_decided = session.series == night.series and (night.series == "rolling") == (night.status == "PASS")
    if session.commit != main or not is_decided:
        yield f"of {short_commit(session.commit)} is stored as {session.series}, but the night is {night.status}"
    against = session.against
    if against is None or against.commit != (night.anchor or main):
        yield "was not run beside the commit that the night names"
    elif session.series == "rolling" and night.accepted is None:
        thresholds, budget_pct = thresholds_from(config.throughput), config.baselines.creep_budget_pct
        if len(against.log_ratios.get("median", ())) < LOOKS[0]:
            yield "would join the reference with too few pairs for an estimate"
        folder = class_folder(session.workload, session.variant, session.node_class)
        earlier = [
            stored.against
            for stored in timed_sessions(store, folder)
            if stored.environment == session.environment and stored.session != session.session
        ]
        nights = [comparison for comparison in earlier if comparison and comparison.commit == against.commit]
        if reason := describe_absorbed_slowdown([*nights, against], thresholds, budget_pct):
            yield f"would join the reference, and {reason}"


def _find_anchor_faults(
    anchor: Anchor, night: WorkloadRefresh | None, proposal: Proposal, store: Store, tree_of: TreeOf
) -> Iterator[str]:
    has_session = any(
        _get_key(session) == _get_key(anchor) and session.node_class == anchor.node_class
        for session in _select_main_sessions(proposal)
    )
    if anchor.commit != proposal.commit or tree_of(anchor.commit) != anchor.tree or not has_session:
        yield f"is moved to {short_commit(anchor.commit)}, of which there is no session of its class"
    stored = store.anchor(anchor.workload, anchor.variant, anchor.node_class)
    if anchor.previous != (stored.commit if stored is not None else None):
        yield "is not moved from its present commit"
    if stored is None:
        return
    if anchor.accepted is None or anchor.evidence is None or night is None or night.accepted != anchor.accepted:
        yield "is moved, but no named person accepted a slowdown"
    elif anchor.accepted.slowdown_pct < anchor.evidence.estimate_pct:
        yield f"is moved, but the slowdown is larger than the accepted {anchor.accepted.slowdown_pct:g}%"


def store_proposal(proposal: Proposal, store: Store) -> None:
    """Write the records of a proposal to ``store``, which may contain earlier nights. A first anchor does not replace
    a stored one. Raises BaselineError if the store already has the same session with different content."""
    accepted_keys = {
        (night.name, night.variant) for night in proposal.refreshed.workloads if night.accepted is not None
    }
    main_sessions = _select_main_sessions(proposal)
    accepted_sessions = [session for session in main_sessions if _get_key(session) in accepted_keys]
    remove_withheld_copies(store, accepted_sessions)
    store.add(proposal.sessions, {record_digest(ledger): ledger for ledger in proposal.ledgers})
    for anchor in proposal.anchors:
        stored_anchor = store.anchor(anchor.workload, anchor.variant, anchor.node_class)
        is_moved = anchor.previous is not None  # otherwise the proposal has a first anchor
        if stored_anchor is None or (is_moved and stored_anchor.commit != anchor.commit):
            store.move_anchor(anchor)


def _select_main_sessions(proposal: Proposal) -> list[Baseline]:
    return [session for session in proposal.sessions if session.tier == "timed" and session.series != "anchor"]


def _get_key(record: Baseline | Anchor) -> Key:
    return record.workload, record.variant
