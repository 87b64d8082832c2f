"""Read the artifact of a job that ran a pull request's code: one file in a zip archive. It is read into memory only.

The pull request's code may have changed the uploaded file. The artifact must therefore contain exactly one file, with a
fixed name and limited size. The archive's own statement of its sizes is not trusted. Bytes are counted while they are
read, and also the memory that the records in them would take, because a few kilobytes of an archive can unpack to
millions of values.
"""

import io
import zipfile
import zlib
from collections.abc import Callable
from typing import TypeVar

from regbot.github.client import Forge, TooLargeError
from regbot.records.files import RecordError, estimate_memory, split_lines
from regbot.records.session import Session, parse_session
from regbot.records.text.words import count
from regbot.report.markdown import UntrustedText, Words

ARTIFACT = "regbot-session"
MEMBER = "session.jsonl"
"""Name of the only file in the artifact."""
MAX_ARCHIVE_BYTES = 128 * 1024 * 1024
MAX_SESSION_BYTES = 1024**3
"""Size limit of the unpacked session. A session of 20 workloads, each with 48 pairs and a full ledger in every run, has
about 250 MB."""
MAX_LINES = 10_000
"""Largest number of lines in a session file. The file has one line for the header and one for each run."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED_FLAG = 0x1
_CHUNK_BYTES = 1024 * 1024
MAX_SIGNATURES = 100
"""Each file of an archive has one signature in its directory. A few more can occur by chance in a large archive."""
SMALL_ARCHIVE_BYTES = 128 * 1024
SMALL_ARCHIVE_MEMORY = 112 * 1024 * 1024
MEMORY_PER_BYTE = 2048
"""Memory that the records of a larger archive may take for each further byte. Real ledgers take about 350."""
MAX_MEMORY = 12 * 1024**3

T = TypeVar("T")


class UnusableArtifact(Exception):
    """A run's artifact cannot be used. ``reason`` is a sentence in parts. Untrusted parts are ``UntrustedText``."""

    def __init__(self, *reason: str) -> None:
        super().__init__("".join(reason))
        self.reason: Words = reason


class ExpiredArtifact(UnusableArtifact):
    """GitHub has deleted a run's artifact because of its age."""


def read_newest_artifact(forge: Forge, run: int, name: str, max_bytes: int, read: Callable[[bytes], T]) -> T:
    """Download the newest artifact called ``name`` of a run and return ``read(archive)``.

    Raises ForgeError. Raises UnusableArtifact if the run has no usable artifact, or if ``read`` raises RecordError.
    """
    artifacts = [artifact for artifact in forge.artifacts(run, name) if artifact.name == name]
    if not artifacts:
        raise UnusableArtifact(f"the job uploaded no artifact {name}; its log says why")
    available_artifacts = [artifact for artifact in artifacts if not artifact.expired]
    if not available_artifacts:
        raise ExpiredArtifact(f"its artifact {name} has expired")
    try:
        return read(forge.download(available_artifacts[-1].id, max_bytes))  # artifacts are listed oldest first
    except TooLargeError as error:
        raise UnusableArtifact(f"its artifact has more than {max_bytes:,} bytes, and was not read") from error
    except RecordError as error:
        raise UnusableArtifact("the job's artifact cannot be read: ", UntrustedText(str(error))) from error


def read_artifact(archive: bytes, origin: str) -> Session:
    """Return the session in a zip ``archive``. ``origin`` names the archive in errors. Raises RecordError."""
    content = read_single_file(archive, MEMBER, MAX_SESSION_BYTES, origin, MAX_ARCHIVE_BYTES)
    if content and not content.endswith(b"\n"):
        raise RecordError(f"{origin}: {MEMBER} ends in the middle of a line", "the job was cut off: run it again")
    if (lines := content.count(b"\n")) > MAX_LINES:
        raise RecordError(f"{origin}: {MEMBER} has {lines:,} lines, more than the {MAX_LINES:,} of any session")
    return parse_session(split_lines(content), f"{origin}: {MEMBER}")


def read_single_file(
    archive: bytes, name: str, max_bytes: int, origin: str, max_packed_bytes: int | None = None
) -> bytes:
    """Return the content of the file ``name``, which must be the only file in the zip ``archive``. Raises RecordError.

    The unpacked file may have at most ``max_bytes``. The archive itself may have at most ``max_packed_bytes``; None
    means that its limit is ``max_bytes`` too. Error messages call the archive ``origin``.
    """
    max_packed_bytes = max_packed_bytes or max_bytes
    if len(archive) > max_packed_bytes:
        raise RecordError(f"{origin}: {len(archive):,} bytes, more than the {max_packed_bytes:,} it may have")
    if archive.count(b"PK\x01\x02") > MAX_SIGNATURES:
        raise RecordError(f"{origin}: must contain only the file {name}, but contains many files")
    further_bytes = max(0, len(archive) - SMALL_ARCHIVE_BYTES)
    max_memory = min(MAX_MEMORY, SMALL_ARCHIVE_MEMORY + MEMORY_PER_BYTE * further_bytes)
    content = io.BytesIO()
    memory = 0
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as zip_file:
            entries = zip_file.infolist()
            if [entry.filename for entry in entries] != [name]:
                files = count(len(entries), "file")
                raise RecordError(f"{origin}: must contain only the file {name}, but contains {files}")
            if entries[0].flag_bits & _ENCRYPTED_FLAG or entries[0].compress_type not in _METHODS:
                raise RecordError(f"{origin}: {name} is encrypted, or compressed with another method than deflate")
            with zip_file.open(entries[0]) as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    content.write(chunk)
                    if content.tell() > max_bytes:
                        raise RecordError(f"{origin}: {name} unpacks to more than {max_bytes:,} bytes")
                    memory += estimate_memory(chunk)
                    if memory > max_memory:
                        raise RecordError(f"{origin}: {name} unpacks to more values than any record of its size")
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError) as error:
        raise RecordError(f"{origin}: is not a zip archive that can be read") from error
    return content.getvalue()
