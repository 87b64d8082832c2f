"""Read the session file that a job uploaded after it ran a pull request's code. The file is read into memory only.

The pull request's code may have changed the uploaded file. The artifact must therefore contain exactly one file, with a
fixed name and limited size. The result is a session or an error.
"""

from regbot.github.archive import read_single_file
from regbot.records.files import RecordError
from regbot.records.session import Session, parse_session

ARTIFACT = "regbot-session"
"""Name of the uploaded artifact."""
MEMBER = "session.jsonl"
"""Name of the only file in the artifact."""
MAX_ARCHIVE_BYTES = 32 * 1024 * 1024
"""Size limit of the zip archive."""
MAX_SESSION_BYTES = 128 * 1024 * 1024
"""Size limit of the unpacked session. A session of twelve pairs with 64 ranks has about 20 MB."""
MAX_LINES = 10_000
"""Largest number of lines in a session file. The file has one line for the header and one for each run."""


def read_artifact(archive: bytes, origin: str) -> Session:
    """Return the session in a zip ``archive``. ``origin`` names the archive in errors. Raises RecordError."""
    content = read_single_file(archive, MEMBER, MAX_SESSION_BYTES, origin, MAX_ARCHIVE_BYTES)
    *lines, rest_after_last_newline = content.split(b"\n")
    if rest_after_last_newline:
        raise RecordError(f"{origin}: {MEMBER} ends in the middle of a line", "the job was cut off: run it again")
    if len(lines) > MAX_LINES:
        raise RecordError(f"{origin}: {MEMBER} has {len(lines):,} lines, more than the {MAX_LINES:,} of any session")
    return parse_session(enumerate(lines, start=1), f"{origin}: {MEMBER}")
