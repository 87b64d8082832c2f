"""The Flight Recorder reader: a real dump, NCCL's form of it, what the ring lost, and pickles."""

import json
import pickle
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from regbot.ledgers.readers import ReadError, Source, flight_recorder
from regbot.records.ledger import Ledger

REAL = Path(__file__).parents[1] / "dumps" / "flight_recorder_gloo.json"
NCCL = {
    "version": "2.10",
    "comm_lib_version": "2.30.4",
    "pg_config": {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"},
        "5": {"name": "5", "desc": "mesh_ep", "ranks": "[0, 1, 2, 3]"},
        "6": {"name": "6", "desc": "mesh_tp", "ranks": "[0]"},
        "7": {"name": "7", "desc": "undefined", "ranks": "[0, 4]"},
    },
    "pg_status": {"0": {"last_enqueued_collective": "3"}},
}


def entry(record: int, pg: str, name: str, seq: int, shape: list[list[int]], **more: Any) -> dict[str, Any]:
    descriptions = {"0": "default_pg", "5": "mesh_ep", "6": "mesh_tp", "7": "undefined"}
    return {
        "record_id": record,
        "pg_id": int(pg),
        "process_group": [pg, descriptions[pg]],
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": name,
        "input_sizes": shape,
        "input_dtypes": ["BFloat16"] * len(shape),
        "output_sizes": shape,
        "output_dtypes": ["BFloat16"] * len(shape),
        "state": "completed",
        "is_p2p": False,
        "retired": True,
        "timeout_ms": 600000,
        "thread_name": "python",
        **more,
    }


def read(tmp_path: Path, entries: list[dict[str, Any]], **more: Any) -> Ledger:
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({**NCCL, "entries": entries, **more}))
    return flight_recorder.read(Source(path))


def summarize(ledger: Ledger) -> set[tuple[Any, ...]]:
    fields = attrgetter("kind", "axis", "group_size", "dtype", "role", "count", "bytes")
    return set(map(fields, ledger.entries))


def test_a_dump_that_torch_wrote_is_counted_call_by_call() -> None:
    ledger = flight_recorder.read(Source(REAL))
    assert summarize(ledger) == {
        ("all_to_all", "ep", 2, "float32", "payload", 3, 3 * 8 * 16 * 4),
        ("all_to_all", "ep", 2, "int64", "control", 3, 3 * 2 * 8),
        ("all_reduce", "pg 0", 2, "float32", "payload", 6, 6 * 512),
        ("all_gather", "pg 0", 2, "float32", "payload", 3, 3 * 2 * 512),
        ("broadcast", "pg 0", 2, "float32", "payload", 3, 3 * 512),
        ("barrier", "pg 0", 2, "none", "control", 3, 0),
    }
    assert (ledger.source, ledger.scope, ledger.steps) == ("flight-recorder", "whole", 1)
    assert {ledger_entry.via for ledger_entry in ledger.entries} == {"gloo"}


def test_groups_have_the_axis_that_describes_them_else_their_ranks(tmp_path: Path) -> None:
    ledger = read(
        tmp_path,
        [
            entry(0, "5", "nccl:all_to_all", 1, [[8, 4]]),
            entry(1, "0", "nccl:_all_gather_base", 1, [[8, 4]], output_sizes=[[64, 4]]),
            entry(2, "7", "nccl:_reduce_scatter_base", 1, [[8, 4]], output_sizes=[[4, 4]]),
            entry(3, "6", "nccl:all_reduce", 1, [[8, 4]]),
        ],
    )
    assert summarize(ledger) == {
        ("all_to_all", "ep", 4, "bfloat16", "payload", 1, 64),
        ("all_gather", "[0-7]", 8, "bfloat16", "payload", 1, 512),
        ("reduce_scatter", "[0,4]", 2, "bfloat16", "payload", 1, 64),
    }
    assert (ledger.world_size, ledger.axes["ep"].ranks) == (8, [0, 1, 2, 3])


def test_calls_of_the_autograd_thread_are_backward(tmp_path: Path) -> None:
    ledger = read(tmp_path, [entry(0, "0", "nccl:all_reduce", 1, [[8]], thread_name="pt_autograd_0")])
    assert [ledger_entry.phase for ledger_entry in ledger.entries] == ["backward"]


def test_a_coalesced_group_is_its_members_and_not_one_more(tmp_path: Path) -> None:
    calls = [entry(0, "0", "nccl:send 0->1", 1, [[8]], is_p2p=True), entry(1, "0", "nccl:coalesced", 1, [])]
    ledger = read(tmp_path, calls)
    assert [(ledger_entry.kind, ledger_entry.count, ledger_entry.bytes) for ledger_entry in ledger.entries] == [
        ("send_recv", 1, 16)
    ]
    assert ledger.unclassified == []


