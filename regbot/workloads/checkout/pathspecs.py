"""Find the paths that differ between two commits, and match paths against git's pathspecs. Git compares trees and reads
no file.

A path is listed if its mode or its content differs. Both paths of a renamed file are listed, and the paths of changed
submodules. Pathspecs are relative to the root of the repository.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from regbot.workloads.checkout.git import OFFLINE, CheckoutError, common_dir, git, try_git


def list_changed_paths(repo: Path, base: str, head: str, pathspecs: Sequence[str] = ()) -> list[str]:
    """Return the paths that differ between two commits or trees; with ``pathspecs``, only paths that match one of them.

    Raises CheckoutError.
    """
    options = ("-r", "-z", "--name-only", "--no-renames", "--ignore-submodules=none")
    # With --git-dir, git takes the current folder for the root of the repository. Otherwise git would take pathspecs as
    # relative to ``repo``, which can be a subfolder.
    git_dir = f"--git-dir={common_dir(repo)}"
    result = try_git(repo, git_dir, "diff-tree", *options, base, head, "--", *pathspecs, env=OFFLINE)
    if result.code != 0:
        raise CheckoutError(f"{repo}: git diff-tree failed: {result.error_line}")
    return [path for path in result.out.split("\0") if path]


def has_matching_path(repo: Path, commit: str, pathspecs: Sequence[str]) -> bool:
    """Return whether a file of ``commit`` matches one of the pathspecs. Raises CheckoutError."""
    empty_tree = git(repo, "hash-object", "-t", "tree", os.devnull).strip()
    # All files of a commit differ from the empty tree.
    return bool(list_changed_paths(repo, empty_tree, commit, pathspecs))


def list_unmatched_paths(repo: Path, paths: Sequence[str], pathspecs: Sequence[str]) -> list[str]:
    """Return those of ``paths`` that match no pathspec. The paths need not exist in any commit.

    Git matches pathspecs only against the paths of an index, so ``paths`` are written into a temporary index. Raises
    CheckoutError.
    """
    empty_blob = git(repo, "hash-object", os.devnull).strip()
    with tempfile.TemporaryDirectory(prefix="regbot-") as folder:
        env = {**OFFLINE, "GIT_INDEX_FILE": str(Path(folder) / "index")}
        git_dir = f"--git-dir={common_dir(repo)}"
        entries = "".join(f"100644 {empty_blob}\t{path}\0" for path in paths)
        index_update = try_git(repo, git_dir, "update-index", "-z", "--index-info", env=env, stdin=entries)
        listing = try_git(repo, git_dir, "ls-files", "-z", "--full-name", "--", *pathspecs, env=env)
    for result in (index_update, listing):
        if result.code != 0:
            raise CheckoutError(f"{repo}: git cannot match paths: {result.error_line}")
    matched_paths = set(listing.out.split("\0"))
    return [path for path in paths if path not in matched_paths]
