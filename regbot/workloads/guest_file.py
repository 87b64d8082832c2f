"""Opens files that a guest wrote beside its record, after checks that make them safe to read."""

import stat
from pathlib import Path

from regbot.ledgers.readers import Source


class GuestFileError(Exception):
    """A file of the guest cannot be used. The message names the file and the reason."""


def open_guest_file(path: Path, max_bytes: int, max_expanded_bytes: int | None = None) -> Source:
    """Return the file at ``path`` for a reader of ledgers.

    Raises GuestFileError if it is not a regular file, has other hard links, or has more than ``max_bytes``. The
    returned source refuses more than ``max_expanded_bytes`` after decompression; None means ``max_bytes``.
    """
    try:
        status = path.lstat()
    except OSError as error:
        raise GuestFileError(f"{path.name}: named in the record, but it cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise GuestFileError(f"{path.name}: is a link or no regular file; it was not read")
    if status.st_size > max_bytes:
        raise GuestFileError(
            f"{path.name}: {status.st_size:,} bytes, more than the {max_bytes:,} of local.max_record_mb"
        )
    return Source(path, max_expanded_bytes or max_bytes)
