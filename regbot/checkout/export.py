"""Files of a commit without a checkout of it: what a check reads of the base besides its code.

They are read from git's objects as they were committed. A checkout or an archive would obey the .gitattributes of the
commit itself, which leave files out (``export-ignore``) and change others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from regbot.checkout.git import TRANSFER_TIMEOUT_S, CheckoutError, git, try_git
from regbot.records.files import MAX_RECORD_BYTES
from regbot.text import printable

AT_ONCE_BYTES = MAX_RECORD_BYTES
"""Of content that is held in memory."""


@dataclass(frozen=True)
class Listed:
    """A file of a commit, which has a plain name and no more bytes than a record may have."""

    path: str
    """From the top of the repository."""
    blob: str
    bytes: int


def listing(repo: Path, commit: str, paths: Sequence[str]) -> list[Listed]:
    """The files that ``commit`` has at ``paths`` and below, none where it has no such path.

    Raises CheckoutError, also where one is a link, a submodule or larger than any record.
    """
    words = ("ls-tree", "-r", "-l", "-z", "--full-tree", commit, "--", *paths)
    entries = git(repo, *words, env={"GIT_LITERAL_PATHSPECS": "1"}).split("\0") if paths else []
    found = []
    for entry in filter(None, entries):
        head, _, path = entry.partition("\t")
        mode, _, blob, size = head.split()
        kind = {"120000": "a link", "160000": "a submodule"}.get(mode)
        if ".." in PurePosixPath(path).parts:
            kind = "outside of its folder"
        elif size.isdigit() and int(size) > MAX_RECORD_BYTES:
            kind = f"of {int(size):,} bytes, more than the {MAX_RECORD_BYTES:,} of any record"
        what = f"{repo}: {printable(path)[:200]} of {commit[:12]} is"
        if kind is not None:
            raise CheckoutError(f"{what} {kind}; there may be plain files only: remove it, or commit a file instead")
        if not size.isdigit():
            raise CheckoutError(f"{what} not in this repository's objects; see git fsck, or clone it again")
        found.append(Listed(path, blob, int(size)))
    return found


def export(repo: Path, commit: str, paths: Sequence[str], to: Path) -> None:
    """Put what ``commit`` has at ``paths`` and below into the folder ``to``, as plain files.

    Raises CheckoutError as ``listing`` does, and where one cannot be read or written.
    """
    for batch in _batches(listing(repo, commit, paths)):
        for each, content in zip(batch, _contents(repo, batch), strict=True):
            target = to / each.path
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            except OSError as error:
                what = f"{printable(each.path)[:200]} of {commit[:12]} cannot be written: {error.strerror}"
                raise CheckoutError(f"{repo}: {what}; see {to}") from error


def _batches(files: Sequence[Listed]) -> Iterator[list[Listed]]:
    batch: list[Listed] = []
    held = 0
    for each in files:
        if batch and held + each.bytes > AT_ONCE_BYTES:
            yield batch
            batch, held = [], 0
        batch.append(each)
        held += each.bytes
    if batch:
        yield batch


def _contents(repo: Path, files: Sequence[Listed]) -> Iterator[bytes]:
    """Of each file, in order: ``git cat-file --batch`` writes a line with the size, the bytes and a line end."""
    asked = "".join(f"{each.blob}\n" for each in files)
    answer = try_git(repo, "cat-file", "--batch", "--buffer", stdin=asked, timeout_s=TRANSFER_TIMEOUT_S)
    out, at = answer.out.encode("utf-8", "surrogateescape"), 0
    for each in files:
        line = f"{each.blob} blob {each.bytes}\n".encode()
        if answer.code != 0 or not out.startswith(line, at):
            why = answer.last_word if answer.code != 0 else "the repository lacks it"
            raise CheckoutError(f"{repo}: {printable(each.path)[:200]} cannot be read: {why}; see git fsck")
        at += len(line)
        yield out[at : at + each.bytes]
        at += each.bytes + 1
