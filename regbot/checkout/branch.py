"""A branch that nobody has checked out: one commit with new files, made beside the user's index and working tree."""

from collections.abc import Mapping
from pathlib import Path

from regbot.checkout.commits import commit_files
from regbot.checkout.git import git


def propose(repo: Path, parent: str, files: Mapping[str, Path | None], branch: str, message: str) -> str:
    """Commit ``files`` (path in the repository -> where it lies, None to remove it) on ``parent``, as ``branch``.

    Returns the commit. Nothing is there until the branch is, which must not exist yet. Raises CheckoutError.
    """
    commit = commit_files(repo, parent, files, message)
    git(repo, "update-ref", f"refs/heads/{branch}", commit, "0" * len(commit))
    return commit
