"""A branch that nobody has checked out: one commit with new files, made beside the user's index and working tree."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from regbot.checkout.git import git

AUTHOR = {
    "GIT_AUTHOR_NAME": "regbot",
    "GIT_AUTHOR_EMAIL": "regbot@users.noreply.github.com",
    "GIT_COMMITTER_NAME": "regbot",
    "GIT_COMMITTER_EMAIL": "regbot@users.noreply.github.com",
}


def propose(repo: Path, parent: str, files: Mapping[str, Path], branch: str, message: str) -> str:
    """Commit ``files`` (path in the repository -> where its content lies) on ``parent`` and name it ``branch``.

    Returns the commit. Nothing is there until the branch is, which must not exist yet. Raises CheckoutError.
    """
    with tempfile.TemporaryDirectory(prefix="regbot-") as scratch:
        index = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        git(repo, "read-tree", parent, env=index)
        for path, content in sorted(files.items()):
            blob = git(repo, "hash-object", "-w", "--no-filters", "--", str(content)).strip()
            git(repo, "update-index", "--add", "--cacheinfo", f"100644,{blob},{path}", env=index)
        tree = git(repo, "write-tree", env=index).strip()
    commit = git(repo, "commit-tree", tree, "-p", parent, "-m", message, env=AUTHOR).strip()
    git(repo, "update-ref", f"refs/heads/{branch}", commit, "0" * len(commit))
    return commit
