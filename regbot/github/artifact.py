"""Read the session file that a job uploaded after it ran a pull request's code. The file is read into memory only.

The pull request's code may have changed the uploaded file. The artifact must therefore contain exactly one file, with a
fixed name and limited size. The result is a session or an error.
"""

from regbot.github.archive import read_single_file
from regbot.records.files import RecordError, split_lines
from regbot.records.session import Session, parse_session

ARTIFACT = "regbot-session"
MEMBER = "session.jsonl"
"""Name of the only file in the artifact."""
MAX_ARCHIVE_BYTES = 128 * 1024 * 1024
MAX_SESSION_BYTES = 1024**3
"""Size limit of the unpacked session. A session of 20 workloads, each with 48 pairs and a full ledger in every run, has
about 250 MB."""
MAX_LINES = 10_000
"""Largest number of lines in a session file. The file has one line for the header and one for each run."""


def read_artifact(archive: bytes, origin: str) -> Session:
    """Return the session in a zip ``archive``. ``origin`` names the archive in errors. Raises RecordError."""
    content = read_single_file(archive, MEMBER, MAX_SESSION_BYTES, origin, MAX_ARCHIVE_BYTES)
    if content and not content.endswith(b"\n"):
        raise RecordError(f"{origin}: {MEMBER} ends in the middle of a line", "the job was cut off: run it again")
    if (lines := content.count(b"\n")) > MAX_LINES:
        raise RecordError(f"{origin}: {MEMBER} has {lines:,} lines, more than the {MAX_LINES:,} of any session")
    return parse_session(split_lines(content), f"{origin}: {MEMBER}")
