"""A commit of changed files, made beside the user's index and working tree. No ref is written."""

import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from regbot.checkout.git import CheckoutError, git, try_git

AUTHOR = {
    "GIT_AUTHOR_NAME": "regbot",
    "GIT_AUTHOR_EMAIL": "regbot@users.noreply.github.com",
    "GIT_COMMITTER_NAME": "regbot",
    "GIT_COMMITTER_EMAIL": "regbot@users.noreply.github.com",
}


def commit_files(
    repo: Path, parent: str, files: Mapping[str, Path | None], message: str, at: datetime | None = None
) -> str:
    """The commit on ``parent`` in which ``files`` have this content (path in the repository -> where it lies, None to
    remove it), as plain files. With ``at`` as its time the same content has the same id. Raises CheckoutError.
    """
    with tempfile.TemporaryDirectory(prefix="regbot-") as scratch:
        index = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        git(repo, "read-tree", parent, env=index)
        there = {path: content for path, content in files.items() if content is not None}
        listed = "".join(f"{content}\n" for content in there.values())
        blobs = _fed(repo, listed, {}, "hash-object", "-w", "--no-filters", "--stdin-paths").split()
        entries = [f"100644 {blob}\t{path}\0" for path, blob in zip(there, blobs, strict=True)]
        entries += [f"0 {'0' * len(parent)}\t{path}\0" for path in files.keys() - there.keys()]
        _fed(repo, "".join(entries), index, "update-index", "-z", "--index-info")
        tree = git(repo, "write-tree", env=index).strip()
    moment = f"@{int(at.timestamp())} +0000" if at is not None else None
    dates = {"GIT_AUTHOR_DATE": moment, "GIT_COMMITTER_DATE": moment} if moment else {}
    return git(repo, "commit-tree", tree, "-p", parent, "-m", message, env={**AUTHOR, **dates}).strip()


def _fed(repo: Path, text: str, env: Mapping[str, str], *words: str) -> str:
    """What a git command prints that reads ``text``; '' where there is nothing to read. Raises CheckoutError."""
    if not text:
        return ""
    answer = try_git(repo, *words, env=env, stdin=text)
    if answer.code != 0:
        raise CheckoutError(f"{repo}: git {words[0]} failed: {answer.last_word}")
    return answer.out
