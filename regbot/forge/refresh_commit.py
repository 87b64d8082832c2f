"""A night as one commit on the branch of the refresh pull request, and what main would be with it.

The commit is made by git from the store's own files, beside the checkout. It touches nothing outside of the folder of
the references, adds and never changes a session, and is not used unless the store is sound with it.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path, PurePosixPath

from regbot.baselines import BaselineError, Store, verify
from regbot.baselines.names import ANCHOR
from regbot.checkout import CheckoutError, export
from regbot.checkout.commits import commit_files
from regbot.checkout.export import listing
from regbot.checkout.git import git, try_git
from regbot.config import Config
from regbot.forge.proposal import ProposalError, check, take_in
from regbot.records.baseline import Baseline
from regbot.records.proposal import Proposal
from regbot.refresh.stored import store_files

TRAILER = "regbot-proposal"
"""Of our commits: which proposals they are."""


@dataclass(frozen=True)
class Branch:
    """Where a night goes: the checkout, main's newest commit, the folder of the references, the commit to put it on."""

    repo: Path
    main: str
    folder: str
    parent: str


@dataclass(frozen=True)
class Made:
    """A night's commit, which is the parent itself where that holds all of it."""

    commit: str
    files: tuple[str, ...]
    """What main has otherwise without the branch, below the folder of the references."""
    conflicts: tuple[str, ...]
    """Files that main has changed otherwise."""
    in_main: bool
    """Main holds all that the branch does."""
    unsound: tuple[str, ...]
    """What is wrong with the store already, without this."""


def reaches(repo: Path, commit: str, tip: str) -> bool:
    """Whether ``commit`` is here and in the history of ``tip``. Raises CheckoutError."""
    return try_git(repo, "merge-base", "--is-ancestor", commit, tip).code == 0


def check_night(branch: Branch, proposals: Sequence[Proposal], config: Config) -> None:
    """Refuse what no refresh may do. Raises ProposalError, CheckoutError."""

    @cache
    def tree_of(commit: str) -> str | None:
        there = reaches(branch.repo, commit, branch.main)
        return git(branch.repo, "rev-parse", f"{commit}^{{tree}}").strip() if there else None

    with tempfile.TemporaryDirectory(prefix="regbot-") as scratch:
        store = _store(branch, proposals[0].commit, Path(scratch))
        for proposal in proposals:
            check(proposal, store, tree_of, config)


def make(branch: Branch, proposals: Sequence[Proposal], message: str, at: datetime, now: datetime) -> Made:
    """The commit with ``proposals`` on the branch, made at ``at``. Raises ProposalError, CheckoutError."""
    with tempfile.TemporaryDirectory(prefix="regbot-") as scratch:
        store = _store(branch, branch.parent, Path(scratch))
        before = store_files(store)
        for proposal in proposals:
            take_in(proposal, store)
        after = store_files(store)
        changed = [path for path in {**before, **after} if before.get(path) != after.get(path)]
        _allowed(changed, before, after)
        _unseen(branch, [path for path in changed if path not in before])
        commit = branch.parent
        if changed:
            files = {f"{branch.folder}/{path}": store.root / path if path in after else None for path in changed}
            commit = commit_files(branch.repo, branch.parent, files, message, at)
    result, conflicts = _merged(branch.repo, branch.main, commit)
    problems = _problems(branch, commit if conflicts else result, now)
    before_it = _problems(branch, branch.parent if conflicts else branch.main, now) if problems else []
    if new := [problem for problem in problems if problem not in before_it]:
        raise ProposalError(f"the store would not be sound with it: {'; '.join(new[:3])}")
    names = git(branch.repo, "diff", "--name-only", "--no-renames", "-z", branch.main, result, "--", branch.folder)
    return Made(
        commit=commit,
        files=tuple(name for name in names.split("\0") if name),
        conflicts=tuple(conflicts),
        in_main=result == git(branch.repo, "rev-parse", f"{branch.main}^{{tree}}").strip(),
        unsound=tuple(before_it),
    )


def last_night(branch: Branch) -> str:
    """Which proposals the newest of our commits on the branch is; '' where none is ours. Raises CheckoutError."""
    words = ("log", "--no-show-signature", f"--format=%(trailers:key={TRAILER},valueonly,separator=%x20)")
    lines = git(branch.repo, *words, f"{branch.main}..{branch.parent}").splitlines()
    return next((line.strip() for line in lines if line.strip()), "")


def subjects(branch: Branch, most: int) -> list[tuple[str, str, str]]:
    """Commit, author and subject of what the branch holds beyond main, newest first. Raises CheckoutError."""
    words = ("log", "--no-show-signature", "--first-parent", f"--max-count={most}", "--format=%H%x00%an%x00%s")
    lines = git(branch.repo, *words, f"{branch.main}..{branch.parent}").splitlines()
    found = (line.split("\0") for line in lines)
    return [(commit, author, subject) for commit, author, subject in found]


def sessions_at(repo: Path, commit: str, folder: str, measured: str) -> list[Baseline]:
    """The timed sessions of the commit ``measured`` that the store of ``commit`` holds. Raises CheckoutError."""
    with tempfile.TemporaryDirectory(prefix="regbot-") as scratch:
        store = _store(Branch(repo, commit, folder, commit), commit, Path(scratch))
        try:
            paths = [path for group in store.groups() for _, path in store.index.commits(group, measured)]
            return [session for path in paths if (session := store.session(path)).tier == "timed"]
        except BaselineError:
            return []


def _store(branch: Branch, commit: str, scratch: Path) -> Store:
    export(branch.repo, commit, [branch.folder], scratch)
    return Store(scratch / branch.folder)


def _allowed(
    changed: Sequence[PurePosixPath], before: dict[PurePosixPath, bytes], after: dict[PurePosixPath, bytes]
) -> None:
    """What the store did is asked once more, by path alone: nothing that is there changes but an anchor, and what goes
    is replaced."""
    gone = [path for path in changed if path not in after]
    added = [path.parent for path in changed if path not in before]
    for path in changed:
        if path in before and path in after and path.name != ANCHOR:
            raise ProposalError(f"{path} would be changed; only an anchor may be")
    for path in gone:
        if path.parent not in added:
            raise ProposalError(f"{path} would be removed, and nothing put in its place")


def _unseen(branch: Branch, added: Sequence[PurePosixPath]) -> None:
    """Refuse what would be written over a file that the store was not read with: nothing judged the two together."""
    there = {each.path for each in listing(branch.repo, branch.parent, [branch.folder])}
    for path in added:
        if str(PurePosixPath(branch.folder, path)) in there:
            raise CheckoutError(f"{path} would be added, and {branch.parent[:12]} has it: the store was not read whole")


def _merged(repo: Path, main: str, commit: str) -> tuple[str, list[str]]:
    """The tree of main with ``commit`` merged, and the files that conflict."""
    answer = try_git(repo, "merge-tree", "--write-tree", "--name-only", "--no-messages", main, commit)
    if answer.code not in (0, 1):
        raise CheckoutError(f"{repo}: git merge-tree failed, git 2.38 or newer is needed: {answer.last_word}")
    tree, *conflicts = answer.out.splitlines()
    return tree, list(dict.fromkeys(name for name in conflicts if name))


def _problems(branch: Branch, commit: str, now: datetime) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="regbot-") as scratch:
        store = _store(branch, commit, Path(scratch))
        return list(verify(store, now).problems) if store.root.is_dir() else []
