"""Artifacts of hostile jobs: only a complete session is read from them."""

import json
import stat
import struct
import zipfile
from collections.abc import Callable

import pytest

from regbot.github import artifact
from regbot.github.artifact import MEMBER, read_artifact
from regbot.records.files import RecordError
from support.forge_refresh_cases import zipped
from support.timed_builder import HEADER, session_of, statics


def session_text() -> bytes:
    return "".join(record.to_line() for record in (HEADER, *statics())).encode()


def linked() -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo("../session.jsonl")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


def encrypted() -> bytes:
    """Return an archive whose flag claims encryption."""
    data = bytearray(zipped((MEMBER, session_text())))
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = data.index(signature) + at
        data[place : place + 2] = struct.pack("<H", 1)
    return bytes(data)


def claiming_less(size: int) -> bytes:
    """Return an archive whose directory claims ``size`` unpacked bytes."""
    data = bytearray(zipped((MEMBER, b" " * 1000)))
    for signature, at in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        place = data.index(signature) + at
        data[place : place + 4] = struct.pack("<I", size)
    return bytes(data)


def edited(edit: Callable[[dict[str, object]], object]) -> bytes:
    document = json.loads(HEADER.to_json())
    edit(document)
    return json.dumps(document).encode() + b"\n"


def test_the_session_in_an_artifact_is_read_unchanged() -> None:
    session = read_artifact(zipped((MEMBER, session_text())), "artifact 7")
    assert session == session_of([])


HOSTILE: dict[str, tuple[bytes, str]] = {
    "no zip": (b"PK but not really", "is not a zip archive that can be read"),
    "no member": (zipped(), "must contain only the file session.jsonl, but contains 0 files"),
    "another name": (zipped(("verdict.json", b"{}")), "must contain only the file session.jsonl"),
    "a way out": (zipped(("../session.jsonl", b"{}")), "must contain only the file session.jsonl"),
    "a link": (zipped((linked(), b"/etc/passwd")), "must contain only the file session.jsonl"),
    "two members": (zipped((MEMBER, session_text()), ("more", b"")), "but contains 2 files"),
    "encrypted": (encrypted(), "is encrypted, or compressed with another method"),
    "another method": (zipped((MEMBER, session_text()), method=zipfile.ZIP_LZMA), "another method than deflate"),
    "too long by its own word": (claiming_less(10), "is not a zip archive that can be read"),
    "an empty member": (zipped((MEMBER, b"")), "is empty: nothing was recorded"),
    "cut off": (zipped((MEMBER, session_text()[:-1])), "ends in the middle of a line; the job was cut off"),
    "deep": (zipped((MEMBER, b"[" * 100_000 + b"\n")), "session.jsonl:1: is nested too deeply"),
    "NaN": (zipped((MEMBER, edited(lambda d: d.update(budget_min=float("nan"))))), "NaN is not a number"),
    "a key twice": (zipped((MEMBER, b'{"schema": "a", "schema": "b"}\n')), "the key 'schema' appears twice"),
    "a key too many": (zipped((MEMBER, edited(lambda d: d.update(verdict="PASS")))), "verdict: Extra inputs"),
    "another schema": (zipped((MEMBER, edited(lambda d: d.update(schema="regbot/run@1")))), "schema: Input should be"),
    "a header twice": (zipped((MEMBER, HEADER.to_line().encode() * 2)), "session.jsonl:2: "),
    "a long text": (zipped((MEMBER, edited(lambda d: d.update(created="x" * 10**6)))), "created: String should have"),
}  # fmt: skip


@pytest.mark.parametrize(("archive", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_an_archive_without_exactly_one_complete_session_is_refused_with_the_reason(
    archive: bytes, reason: str
) -> None:
    with pytest.raises(RecordError) as caught:
        read_artifact(archive, "artifact 7")
    assert str(caught.value).startswith("artifact 7: ")
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_zip_bomb_is_refused_while_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "MAX_SESSION_BYTES", 10**6)
    with pytest.raises(RecordError, match=r"unpacks to more than 1,000,000 bytes"):
        read_artifact(zipped((MEMBER, b" " * 10**7)), "artifact 7")


BOMBS = {
    "numbers": lambda text: text.replace('"@"', ",".join(["1"] * 4_000_000)),
    "empty objects": lambda text: text.replace('"@"', ",".join(["{}"] * 500_000)),
    "short texts": lambda text: text.replace('"@"', ",".join(['"x"'] * 2_000_000)),
    "long texts": lambda text: text.replace('"@"', ",".join([f'"{"x" * 3000}"'] * 10_000)),
    "spaces": lambda text: text.replace('"@"', " " * 50_000_000),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_small_archive_does_not_unpack_to_millions_of_values(
    monkeypatch: pytest.MonkeyPatch, bomb: Callable[[str], str]
) -> None:
    monkeypatch.setattr(artifact, "parse_session", lambda *_: pytest.fail("it was parsed"))
    text = bomb(HEADER.model_copy(update={"warnings": ["@"]}).to_line()).encode()
    archive = zipped((MEMBER, text + session_text().partition(b"\n")[2]))
    assert len(archive) < 80_000
    with pytest.raises(RecordError, match="unpacks to more values than any record of its size"):
        read_artifact(archive, "artifact 7")


def test_an_archive_of_thousands_of_files_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = zipped(*((f"{number}", b"") for number in range(2000)))
    monkeypatch.setattr(zipfile, "ZipFile", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(RecordError, match=r"must contain only the file session.jsonl, but contains many files"):
        read_artifact(archive, "artifact 7")


def test_an_archive_above_the_limit_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "MAX_ARCHIVE_BYTES", 100)
    with pytest.raises(RecordError, match=r"more than the 100 it may have"):
        read_artifact(zipped((MEMBER, session_text())), "artifact 7")


def test_too_many_lines_are_refused_before_they_are_parsed() -> None:
    with pytest.raises(RecordError, match=r"has 10,001 lines, more than the 10,000 of any session"):
        read_artifact(zipped((MEMBER, b"\n" * 10_001)), "artifact 7")
