"""Find the paths that differ between two commits, also by git's pathspecs. Git compares trees and reads no file.

A path is listed if its mode or its content differs. Both paths of a renamed file are listed, and the paths of changed
submodules. Pathspecs are relative to the root of the repository.
"""

from collections.abc import Sequence
from pathlib import Path

from regbot.checkout.git import OFFLINE, CheckoutError, GitResult, common_dir, try_git


def list_changed_paths(repo: Path, base: str, head: str, pathspecs: Sequence[str] = ()) -> list[str]:
    """Return the paths that differ between two commits or trees; with ``pathspecs``, only those that match.

    Raises CheckoutError.
    """
    result = _diff(repo, base, head, pathspecs)
    if result.code != 0:
        raise CheckoutError(f"{repo}: git diff-tree failed: {result.error_line}")
    return [path for path in result.out.split("\0") if path]


def _diff(repo: Path, base: str, head: str, pathspecs: Sequence[str]) -> GitResult:
    options = ("-r", "-z", "--name-only", "--no-renames", "--ignore-submodules=none")
    # With --git-dir, git takes the current folder for the root, so that a subfolder does not narrow the pathspecs.
    git_dir = f"--git-dir={common_dir(repo)}"
    return try_git(repo, git_dir, "diff-tree", *options, base, head, "--", *pathspecs, env=OFFLINE)
