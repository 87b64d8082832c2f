"""Records: strict on the way in, atomic on the way out, with schemas that are generated and never drift."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from regbot.records.files import RecordError, append_line, parse_record, read_record, write_record
from regbot.records.ledger import Ledger
from regbot.records.run import Arm, RawRun
from regbot.records.schema_files import schema_text
from regbot.records.session import SessionHeader, read_session
from regbot.records.verdict import (
    EXIT_CODES,
    RoleCounts,
    Sharding,
    Status,
    Throughput,
    Validity,
    WorkloadVerdict,
    compute_overall_status,
)
from support.ledger_builder import entry

ENTRY = entry(size=268435456, count=2)
LEDGER = Ledger(source="dispatch-mode", scope="step", steps=1, world_size=16, entries=[ENTRY])
ARM = Arm(name="base", revision="main", commit="a" * 40, tree="b" * 40)


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    write_record(tmp_path / "ledger.json", LEDGER)
    assert read_record(tmp_path / "ledger.json", Ledger) == LEDGER
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.json"], "no temporary file stays"


def test_a_record_satisfies_its_printed_schema() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(schema_text("ledger@1")))
    validator.validate(json.loads(LEDGER.to_json()))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**json.loads(LEDGER.to_json()), "extra": 1})


BAD: dict[str, tuple[Callable[[str], str], str]] = {
    "nan": (lambda text: text.replace('"bytes":268435456', '"bytes":NaN'), "NaN is not a number"),
    "duplicate_key": (lambda text: text.replace('"steps":1', '"steps":1,"steps":2'), "'steps' appears twice"),
    "unknown_key": (lambda text: text.replace('"steps":1', '"steps":1,"stepz":2'), "stepz"),
    "wrong_type": (lambda text: text.replace('"steps":1', '"steps":"1"'), "steps"),
    "negative_bytes": (lambda text: text.replace('"bytes":268435456', '"bytes":-1'), "bytes"),
    "huge_integer": (lambda text: text.replace('"bytes":268435456', '"bytes":' + "9" * 6000), "not valid JSON"),
    "unknown_kind": (lambda text: text.replace("all_to_all", "all_to_some"), "kind"),
    "other_schema": (lambda text: text.replace("ledger@1", "ledger@2"), "schema"),
    "group_of_one": (lambda text: text.replace('"group_size":16', '"group_size":1'), "group_size"),
    "too_deep": (lambda _: "[" * 100_000, "nested too deeply"),
    "torn": (lambda text: text[: len(text) // 2], "not valid JSON"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_record_is_refused_with_the_reason(fault: str) -> None:
    spoil, reason = BAD[fault]
    with pytest.raises(RecordError, match="the-file") as caught:
        parse_record(spoil(LEDGER.to_line()).encode(), Ledger, "the-file")
    assert reason in str(caught.value)


def test_a_record_of_100_mb_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)  # sparse: it costs no disk
    with pytest.raises(RecordError, match=r"104,857,600 bytes.*was not read"):
        read_record(path, RawRun)


def test_links_and_pipes_are_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecordError, match="cannot be read"):
        read_record(tmp_path / "link", Ledger)
    with pytest.raises(RecordError, match="not a regular file"):
        read_record(tmp_path / "pipe", Ledger)
    with pytest.raises(RecordError, match="cannot be read"):
        read_record(tmp_path / "missing", Ledger)


def test_a_torn_last_line_of_a_session_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    header = SessionHeader(regbot="0", created="2026-01-01T00:00:00+00:00", base=ARM, head=ARM, workloads=["w"])
    append_line(path, header)
    with path.open("a") as file:
        file.write('{"schema": "regbot/run@1", "arm"')
    assert read_session(path).runs == []
    path.write_text("")
    with pytest.raises(RecordError, match="nothing was recorded"):
        read_session(path)


def _entry(sharding: Status | None, throughput: Status | None, validity: Status) -> WorkloadVerdict:
    roles = RoleCounts(payload=0, control=0)
    return WorkloadVerdict(
        name="w",
        sharding=Sharding(status=sharding, reasons=[], source="s", base={"all_to_all": roles}) if sharding else None,
        throughput=Throughput(status=throughput, reasons=[]) if throughput else None,
        validity=Validity(status=validity, reasons=[]),
    )


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([("PASS", None, "PASS")], "PASS"),
        ([("PASS", "PASS", "PASS"), ("FAIL", None, "INVALID")], "FAIL"),
        ([("PASS", None, "FAIL"), (None, None, "INVALID")], "FAIL"),
        ([("PASS", "FAIL", "PASS"), (None, None, "INVALID")], "INVALID"),
        ([("REVIEW", "FAIL", "PASS")], "FAIL"),
        ([("REVIEW", "INCONCLUSIVE", "PASS")], "REVIEW"),
        ([("PASS", "INCONCLUSIVE", "PASS")], "INCONCLUSIVE"),
        ([(None, None, "PASS")], "INVALID"),
        ([], "INVALID"),
    ],
)
def test_the_gravest_section_decides_the_overall_status(
    entries: list[tuple[Status | None, Status | None, Status]], expected: Status
) -> None:
    assert compute_overall_status(_entry(*entry) for entry in entries) == expected


def test_exit_codes_are_the_published_ones() -> None:
    assert EXIT_CODES == {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3, "INVALID": 4, "REVIEW": 5}
