"""Check a refresh proposal, and store its records. The node that measured wrote the proposal and is not trusted. This
module runs in a job that has a token.

A *night* is the report on one workload (``WorkloadRefresh``). A *fault* is a text about something that a refresh may
not do.

A proposal contains records and cannot name files: the path of each record in the store is computed from the record.
This module checks that a proposal does only what a refresh may do:

- A refresh may add tonight's sessions of main and of the anchor's commit. The log-ratios decide whether a session of
  main joins the rolling reference (series ``rolling``) or is held back (series ``held``).
- A refresh may move an anchor only if a named person accepted the slowdown.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from regbot.baselines import BaselineError, Store
from regbot.baselines.names import class_folder, ledger_path
from regbot.baselines.store import record_digest
from regbot.check.refresh.night import describe_absorbed_slowdown, night_slowdown_pct
from regbot.check.refresh.store_changes import remove_withheld_copies, timed_sessions
from regbot.errors import UserError
from regbot.github.archive import read_single_file
from regbot.judge.interim import thresholds_from
from regbot.records.baseline import Anchor, AnchorComparison, Baseline
from regbot.records.config import Config
from regbot.records.files import MAX_RECORD_BYTES, RecordError, parse_record
from regbot.records.proposal import Proposal
from regbot.records.refresh import WorkloadRefresh
from regbot.records.text.clip import clip, short_commit
from regbot.stats.launch import SUMMARIES

ARTIFACT = "regbot-proposal"
"""Name of the uploaded artifact, or its beginning if several nodes upload artifacts."""
MEMBER = "proposal.json"
"""Name of the only file in the artifact."""
MAX_FAULTS = 5
"""Largest number of faults that an error message names."""
PCT_TOLERANCE = 0.005
"""Percentages that differ by at most this value count as equal. Reports print percentages with two decimals."""

TreeOf = Callable[[str], str | None]
"""A function that returns the tree of a commit; None if the commit is not in the history of main."""
Key = tuple[str, str]
"""Workload and variant."""


def unpack_proposal(archive: bytes, origin: str) -> bytes:
    """Return the bytes of the proposal in the zip ``archive`` of an artifact. Raises UserError."""
    try:
        return read_single_file(archive, MEMBER, MAX_RECORD_BYTES, origin)
    except RecordError as error:
        raise UserError(str(error)) from error


def read_proposal(data: bytes, origin: str) -> Proposal:
    """Parse the JSON text of a proposal. Error messages call the text ``origin``. Raises UserError."""
    if len(data) > MAX_RECORD_BYTES:
        raise UserError(f"{origin}: {len(data):,} bytes, more than the {MAX_RECORD_BYTES:,} of any proposal")
    try:
        return parse_record(data, Proposal, origin)
    except RecordError as error:
        raise UserError(str(error)) from error


def check_proposal(proposal: Proposal, store: Store, tree_of: TreeOf, config: Config) -> None:
    """Check that a proposal does only what a refresh may do. Raises UserError.

    ``store`` and ``config`` are those of the measured commit.
    """
    try:
        faults = list(_NightCheck(proposal, store, tree_of, config).faults())
    except BaselineError as error:
        raise UserError(f"the store of {short_commit(proposal.commit)} cannot be used: {error}") from error
    if faults:
        more = f" (and {len(faults) - MAX_FAULTS} more)" if len(faults) > MAX_FAULTS else ""
        raise UserError(f"the proposal does more than a refresh may do: {'; '.join(faults[:MAX_FAULTS])}{more}")


def store_proposal(proposal: Proposal, store: Store) -> None:
    """Write the records of a proposal to ``store``, which may contain earlier nights. If the store has an anchor for a
    workload, a proposed first anchor is not written. If a person accepted the slowdown of a night, copies of its
    sessions that the store holds back (series ``held``) are removed.

    Raises UserError if the store already has the same session with different content.
    """
    try:
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
    except BaselineError as error:
        raise UserError(f"the proposal cannot be stored: {error}") from error


def _select_main_sessions(proposal: Proposal) -> list[Baseline]:
    """Return the timed sessions of main, without those of the anchor's commit."""
    return [session for session in proposal.sessions if session.tier == "timed" and session.series != "anchor"]


def _get_key(record: Baseline | Anchor) -> Key:
    """Return workload and variant, by which a session or anchor belongs to a night."""
    return record.workload, record.variant


