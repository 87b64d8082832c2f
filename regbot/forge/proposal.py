"""What a node proposes to store, judged where the token is: strictly read, checked against the store, taken in.

A proposal is records. Their places in the store, and so the paths that are committed, are worked out here; it cannot
name a file. What is checked besides its form is what a refresh may do: add what was measured tonight of main and of the
anchor's commit, as what the night's own numbers allow, and move an anchor where somebody accepted a slowdown by name.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from regbot.baselines import BaselineError, Store
from regbot.baselines.names import class_folder, ledger_path
from regbot.baselines.store import digest_of
from regbot.config import Config
from regbot.forge.archive import only_member
from regbot.judge.standing import thresholds_of
from regbot.records.baseline import AgainstAnchor, Anchor, Baseline
from regbot.records.files import MAX_RECORD_BYTES, RecordError, parse_record
from regbot.records.proposal import Proposal
from regbot.records.refresh import RefreshedWorkload
from regbot.refresh.night import absorbed, tonight_pct
from regbot.refresh.stored import release, timed_sessions
from regbot.stats.launch import SUMMARIES

ARTIFACT = "regbot-proposal"
MEMBER = "proposal.json"
SHOWN = 5
"""Faults that a message names."""
SAME_PCT = 0.005
"""Two percentages that are printed alike."""

TreeOf = Callable[[str], str | None]
"""The tree of a commit, None where the repository does not have it."""
Key = tuple[str, str]


class ProposalError(Exception):
    """A proposal is not taken, and nothing was changed. The message says why."""


def unpack(archive: bytes, origin: str) -> bytes:
    """The proposal in the zip ``archive`` of an artifact. Raises ProposalError."""
    try:
        return only_member(archive, MEMBER, MAX_RECORD_BYTES, origin)
    except RecordError as error:
        raise ProposalError(str(error)) from error


def read_proposal(data: bytes, origin: str) -> Proposal:
    """``data`` as a proposal; ``origin`` names it in errors. Raises ProposalError."""
    if len(data) > MAX_RECORD_BYTES:
        raise ProposalError(f"{origin}: {len(data):,} bytes, more than the {MAX_RECORD_BYTES:,} of any proposal")
    try:
        return parse_record(data, Proposal, origin)
    except RecordError as error:
        raise ProposalError(str(error)) from error


def check(proposal: Proposal, store: Store, tree_of: TreeOf, config: Config) -> None:
    """Refuse what no refresh may do. ``store``, ``config``: of the commit that was measured. Raises ProposalError."""
    try:
        faults = [*_Night(proposal, store, tree_of, config).faults()]
    except BaselineError as error:
        raise ProposalError(f"the store of {proposal.commit[:12]} cannot be used: {error}") from error
    if faults:
        more = f" (and {len(faults) - SHOWN} more)" if len(faults) > SHOWN else ""
        raise ProposalError(f"the proposal is not what a refresh may do: {'; '.join(faults[:SHOWN])}{more}")


def take_in(proposal: Proposal, store: Store) -> None:
    """Write the records to ``store``, which may hold earlier nights. A first anchor stays where there is one by now.

    Raises ProposalError where another content of the same session is stored.
    """
    try:
        accepted = {(night.name, night.variant) for night in proposal.refreshed.workloads if night.accepted is not None}
        release(store, [each for each in _own(proposal) if _key(each) in accepted])
        store.add(proposal.sessions, {digest_of(ledger): ledger for ledger in proposal.ledgers})
        for anchor in proposal.anchors:
            there = store.anchor(anchor.workload, anchor.variant, anchor.node_class)
            if there is None or (anchor.previous is not None and there.commit != anchor.commit):
                store.move_anchor(anchor)
    except BaselineError as error:
        raise ProposalError(f"the proposal cannot be stored: {error}") from error


def _own(proposal: Proposal) -> list[Baseline]:
    """The timed sessions of main."""
    return [each for each in proposal.sessions if each.tier == "timed" and each.series != "anchor"]


def _key(record: Baseline | Anchor) -> Key:
    return record.workload, record.variant


class _Night:
    """A proposal, and what it is held against."""

    def __init__(self, proposal: Proposal, store: Store, tree_of: TreeOf, config: Config) -> None:
        self.proposal = proposal
        self.main = proposal.commit
        self.store = store
        self.tree_of = tree_of
        self.config = config
        self.nights = {(night.name, night.variant): night for night in proposal.refreshed.workloads}

    def faults(self) -> Iterator[str]:
        found = self.proposal
        if len(self.nights) < len(found.refreshed.workloads):
            yield "a workload is told of twice"
        yield from _twice("the session", (each.session for each in found.sessions))
        yield from _twice("the night of", (f"{name} {variant}" for name, variant in map(_key, _own(found))))
        yield from _twice(
            "the anchor of", (f"{each.workload} {each.variant} {each.node_class}" for each in found.anchors)
        )
        for session in found.sessions:
            name = f"{session.tier} session {session.session[:12]} of {session.workload}"
            yield from (f"{name} {fault}" for fault in self._session(session))
        for anchor in found.anchors:
            yield from (f"the anchor of {anchor.workload} {fault}" for fault in self._anchor(anchor))
        yield from self._ledgers()

    def _session(self, session: Baseline) -> Iterator[str]:
        yield from self._commit(session.commit, session.tree)
        if session.tier == "static":
            yield from self._static(session)
            return
        night = self.nights.get(_key(session))
        if night is None or night.series is None:
            yield "is of a workload of which the night says that nothing is stored"
            return
        there = self.store.anchor(session.workload, session.variant, session.node_class)
        stored = there.commit if there is not None else None
        if night.anchor != stored:
            told, own = ((commit or "none")[:12] for commit in (night.anchor, stored))
            yield f"is told to be of a night beside the anchor {told}, and the store's is {own}"
        if session.series == "anchor":
            if session.commit != night.anchor or session.against is not None:
                yield f"is stored as the anchor's, and is of {session.commit[:12]}"
        else:
            yield from self._timed(session, night)

    def _timed(self, session: Baseline, night: RefreshedWorkload) -> Iterator[str]:
        if session.commit != self.main:
            yield f"is of {session.commit[:12]}, and {self.main[:12]} was measured"
        if session.series != night.series or (night.series == "rolling") != (night.status == "PASS"):
            yield f"is stored as {session.series}, and the night is told as {night.status}, {night.series}"
        against = session.against
        if against is None or against.commit != (night.anchor or self.main):
            yield "was not run beside the commit that the night is told to be against"
            return
        pairs = {len(against.log_ratios.get(name, [])) for name in SUMMARIES}
        if pairs != {night.pairs} or against.log_ratios.keys() != {*SUMMARIES}:
            yield f"has {' and '.join(map(str, sorted(pairs)))} pairs, and {night.pairs} are told"
            return
        told, seen = night.tonight, tonight_pct(against, thresholds_of(self.config.throughput))
        if (told is None) != (seen is None):
            yield f"is told {'without' if told is None else 'with'} an estimate, unlike what its pairs show"
        elif told is not None and seen is not None and abs(told.estimate_pct - seen) > SAME_PCT:
            yield f"is told to be {told.estimate_pct:+.2f}% slower, and its pairs show {seen:+.2f}%"
        if seen is None and session.series == "rolling":
            yield f"would join the reference with {night.pairs} pairs, which show nothing"
        if session.series == "rolling" and night.accepted is None:
            yield from self._absorbed(session, against)
        if night.accepted is not None and not any(_key(each) == _key(session) for each in self.proposal.anchors):
            yield "is an accepted slowdown, and the anchor that takes it in is missing"

    def _absorbed(self, session: Baseline, against: AgainstAnchor) -> Iterator[str]:
        """The rule that a refresh absorbs no slowdown, from the stored numbers themselves."""
        where = class_folder(session.workload, session.variant, session.node_class)
        nights = [
            each.against
            for each in timed_sessions(self.store, where)
            if each.environment == session.environment
            and each.session != session.session
            and each.against is not None
            and each.against.commit == against.commit
        ]
        thresholds, budget_pct = thresholds_of(self.config.throughput), self.config.baselines.creep_budget_pct
        if said := absorbed([*nights, against], thresholds, budget_pct):
            yield f"would join the reference, and {said}"

    def _static(self, session: Baseline) -> Iterator[str]:
        own = {_key(each) for each in _own(self.proposal)}
        taken = [night for key, night in self.nights.items() if night.series == "rolling" and key in own]
        commits: dict[str, set[str | None]] = {"rolling": {self.main}, "anchor": {night.anchor for night in taken}}
        if not taken or session.commit not in commits.get(session.series, set()):
            yield f"is stored as {session.series}, and no night that was taken in is of {session.commit[:12]}"

    def _anchor(self, anchor: Anchor) -> Iterator[str]:
        yield from self._commit(anchor.commit, anchor.tree)
        if anchor.commit != self.main:
            yield f"is put to {anchor.commit[:12]}, and {self.main[:12]} was measured"
        if not any(_key(each) == _key(anchor) and each.node_class == anchor.node_class for each in _own(self.proposal)):
            yield "is put to a commit without a session of its class"
        there = self.store.anchor(anchor.workload, anchor.variant, anchor.node_class)
        night = self.nights.get(_key(anchor))
        if there is None:
            if anchor.previous is not None or anchor.accepted is not None or anchor.evidence is not None:
                yield "is moved, and there is none"
            return
        if anchor.previous != there.commit:
            yield f"is not moved from where it is, {there.commit[:12]}"
        if anchor.accepted is None or anchor.evidence is None or night is None or night.accepted != anchor.accepted:
            yield "is moved without somebody who accepted a slowdown by name"
        elif anchor.accepted.slowdown_pct < anchor.evidence.estimate_pct:
            yield f"is moved past {anchor.accepted.slowdown_pct:g}%, the slowdown that was accepted"

    def _ledgers(self) -> Iterator[str]:
        given = {digest_of(ledger) for ledger in self.proposal.ledgers}
        named = {each.ledger for each in self.proposal.sessions if each.ledger is not None}
        yield from (f"the ledger {digest[:12]} is of no session" for digest in sorted(given - named))
        for digest in sorted(named - given):
            if not (self.store.root / ledger_path(digest)).is_file():
                yield f"the ledger {digest[:12]} of a session is missing"

    def _commit(self, commit: str, tree: str) -> Iterator[str]:
        known = self.tree_of(commit)
        if known is None:
            yield f"is of {commit[:12]}, which is not in this repository's history"
        elif known != tree:
            yield f"is of {commit[:12]}, and has the tree of another commit"


def _twice(what: str, names: Iterator[str]) -> Iterator[str]:
    yield from (f"{what} {name[:80]} is there twice" for name, count in Counter(names).items() if count > 1)
