"""Create a branch with one commit of new files. The user's index and working tree are not changed."""

from collections.abc import Mapping
from pathlib import Path

from regbot.workloads.checkout.commits import commit_files
from regbot.workloads.checkout.git import git


def create_branch(repo: Path, parent: str, files: Mapping[str, Path | None], branch: str, message: str) -> str:
    """Commit ``files`` on top of ``parent``, create the branch ``branch`` at the new commit, and return the commit's
    id.

    ``files`` maps a path in the repository to a file with the new content, or to None to remove the path. The branch
    must not exist. It is created last, so that a failure leaves no branch behind. Raises CheckoutError.
    """
    commit = commit_files(repo, parent, files, message)
    no_old_commit = "0" * len(commit)  # with this old value, git refuses to move a branch that exists
    git(repo, "update-ref", f"refs/heads/{branch}", commit, no_old_commit)
    return commit
