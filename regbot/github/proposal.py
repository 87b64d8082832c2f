"""Check a refresh proposal, and commit it to the branch of the refresh pull request. The node that measured wrote the
proposal and is not trusted. The commit changes only the folder of references. It never changes a stored session, and
causes no problem in the store.

A proposal contains records and cannot name files: the path of each record in the store is computed from the record. The
numbers in its report are the node's word, and a person reviews them. A *night* is the report on one workload.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path, PurePosixPath

from regbot.baselines import Store, verify
from regbot.baselines.names import ANCHOR, class_folder
from regbot.baselines.store import record_digest
from regbot.check.refresh.night import describe_absorbed_slowdown
from regbot.check.refresh.storing import remove_withheld_copies, store_files, timed_sessions
from regbot.errors import UserError
from regbot.github.artifact import read_single_file
from regbot.judge.estimates import thresholds
from regbot.records.baseline import Anchor, Baseline
from regbot.records.config import Config
from regbot.records.files import MAX_RECORD_BYTES, parse_record
from regbot.records.proposal import Proposal
from regbot.records.refresh import WorkloadRefresh
from regbot.records.text.clip import short_commit
from regbot.stats.paired import LOOKS
from regbot.workloads.checkout.commits import commit_files
from regbot.workloads.checkout.export import export, list_files
from regbot.workloads.checkout.git import CheckoutError, git, try_git

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
        limits, budget_pct = thresholds(config.throughput), config.baselines.creep_budget_pct
        if len(against.log_ratios.get("median", ())) < LOOKS[0]:
            yield "would join the reference with too few pairs for an estimate"
        folder = class_folder(session.workload, session.variant, session.node_class)
        earlier = [
            stored.against
            for stored in timed_sessions(store, folder)
            if stored.environment == session.environment and stored.session != session.session
        ]
        nights = [comparison for comparison in earlier if comparison and comparison.commit == against.commit]
        if reason := describe_absorbed_slowdown([*nights, against], limits, budget_pct):
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


@dataclass(frozen=True)
class RefreshBranch:
    repo: Path
    main: str
    folder: str
    parent: str
    """Newest commit of the branch, which becomes the parent of the night's commit. For a new branch, it is the measured
    commit."""


@dataclass(frozen=True)
class NightCommit:
    commit: str
    """Hash of the commit. If the branch already contains the whole night, it is the branch's newest commit."""
    files: tuple[str, ...]
    is_already_in_main: bool
    """Whether main already contains everything that is on the branch."""


def is_reachable(repo: Path, commit: str, tip: str) -> bool:
    """Return whether ``commit`` is in the checkout and in the history of ``tip``. Raises CheckoutError."""
    return try_git(repo, "merge-base", "--is-ancestor", commit, tip).code == 0


def check_night(branch: RefreshBranch, proposals: Sequence[Proposal], config: Config) -> None:
    """Check that the proposals do only what a refresh may do. Raises UserError, CheckoutError."""

    @cache
    def tree_of(commit: str) -> str | None:
        """Return the tree of a commit; None if the commit is not in the history of main."""
        is_known = is_reachable(branch.repo, commit, branch.main)
        return git(branch.repo, "rev-parse", f"{commit}^{{tree}}").strip() if is_known else None

    with tempfile.TemporaryDirectory(prefix="regbot-") as scratch:
        store = _export_store(branch, proposals[0].commit, Path(scratch))
        for proposal in proposals:
            check_proposal(proposal, store, tree_of, config)


def make_commit(
    branch: RefreshBranch, proposals: Sequence[Proposal], message: str, at: datetime, now: datetime
) -> NightCommit:
    """Commit ``proposals`` on top of ``branch.parent``.

    Raises UserError if the commit would cause a new problem in the store. Raises CheckoutError.
    """
    with tempfile.TemporaryDirectory(prefix="regbot-") as scratch:
        store = _export_store(branch, branch.parent, Path(scratch))
        files_before = store_files(store)
        for proposal in proposals:
            store_proposal(proposal, store)
        files_after = store_files(store)
        changed_paths = _list_changes(branch, files_before, files_after)
        commit = branch.parent
        if changed_paths:
            # The commit takes the content of each file, and removes a file whose value is None.
            files = {
                f"{branch.folder}/{path}": store.root / path if path in files_after else None for path in changed_paths
            }
            commit = commit_files(branch.repo, branch.parent, files, message, at)
    merged_tree = _merge(branch.repo, branch.main, commit)
    # Check the merged store. With conflicts, which GitHub shows, there is no merged store: check that of the branch.
    checked_version, version_before = (merged_tree, branch.main) if merged_tree else (commit, branch.parent)
    problems = _find_problems(branch, checked_version, now)
    problems_before = _find_problems(branch, version_before, now) if problems else []
    new_problems = [problem for problem in problems if problem not in problems_before]
    if new_problems:
        raise UserError(f"the store would be invalid with this commit: {'; '.join(new_problems[:3])}")
    diff = ("diff", "--name-only", "--no-renames", "-z", branch.main, merged_tree or commit, "--", branch.folder)
    names = git(branch.repo, *diff).split("\0")
    main_tree = git(branch.repo, "rev-parse", f"{branch.main}^{{tree}}").strip()
    return NightCommit(
        commit=commit,
        files=tuple(name for name in names if name),
        is_already_in_main=merged_tree == main_tree,
    )


def _export_store(branch: RefreshBranch, commit: str, scratch: Path) -> Store:
    export(branch.repo, commit, [branch.folder], scratch)
    return Store(scratch / branch.folder)


def _list_changes(
    branch: RefreshBranch, before: dict[PurePosixPath, bytes], after: dict[PurePosixPath, bytes]
) -> list[PurePosixPath]:
    """Return the changed paths. Only the content of an anchor may change. A file may be removed only if a file is added
    to the same folder: a session whose slowdown a person accepted replaces its earlier copy in the series ``held``. An
    added file must not exist in the parent commit: it would have been missed when the store was read.

    ``before`` and ``after`` have the files of the store, by path. Raises UserError.
    """
    changed = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    folders_with_additions = [path.parent for path in changed if path not in before]
    existing_paths = {entry.path for entry in list_files(branch.repo, branch.parent, [branch.folder])}
    for path in changed:
        if path not in before and str(PurePosixPath(branch.folder, path)) in existing_paths:
            raise UserError(
                f"{path} would be added, but {short_commit(branch.parent)} already has this file: the store was not "
                "read completely"
            )
        if path in before and path in after and path.name != ANCHOR:
            raise UserError(f"{path} would be changed", "a refresh may change only anchors")
        if path not in after and path.parent not in folders_with_additions:
            raise UserError(f"{path} would be removed without a replacement")
    return changed


def _merge(repo: Path, main: str, commit: str) -> str | None:
    """Return the tree of the merged commits; None if they conflict."""
    answer = try_git(repo, "merge-tree", "--write-tree", "--no-messages", main, commit)
    if answer.code not in (0, 1):
        raise CheckoutError(f"{repo}: git merge-tree failed, git 2.38 or newer is needed: {answer.error_line}")
    return answer.out.strip() if answer.code == 0 else None


def _find_problems(branch: RefreshBranch, commit: str, now: datetime) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="regbot-") as scratch:
        store = _export_store(branch, commit, Path(scratch))
        return list(verify(store, now).problems) if store.root.is_dir() else []
