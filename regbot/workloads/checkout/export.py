"""Read files of a commit without a checkout, such as the stored references of the base commit.

The bytes come from git's objects, exactly as they were committed. A checkout or an archive would use the commit's own
.gitattributes, which can leave files out (``export-ignore``) and change other files.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from regbot.records.files import MAX_RECORD_BYTES
from regbot.records.text.clip import clip, short_commit
from regbot.records.text.printable import printable
from regbot.workloads.checkout.git import OFFLINE, TRANSFER_TIMEOUT_S, CheckoutError, git, try_git


@dataclass(frozen=True)
class CommitFile:
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
            raise CheckoutError(
                f"{message_start} {problem}", "only regular files are allowed: remove it, or commit a file instead"
            )
        if not size.isdigit():
            raise CheckoutError(f"{message_start} not in this repository's objects", "see git fsck, or clone it again")
        files.append(CommitFile(path, blob, int(size)))
    return files


def export(repo: Path, commit: str, paths: Sequence[str], folder: Path) -> None:
    """Write the files of ``commit`` at ``paths`` and below into ``folder``.

    Raises CheckoutError if ``list_files`` does, or if a file cannot be read or written.
    """
    files = list_files(repo, commit, paths)
    for file, content in zip(files, _read_contents(repo, files), strict=True):
        target = folder / file.path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        except OSError as error:
            message_start = f"{repo}: {clip(printable(file.path), 200)} of {short_commit(commit)}"
            raise CheckoutError(f"{message_start} cannot be written: {error.strerror}", f"see {folder}") from error


def _read_contents(repo: Path, files: Sequence[CommitFile]) -> Iterator[bytes]:
    blob_lines = "".join(f"{file.blob}\n" for file in files)
    result = try_git(
        repo, "cat-file", "--batch", "--buffer", env=OFFLINE, stdin=blob_lines, timeout_s=TRANSFER_TIMEOUT_S
    )
    output, position = result.out.encode("utf-8", "surrogateescape"), 0
    for file in files:
        header = f"{file.blob} blob {file.bytes}\n".encode()
        if result.code != 0 or not output.startswith(header, position):
            reason = result.error_line if result.code != 0 else "the repository lacks it"
            raise CheckoutError(f"{repo}: {printable(file.path)[:200]} cannot be read: {reason}", "see git fsck")
        position += len(header)
        yield output[position : position + file.bytes]
        position += file.bytes + 1  # a newline follows the content