def test_calls_that_the_ring_lost_before_the_dump_are_reported(tmp_path: Path) -> None:
    ledger = read(tmp_path, [entry(1000 + i, "0", "nccl:all_reduce", 50 + i, [[8]]) for i in range(3)])
    assert any("the ring lost 1,000 calls before the 3 that it kept" in guess for guess in ledger.guesses)


def test_gaps_in_sequence_numbers_are_reported_as_missing_calls(tmp_path: Path) -> None:
    ledger = read(tmp_path, [entry(i, "0", "nccl:all_reduce", seq, [[8]]) for i, seq in enumerate((1, 2, 6))])
    assert any("3 calls are missing" in guess for guess in ledger.guesses)


@pytest.mark.parametrize(
    ("name", "more", "rank", "warning"),
    [
        ("dump_1.json", {"rank": 3}, 3, ""),
        (
            "dump.json",
            {"nccl_comm_state": {"a": {"rank": "5", "nRanks": "8"}, "b": {"rank": "1", "nRanks": "4"}}},
            5,
            "",
        ),
        ("nccl_trace_rank_3", {}, 3, "rank 3 is the number in the file's name"),
        ("rank7.of8.json", {}, 7, "rank 7 is the number in the file's name"),
        ("dump_20251121.json", {}, 0, "rank 0 is assumed"),
        ("dump.json", {}, 0, "rank 0 is assumed"),
    ],
)
def test_the_rank_is_that_of_the_dump_else_that_of_the_files_name(
    tmp_path: Path, name: str, more: dict[str, Any], rank: int, warning: str
) -> None:
    path = tmp_path / name
    path.write_text(json.dumps({**NCCL, "entries": [entry(0, "0", "nccl:all_reduce", 1, [[8]])], **more}))
    ledger = flight_recorder.read(Source(path))
    assert ledger.rank == rank
    assert ledger.warnings == [] if not warning else warning in ledger.warnings[0]


def test_text_that_no_record_can_hold_is_left_out_of_the_ledger(tmp_path: Path) -> None:
    """A name that no table has is reported, not counted."""
    odd = entry(0, "0", "nccl:all_reduce", 1, [[8]], process_group=["9\ud800", "mesh_\udfffep\x1b[31m"])
    unknown = entry(1, "0", "nccl:\ud800?", 2, [[8]], input_dtypes=["Float\ud800"])
    ledger = read(tmp_path, [odd, unknown])
    assert [ledger_entry.axis for ledger_entry in ledger.entries] == ["ep"]
    assert [unclassified.name for unclassified in ledger.unclassified] == ["nccl:?"]
    assert Ledger.model_validate_json(ledger.to_json()) == ledger


def test_an_element_type_of_unknown_width_leaves_bytes_unknown_and_says_so(tmp_path: Path) -> None:
    ledger = read(tmp_path, [entry(0, "0", "nccl:all_reduce", 1, [[8]], input_dtypes=["Float4_e2m1fn_x2"])])
    assert [ledger_entry.bytes for ledger_entry in ledger.entries] == [0]
    assert any("calls are unknown and shown as 0" in guess for guess in ledger.guesses)


def test_a_pickle_is_refused_unopened_with_how_to_get_json(tmp_path: Path) -> None:
    class Explodes:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("the pickle was opened",))

    for protocol in (2, 4, 5):
        path = tmp_path / "dump.pickle"
        path.write_bytes(pickle.dumps({"entries": [Explodes()]}, protocol=protocol))
        assert flight_recorder.recognises(Source(path).head)
        with pytest.raises(ReadError, match=r"dump\.pickle: is a pickle.*never opens pickles.*_dump_nccl_trace_json"):
            flight_recorder.read(Source(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"version": "2.10", "pg_status": {}, "entries": []}', "has no entries.*TORCH_FR_BUFFER_SIZE"),
        ('{"entries": [{"profiling_name": "nccl:x", "record_id": 1, "record_id": 2}]}', "'record_id' appears twice"),
        ('{"entries": [{"profiling_name": "nccl:all_red', "not valid JSON.*copy it again"),
        ('{"entries": [1]}', "an entry without profiling_name"),
    ],
)
def test_what_is_no_usable_dump_is_refused_with_what_to_do(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "dump.json"
    path.write_text(text)
    with pytest.raises(ReadError, match=rf"dump\.json: .*({message})"):
        flight_recorder.read(Source(path))
