"""Read the only file of an artifact's zip archive into memory. An archive with further files is refused, and nothing is
written to disk.

The archive's own statement of its sizes is not trusted. Bytes are counted while they are read, and also the memory that
the records in them would take, because a few kilobytes of an archive can unpack to millions of values.
"""

import io
import zipfile
import zlib

from regbot.records.files import RecordError, estimate_memory
from regbot.records.text.words import count

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


def read_single_file(
    archive: bytes, name: str, max_bytes: int, origin: str, max_packed_bytes: int | None = None
) -> bytes:
    """Return the content of the file ``name``, which must be the only file in the zip ``archive``. Raises RecordError.

    The unpacked file may have at most ``max_bytes``. The archive itself may have at most ``max_packed_bytes``; None
    means that its limit is ``max_bytes`` too. Error messages call the archive ``origin``.
    """
    if max_packed_bytes is None:
        max_packed_bytes = max_bytes
    if len(archive) > max_packed_bytes:
        raise RecordError(
            f"{origin}: {len(archive):,} bytes, more than the {max_packed_bytes:,} it may have", "it was not read"
        )
    if archive.count(b"PK\x01\x02") > MAX_SIGNATURES:
        raise RecordError(f"{origin}: must contain only the file {name}, but contains many files")
    further_bytes = max(0, len(archive) - SMALL_ARCHIVE_BYTES)
    max_memory = min(MAX_MEMORY, SMALL_ARCHIVE_MEMORY + MEMORY_PER_BYTE * further_bytes)
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as zip_file:
            entries = zip_file.infolist()
            if [entry.filename for entry in entries] != [name]:
                files = count(len(entries), "file")
                raise RecordError(f"{origin}: must contain only the file {name}, but contains {files}")
            (entry,) = entries
            if entry.flag_bits & _ENCRYPTED_FLAG or entry.compress_type not in _METHODS:
                raise RecordError(f"{origin}: {name} is encrypted, or compressed with another method than deflate")
            chunks: list[bytes] = []
            size = memory = 0
            with zip_file.open(entry) as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    size += len(chunk)
                    if size > max_bytes:
                        raise RecordError(
                            f"{origin}: {name} unpacks to more than {max_bytes:,} bytes", "it was not read"
                        )
                    memory += estimate_memory(chunk)
                    if memory > max_memory:
                        raise RecordError(
                            f"{origin}: {name} unpacks to more values than any record of its size", "it was not read"
                        )
                    chunks.append(chunk)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError) as error:
        raise RecordError(f"{origin}: is not a zip archive that can be read") from error
    return b"".join(chunks)
