"""Hostile JSON is refused before a model sees it, and a model stops at the first error of a list."""

import json
import tracemalloc
from typing import Any

import pydantic
import pytest

from regbot.records.files import MAX_DEPTH, MAX_ITEMS, MAX_KEYS, RecordError, estimate_memory, parse_record
from regbot.records.ledger import Ledger, Program
from regbot.records.run import FileLines, Run
from regbot.records.session import SessionHeader
from support.ledger_builder import smoke_ledger
from support.timed_builder import HEADER, noisy, play


def with_text(record: pydantic.BaseModel, name: str, text: str) -> bytes:
    """Return the record with ``text`` as the value of one field."""
    document = {**json.loads(record.model_dump_json(by_alias=True)), name: "@"}
    return json.dumps(document).replace('"@"', text, 1).encode()


def repeated(item: str, count: int) -> str:
    return f"[{','.join([item] * count)}]"


def keys(count: int, value: str = "1") -> str:
    return "{" + ",".join(f'"k{number}":{value}' for number in range(count)) + "}"


LEDGER = smoke_ledger()
RUN = play(noisy(1.0, 0.002))[0]
INVALID_LISTS: dict[str, tuple[type[Any], bytes]] = {
    "numbers for texts": (SessionHeader, with_text(HEADER, "warnings", repeated("1", 90_000))),
    "texts for numbers": (Run, with_text(RUN, "loss", repeated('"x"', 90_000))),
    "entries": (Run, with_text(RUN, "ledger", '{"entries": ' + repeated('{"kind": 1}', 90_000) + "}")),
    "ranks of a hang": (Run, with_text(RUN, "hang", '{"text": "", "ranks": ' + repeated("{}", 60_000) + "}")),
}


@pytest.mark.parametrize(("model", "data"), INVALID_LISTS.values(), ids=INVALID_LISTS)
def test_validation_of_a_list_stops_at_its_first_invalid_item(model: type[Any], data: bytes) -> None:
    with pytest.raises(RecordError) as caught:
        parse_record(data, model, "it")
    assert isinstance(caught.value.__cause__, pydantic.ValidationError)
    assert caught.value.__cause__.error_count() < 20


REFUSED = {
    "many values": (repeated("1", 4_000_000), "with more values than a record may have; it was not read"),
    "a long text": (f'"{"x" * 70_000_000}"', "with more values than a record may have"),
    "a long list": (repeated("1", MAX_ITEMS + 1), "has a list of more than 100,000 items"),
    "many keys": (keys(MAX_KEYS + 1), "an object has 20,001 keys, more than the 20,000 of any record"),
    "a key twice among many": (keys(MAX_KEYS - 1)[:-1] + ',"k7":1}', "the key 'k7' appears twice"),
    "deep lists": ("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2), "is nested too deeply"),
    "deeper than Python": ("[" * 10**6, "is nested too deeply"),
    "a number of many digits": ("9" * 100_000, "Exceeds the limit"),
    "an infinite number": ("[1e999]", "1e999 is not a number that a record may hold"),
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED)
def test_hostile_json_is_refused_before_a_model_sees_it(
    monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    monkeypatch.setattr(Ledger, "model_validate_json", lambda *_: pytest.fail("the model saw it"))
    with pytest.raises(RecordError) as caught:
        parse_record(text.encode(), Ledger, "it")
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("field", ["peak_rss_bytes", "exit_code", "wall_s"])
def test_an_integer_beyond_64_bits_is_refused(field: str) -> None:
    with pytest.raises(RecordError, match=f"^it: {field}: Input should be"):
        parse_record(with_text(RUN, field, "-" + "9" * 400), Run, "it")


HUGE = {"flop_class": "matmul", "dtype": "x", "phase": "forward", "where": "", "flops": 0, "bytes": 0, "launches": 0}
WAIT = {"kind": "read", "phase": "forward", "where": "", "count": 2**53}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"recomputed_flops": 5}, "recomputed_flops is more than flops"),
        ({"rows": [{**HUGE, "recomputed_flops": 5}]}, "recomputed_flops is more than flops"),
        ({"rows": [{**HUGE, "flops": 2**53}] * 2, "flops": 2**53}, "the sum of flops is more"),
        ({"rows": [{**HUGE, "launches": 1}]}, "the sum of launches is more"),
        ({"rows": [{**HUGE, "bytes": 1}]}, "the sum of bytes is more"),
        ({"waits": [WAIT, WAIT]}, "the sum of waits is more"),
        ({"without_formula": {"a": 2**53, "b": 1}}, "the sum of without_formula is more"),
    ],
)
def test_a_program_whose_parts_are_more_than_the_whole_is_refused(changes: dict[str, Any], reason: str) -> None:
    totals = {"flops": 0, "flops_by": {}, "bytes_moved": 0, "launches": 0, "peak_bytes": 0}
    parse_record(json.dumps(totals).encode(), Program, "it")
    with pytest.raises(RecordError, match=reason):
        parse_record(json.dumps({**totals, **changes}).encode(), Program, "it")


@pytest.mark.parametrize("lines", ["[[1]]", "[[1, 2, 3]]"])
def test_a_range_of_lines_has_two_ends(lines: str) -> None:
    with pytest.raises(RecordError, match="ran"):
        parse_record(f'{{"ran": {lines}, "idle": []}}'.encode(), FileLines, "it")


@pytest.mark.parametrize("text", [f'{{"{"x" * 100_001}": 1}}', f'{{"a": "{"x" * 100_001}"}}'], ids=["key", "value"])
def test_a_text_without_a_limit_of_its_own_has_one(text: str) -> None:
    ledger = with_text(LEDGER, "config", text)
    with pytest.raises(RecordError, match="String should have at most 100000 characters"):
        parse_record(ledger, Ledger, "it")


def test_the_memory_of_a_ledger_is_estimated_within_a_factor() -> None:
    """The limits of archives rely on the estimate."""
    data = with_text(LEDGER, "entries", repeated(LEDGER.entries[0].model_dump_json(), 2000))
    tracemalloc.start()
    ledger = Ledger.model_validate_json(data)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(ledger.entries) == 2000
    assert size < estimate_memory(data) < 3 * size