class _NightCheck:
    """Checks of one proposal against the store, the configuration and the commits of the repository.

    The field ``accepted`` of a night or anchor names a person who accepted a slowdown; None if nobody did. The field
    ``anchor`` of a night is the anchor's commit.

    Each ``*_faults`` method yields one sentence without its subject for each fault, such as "is moved to a
    commit without a session of its class". The caller adds the subject, such as "the anchor of ...".
    """

    def __init__(self, proposal: Proposal, store: Store, tree_of: TreeOf, config: Config) -> None:
        self.proposal = proposal
        self.main = proposal.commit
        """The measured commit of main."""
        self.store = store
        self.tree_of = tree_of
        self.config = config
        self.nights = {(night.name, night.variant): night for night in proposal.refreshed.workloads}
        """The reported decisions, by workload and variant."""

    def faults(self) -> Iterator[str]:
        """Yield everything that a refresh may not do, as complete sentences."""
        proposal = self.proposal
        if len(self.nights) < len(proposal.refreshed.workloads):
            yield "a workload is listed twice"
        session_ids = [session.session for session in proposal.sessions]
        night_names = [f"{session.workload} {session.variant}" for session in _select_main_sessions(proposal)]
        anchor_names = [f"{anchor.workload} {anchor.variant} {anchor.node_class}" for anchor in proposal.anchors]
        yield from _find_duplicates("the session", session_ids)
        yield from _find_duplicates("the night of", night_names)
        yield from _find_duplicates("the anchor of", anchor_names)
        for session in proposal.sessions:
            name = f"{session.tier} session {short_commit(session.session)} of {session.workload}"
            yield from (f"{name} {fault}" for fault in self._session_faults(session))
        for anchor in proposal.anchors:
            yield from (f"the anchor of {anchor.workload} {fault}" for fault in self._anchor_faults(anchor))
        yield from self._ledger_faults()

    def _session_faults(self, session: Baseline) -> Iterator[str]:
        """Yield the faults of any session, static or timed, of main or of the anchor's commit.

        ``against``, the comparison with the anchor, belongs to sessions of main only.
        """
        yield from self._commit_faults(session.commit, session.tree)
        if session.tier == "static":
            yield from self._static_faults(session)
            return
        night = self.nights.get(_get_key(session))
        if night is None or night.series is None:  # without a valid measurement, the night has no series
            yield "is of a workload for which the night stores nothing"
            return
        anchor = self.store.anchor(session.workload, session.variant, session.node_class)
        stored_commit = anchor.commit if anchor is not None else None
        if night.anchor != stored_commit:
            named_text, stored_text = short_commit(night.anchor or "none"), short_commit(stored_commit or "none")
            yield f"names the anchor {named_text}, but the store has {stored_text}"
        if session.series == "anchor":
            if session.commit != night.anchor or session.against is not None:
                yield f"is stored as a session of the anchor, but is of {short_commit(session.commit)}"
        else:
            yield from self._timed_faults(session, night)

    def _timed_faults(self, session: Baseline, night: WorkloadRefresh) -> Iterator[str]:
        """Yield the faults of a timed session of main. ``night`` is the reported decision on the session's workload.

        A session joins the rolling reference if and only if its night is PASS. An accepted slowdown is PASS, too.
        ``session.against`` is the comparison with the anchor. If the workload has no anchor yet, the session was run
        beside the measured commit itself.
        """
        if session.commit != self.main:
            yield f"is of {short_commit(session.commit)}, but {short_commit(self.main)} was measured"
        is_consistent = (night.series == "rolling") == (night.status == "PASS")
        if session.series != night.series or not is_consistent:
            yield f"is stored as {session.series}, but the night is {night.status}, {night.series}"
        against = session.against
        if against is None or against.commit != (night.anchor or self.main):
            yield "was not run beside the commit that the night names"
            return
        # ``log_ratios`` must have a list for the median and one for the mean (SUMMARIES), with a value for every pair.
        pair_counts = {len(against.log_ratios.get(name, [])) for name in SUMMARIES}  # one element if the counts agree
        if pair_counts != {night.pairs} or against.log_ratios.keys() != {*SUMMARIES}:
            yield f"has {' and '.join(map(str, sorted(pair_counts)))} pairs, but the night names {night.pairs}"
            return
        estimate_pct = night_slowdown_pct(against, thresholds_from(self.config.throughput))
        # ``night.tonight`` compares main with the anchor over tonight's pairs; None without an estimate.
        reported_pct = night.tonight.estimate_pct if night.tonight is not None else None
        if reported_pct is None and estimate_pct is not None:
            yield "comes without an estimate, but its pairs give an estimate"
        if reported_pct is not None and estimate_pct is None:
            yield "comes with an estimate, but its pairs give no estimate"
        if reported_pct is not None and estimate_pct is not None and abs(reported_pct - estimate_pct) > PCT_TOLERANCE:
            yield f"is reported as {reported_pct:+.2f}% slower, but its pairs show {estimate_pct:+.2f}%"
        if estimate_pct is None and session.series == "rolling":
            yield f"would join the reference with {night.pairs} pairs, which give no estimate"
        if session.series == "rolling" and night.accepted is None:
            yield from self._absorbed_faults(session, against)
        has_new_anchor = any(_get_key(anchor) == _get_key(session) for anchor in self.proposal.anchors)
        if night.accepted is not None and not has_new_anchor:
            yield "has an accepted slowdown, but the proposal has no new anchor for its workload"

    def _absorbed_faults(self, session: Baseline, against: AnchorComparison) -> Iterator[str]:
        """Yield a fault if the rolling reference would absorb a slowdown with this session: main is then proven to be
        slower than the anchor, and later nights would be compared with the slower times.

        The slowdown is computed from the log-ratios of this session and of stored earlier nights against the same
        anchor.
        """
        folder = class_folder(session.workload, session.variant, session.node_class)
        earlier_sessions = [
            stored
            for stored in timed_sessions(self.store, folder)
            if stored.environment == session.environment and stored.session != session.session
        ]
        comparisons = [earlier.against for earlier in earlier_sessions if earlier.against is not None]
        earlier_nights = [comparison for comparison in comparisons if comparison.commit == against.commit]
        thresholds, budget_pct = thresholds_from(self.config.throughput), self.config.baselines.creep_budget_pct
        reason = describe_absorbed_slowdown([*earlier_nights, against], thresholds, budget_pct)
        if reason:
            yield f"would join the reference, and {reason}"

    def _static_faults(self, session: Baseline) -> Iterator[str]:
        """Yield the faults of a traced session.

        Traces are stored only if a timed session of at least one night joins the rolling reference. The trace must be
        of the measured commit or of the anchor of such a night.
        """
        main_keys = {_get_key(main_session) for main_session in _select_main_sessions(self.proposal)}
        joined_nights = [night for key, night in self.nights.items() if night.series == "rolling" and key in main_keys]
        allowed_commits_by_series: dict[str, set[str | None]] = {
            "rolling": {self.main},
            "anchor": {night.anchor for night in joined_nights},
        }
        if not joined_nights or session.commit not in allowed_commits_by_series.get(session.series, set()):
            yield f"is stored as {session.series}, but no stored night is of {short_commit(session.commit)}"

    def _anchor_faults(self, anchor: Anchor) -> Iterator[str]:
        """Yield the faults of a first or moved anchor. A moved anchor needs an accepted slowdown.

        A moved anchor names the commit of the old anchor (``previous``), the acceptance of a person (``accepted``) and
        the measured slowdown (``evidence``). A first anchor has none of these.
        """
        yield from self._commit_faults(anchor.commit, anchor.tree)
        if anchor.commit != self.main:
            yield f"is moved to {short_commit(anchor.commit)}, but {short_commit(self.main)} was measured"
        main_sessions = _select_main_sessions(self.proposal)
        proposed_classes = {session.node_class for session in main_sessions if _get_key(session) == _get_key(anchor)}
        if anchor.node_class not in proposed_classes:
            yield "is moved to a commit without a session of its class"
        stored_anchor = self.store.anchor(anchor.workload, anchor.variant, anchor.node_class)
        night = self.nights.get(_get_key(anchor))
        if stored_anchor is None:
            is_first = anchor.previous is None and anchor.accepted is None and anchor.evidence is None
            if not is_first:
                yield "is moved, but the store has no anchor to move"
            return
        if anchor.previous != stored_anchor.commit:
            yield f"is not moved from its present commit {short_commit(stored_anchor.commit)}"
        has_same_acceptance = night is not None and night.accepted == anchor.accepted
        if anchor.accepted is None or anchor.evidence is None or not has_same_acceptance:
            yield "is moved, but no named person accepted a slowdown"
        elif anchor.accepted.slowdown_pct < anchor.evidence.estimate_pct:
            yield f"is moved, but the slowdown is larger than the accepted {anchor.accepted.slowdown_pct:g}%"

    def _ledger_faults(self) -> Iterator[str]:
        """Yield, as complete sentences, the ledgers without a session and the sessions without their ledger."""
        attached_digests = {record_digest(ledger) for ledger in self.proposal.ledgers}
        needed_digests = {session.ledger for session in self.proposal.sessions if session.ledger is not None}
        for digest in sorted(attached_digests - needed_digests):
            yield f"the ledger {short_commit(digest)} belongs to no session"
        for digest in sorted(needed_digests - attached_digests):
            if not (self.store.root / ledger_path(digest)).is_file():
                yield f"the ledger {short_commit(digest)} of a session is missing"

    def _commit_faults(self, commit: str, tree: str) -> Iterator[str]:
        """Yield a fault if a commit is not in the history of main, or has another tree."""
        known_tree = self.tree_of(commit)
        if known_tree is None:
            yield f"is of {short_commit(commit)}, which is not in this repository's history"
        elif known_tree != tree:
            yield f"is of {short_commit(commit)}, but has the tree of another commit"


def _find_duplicates(kind: str, names: Iterable[str]) -> Iterator[str]:
    """Yield a fault for each name that occurs more than once. ``kind`` is the words before the name."""
    for name, occurrences in Counter(names).items():
        if occurrences > 1:
            yield f"{kind} {clip(name, 80)} appears twice"
