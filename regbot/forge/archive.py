"""One file out of an artifact's zip archive, into memory: nothing is unpacked, and nothing but it may be in there.

What the archive says of sizes is not believed: bytes are counted while they are read.
"""

import io
import zipfile
import zlib

from regbot.records.files import RecordError

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1
_CHUNK = 1024 * 1024


def only_member(archive: bytes, name: str, most_bytes: int, origin: str, most_packed: int | None = None) -> bytes:
    """The bytes of ``name``, the one member of ``archive``; ``origin`` names it in errors. Raises RecordError.

    ``most_packed``: bytes of the archive at most; default: as many as unpacked.
    """
    most_packed = most_bytes if most_packed is None else most_packed
    if len(archive) > most_packed:
        raise RecordError(
            f"{origin}: {len(archive):,} bytes, more than the {most_packed:,} it may have; it was not read"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            entries = opened.infolist()
            if [entry.filename for entry in entries] != [name]:
                raise RecordError(f"{origin}: must hold {name} and nothing else, and holds {len(entries)} files")
            (entry,) = entries
            if entry.flag_bits & _ENCRYPTED or entry.compress_type not in _METHODS:
                raise RecordError(f"{origin}: {name} is encrypted, or packed in another way than deflate")
            parts: list[bytes] = []
            size = 0
            with opened.open(entry) as stream:
                while part := stream.read(_CHUNK):
                    size += len(part)
                    if size > most_bytes:
                        raise RecordError(
                            f"{origin}: {name} unpacks to more than {most_bytes:,} bytes; it was not read"
                        )
                    parts.append(part)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError) as error:
        raise RecordError(f"{origin}: is not a zip archive that can be read") from error
    return b"".join(parts)
