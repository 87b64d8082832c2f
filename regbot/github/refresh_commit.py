"""Commit one night to the branch of the refresh pull request, and compute the result of merging the branch into main.

The commit changes only the folder of references. It never changes a stored session, and causes no problem in the store.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path, PurePosixPath

from regbot.baselines import Store, verify
from regbot.baselines.names import ANCHOR
from regbot.check.refresh.storing import store_files
from regbot.errors import UserError
from regbot.github.proposal import check_proposal, store_proposal
from regbot.records.config import Config
from regbot.records.proposal import Proposal
from regbot.records.text.clip import short_commit
from regbot.workloads.checkout.commits import commit_files
from regbot.workloads.checkout.export import export, list_files
from regbot.workloads.checkout.git import CheckoutError, git, try_git


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
    conflicts: tuple[str, ...]
    """Files that main and the branch changed differently, so that git cannot merge them."""
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
        all_paths = {**files_before, **files_after}
        changed_paths = [path for path in all_paths if files_before.get(path) != files_after.get(path)]
        _check_changes(branch, changed_paths, files_before, files_after)
        commit = branch.parent
        if changed_paths:
            # The commit takes the content of each file, and removes a file whose value is None.
            files = {
                f"{branch.folder}/{path}": store.root / path if path in files_after else None for path in changed_paths
            }
            commit = commit_files(branch.repo, branch.parent, files, message, at)
    merged_tree, conflicts = _merge(branch.repo, branch.main, commit)
    # Check the merged store. With conflicts there is no merged store, so check the store on the branch.
    checked_version, version_before = (commit, branch.parent) if conflicts else (merged_tree, branch.main)
    problems = _find_problems(branch, checked_version, now)
    problems_before = _find_problems(branch, version_before, now) if problems else []
    new_problems = [problem for problem in problems if problem not in problems_before]
    if new_problems:
        raise UserError(f"the store would be invalid with this commit: {'; '.join(new_problems[:3])}")
    diff = ("diff", "--name-only", "--no-renames", "-z", branch.main, merged_tree, "--", branch.folder)
    names = git(branch.repo, *diff).split("\0")
    main_tree = git(branch.repo, "rev-parse", f"{branch.main}^{{tree}}").strip()
    return NightCommit(
        commit=commit,
        files=tuple(name for name in names if name),
        conflicts=tuple(conflicts),
        is_already_in_main=merged_tree == main_tree,
    )


def _export_store(branch: RefreshBranch, commit: str, scratch: Path) -> Store:
    export(branch.repo, commit, [branch.folder], scratch)
    return Store(scratch / branch.folder)


def _check_changes(
    branch: RefreshBranch,
    changed: Sequence[PurePosixPath],
    before: dict[PurePosixPath, bytes],
    after: dict[PurePosixPath, bytes],
) -> None:
    """Check the changed paths. Only the content of an anchor may change. A file may be removed only if a file is added
    to the same folder: a session whose slowdown a person accepted replaces its earlier copy in the series ``held``. An
    added file must not exist in the parent commit: it would have been missed when the store was read.

    ``before`` and ``after`` have the files of the store, by path. Raises UserError.
    """
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


def _merge(repo: Path, main: str, commit: str) -> tuple[str, list[str]]:
    answer = try_git(repo, "merge-tree", "--write-tree", "--name-only", "--no-messages", main, commit)
    has_merged, has_conflicts = answer.code == 0, answer.code == 1
    if not has_merged and not has_conflicts:
        raise CheckoutError(f"{repo}: git merge-tree failed, git 2.38 or newer is needed: {answer.error_line}")
    tree, *conflicts = answer.out.splitlines()
    return tree, list(dict.fromkeys(name for name in conflicts if name))


def _find_problems(branch: RefreshBranch, commit: str, now: datetime) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="regbot-") as scratch:
        store = _export_store(branch, commit, Path(scratch))
        return list(verify(store, now).problems) if store.root.is_dir() else []
