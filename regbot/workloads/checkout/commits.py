"""Create a commit of changed files, and a branch of it. The user's index and working tree are not changed."""

import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from regbot.workloads.checkout.git import git

_IDENTITY = {"NAME": "regbot", "EMAIL": "regbot@users.noreply.github.com"}
AUTHOR = {f"GIT_{role}_{key}": text for role in ("AUTHOR", "COMMITTER") for key, text in _IDENTITY.items()}


def commit_files(
    repo: Path, parent: str, files: Mapping[str, Path | None], message: str, at: datetime | None = None
) -> str:
    """Create a commit on top of ``parent`` and return its id.

    ``files`` maps a path in the repository to a file with the new content, or to None to remove the path. ``at`` is the
    commit time, so that equal content gives an equal id; None means now. Raises CheckoutError.
    """
    with tempfile.TemporaryDirectory(prefix="regbot-") as scratch:
        index_variable = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        git(repo, "read-tree", parent, env=index_variable)
        new_files = {path: content for path, content in files.items() if content is not None}
        content_paths = "".join(f"{content}\n" for content in new_files.values())
        blobs = git(repo, "hash-object", "-w", "--no-filters", "--stdin-paths", stdin=content_paths).split()
        index_entries = [f"100644 {blob}\t{path}\0" for path, blob in zip(new_files, blobs, strict=True)]
        # The mode 0 removes a path from the index. git still expects the id of a blob, so it gets zeros.
        no_blob = "0" * len(parent)
        index_entries += [f"0 {no_blob}\t{path}\0" for path in files.keys() - new_files.keys()]
        git(repo, "update-index", "-z", "--index-info", env=index_variable, stdin="".join(index_entries))
        tree = git(repo, "write-tree", env=index_variable).strip()
    timestamp = f"@{int(at.timestamp())} +0000" if at is not None else None
    dates = {"GIT_AUTHOR_DATE": timestamp, "GIT_COMMITTER_DATE": timestamp} if timestamp else {}
    return git(repo, "commit-tree", tree, "-p", parent, "-m", message, env={**AUTHOR, **dates}).strip()


def create_branch(repo: Path, parent: str, files: Mapping[str, Path | None], branch: str, message: str) -> str:
    """Commit ``files`` as ``commit_files`` does, and create ``branch`` at the new commit. Return the commit's id.

    The branch must not exist. It is created last, so that a failure leaves none behind. Raises CheckoutError.
    """
    commit = commit_files(repo, parent, files, message)
    no_old_commit = "0" * len(commit)  # with this old value, git refuses to move a branch that exists
    git(repo, "update-ref", f"refs/heads/{branch}", commit, no_old_commit)
    return commit
