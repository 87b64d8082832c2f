"""Read files of a commit without a checkout, such as the stored references of the base commit.

The bytes come from git's objects, exactly as they were committed. A checkout or an archive would use the commit's own
.gitattributes, which can leave files out (``export-ignore``) and change other files.
"""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from regbot.records.files import MAX_RECORD_BYTES
from regbot.records.text.clip import clip, short_commit
from regbot.records.text.printable import printable
from regbot.workloads.checkout.git import OFFLINE, CheckoutError, git, read_blobs


class CommitFile(NamedTuple):
    """A regular file of a commit. It is at most as large as a record may be."""

    path: str
    blob: str
    bytes: int


def list_files(repo: Path, commit: str, paths: Sequence[str]) -> list[CommitFile]:
    """Return the files of ``commit`` at ``paths`` and below. For a path that does not exist, no files are returned.

    Raises CheckoutError if git fails, or if an entry is a link, a submodule, or larger than a record may be.
    """
    arguments = ("ls-tree", "-r", "-l", "-z", "--full-tree", commit, "--", *paths)
    entries = git(repo, *arguments, env={**OFFLINE, "GIT_LITERAL_PATHSPECS": "1"}).split("\0") if paths else []
    files = []
    for entry in filter(None, entries):  # "MODE KIND OBJECT SIZE<tab>PATH"
        attributes, _, path = entry.partition("\t")
        mode, _kind, blob, size = attributes.split()  # the size is "-" if the object is not here
        problem = {"120000": "a link", "160000": "a submodule"}.get(mode)
        if ".." in PurePosixPath(path).parts:
            problem = "outside of its folder"
        elif size.isdigit() and int(size) > MAX_RECORD_BYTES:
            problem = f"of {int(size):,} bytes, more than the {MAX_RECORD_BYTES:,} of any record"
        message_start = f"{repo}: {clip(printable(path), 200)} of {short_commit(commit)} is"
        if problem is not None:
            advice = "only regular files are allowed: remove it, or commit a file instead"
            raise CheckoutError(f"{message_start} {problem}", advice)
        if not size.isdigit():
            raise CheckoutError(f"{message_start} not in this repository's objects", "see git fsck, or clone it again")
        files.append(CommitFile(path, blob, int(size)))
    return files


def export(repo: Path, commit: str, paths: Sequence[str], folder: Path) -> None:
    """Write the files of ``commit`` at ``paths`` and below into ``folder``.

    Raises CheckoutError if ``list_files`` does, or if a file cannot be read or written.
    """
    files = list_files(repo, commit, paths)
    contents = read_blobs(repo, {file.blob: file.bytes for file in files})
    if contents is None:
        raise CheckoutError(f"{repo}: files of {short_commit(commit)} cannot be read", "see git fsck")
    for file in files:
        target = folder / file.path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(contents[file.blob])
        except OSError as error:
            message_start = f"{repo}: {clip(printable(file.path), 200)} of {short_commit(commit)}"
            raise CheckoutError(f"{message_start} cannot be written: {error.strerror}", f"see {folder}") from error
