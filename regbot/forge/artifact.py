"""The session that crosses from a job that ran a pull request's code: one file, read in memory, never unpacked.

A job of a pull request uploads what it likes. Of its artifact exactly one member is read, under one name, up to a
limit. What comes out is a session or an error.
"""

from regbot.forge.archive import only_member
from regbot.records.files import RecordError
from regbot.records.session import Session, parse_session

NAME = "regbot-session"
"""Of the artifact."""
MEMBER = "session.jsonl"
MAX_ARCHIVE_BYTES = 32 * 1024 * 1024
MAX_SESSION_BYTES = 128 * 1024 * 1024
"""A session of twelve pairs with 64 ranks has some 20 MB."""
MAX_LINES = 10_000


def read_artifact(archive: bytes, origin: str) -> Session:
    """The session in a zip ``archive``; ``origin`` names it in errors. Raises RecordError."""
    lines = only_member(archive, MEMBER, MAX_SESSION_BYTES, origin, MAX_ARCHIVE_BYTES).split(b"\n")
    if lines.pop():
        raise RecordError(f"{origin}: {MEMBER} ends in the middle of a line; the job was cut off: run it again")
    if len(lines) > MAX_LINES:
        raise RecordError(f"{origin}: {MEMBER} has {len(lines):,} lines, more than the {MAX_LINES:,} of any session")
    return parse_session(enumerate(lines, start=1), f"{origin}: {MEMBER}")
