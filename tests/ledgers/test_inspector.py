"""The NCCL Inspector reader: sizes as NCCL means them, and everything that the log leaves out."""

import json
from pathlib import Path
from typing import Any

import pytest

from regbot.ledgers.readers import ReadError, Source, inspector
from regbot.records.ledger import Ledger

LOG = Path(__file__).parents[1] / "dumps" / "inspector.jsonl"


def line(coll: str, sn: int, size: int = 65536, **header: Any) -> dict[str, Any]:
    return {
        "header": {"id": "0xa", "rank": 0, "n_ranks": 8, "nnodes": 1, **header},
        "metadata": {"inspector_output_format_version": "v4.0", "hostname": "node-a", "pid": 1},
        "coll_perf": {"coll": coll, "coll_sn": sn, "coll_msg_size_bytes": size, "coll_exec_time_us": 61},
    }


def read(tmp_path: Path, *lines: dict[str, Any]) -> Ledger:
    path = tmp_path / "node-a-pid1.log"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return inspector.read(Source(path))


def summarize(ledger: Ledger) -> set[tuple[Any, ...]]:
    return {(entry.kind, entry.axis, entry.group_size, entry.count, entry.bytes) for entry in ledger.entries}


def test_sizes_are_multiplied_by_the_ranks_as_nccl_does() -> None:
    ledger = inspector.read(Source(LOG))
    everyone = "communicator of 8 ranks, no. 1"
    assert summarize(ledger) == {
        ("all_reduce", everyone, 8, 2, 2 * 65536),
        ("all_gather", everyone, 8, 1, 8 * 16384),
        ("reduce_scatter", everyone, 8, 1, 8 * 16384),
        ("all_gather", "ep", 4, 1, 4 * 8192),
        ("send_recv", "ep", 4, 1, 32768),
    }
    assert (ledger.source, ledger.scope, ledger.steps) == ("nccl-inspector", "whole", 1)


def test_a_log_without_small_messages_may_lack_token_counts_and_says_so(tmp_path: Path) -> None:
    assert any("8192 by default" in w for w in read(tmp_path, line("AllReduce", 0)).warnings)
    assert not any("8192 by default" in w for w in read(tmp_path, line("AllReduce", 0, 64)).warnings)


def test_gaps_in_the_sequence_numbers_of_a_function_are_missing_calls(tmp_path: Path) -> None:
    ledger = read(tmp_path, line("AllReduce", 3), line("AllGather", 40), line("AllReduce", 7))
    assert any(guess.startswith("3 collectives are missing") for guess in ledger.guesses)


def test_calls_that_the_ring_lost_are_reported(tmp_path: Path) -> None:
    stats = {**line("AllReduce", 0), "dump_stats": {"coll_dropped_total": 17, "p2p_dropped_total": 3}}
    del stats["coll_perf"]
    assert any("the ring lost 20 calls" in guess for guess in read(tmp_path, stats, line("AllReduce", 1)).guesses)


def test_a_line_that_repeats_a_collective_is_counted_once(tmp_path: Path) -> None:
    ledger = read(tmp_path, line("AllReduce", 0), line("AllReduce", 0))
    assert [entry.count for entry in ledger.entries] == [1]


def test_the_rank_is_that_in_the_largest_communicator(tmp_path: Path) -> None:
    small, large = line("AllReduce", 0, rank=1, n_ranks=4), line("AllReduce", 0, rank=5, id="0xb")
    ledger = read(tmp_path, small, large)
    assert ledger.rank == 5
    assert "rank 5 is the rank in the largest communicator, of 8 ranks" in ledger.warnings


def test_text_that_no_record_can_hold_is_left_out_of_the_ledger(tmp_path: Path) -> None:
    ledger = read(tmp_path, line("AllReduce", 0, comm_name="mesh_\ud800ep\x07"), line("New\udfff", 1))
    assert [entry.axis for entry in ledger.entries] == ["ep"]
    assert [unclassified.name for unclassified in ledger.unclassified] == ["New"]
    assert Ledger.model_validate_json(ledger.to_json()) == ledger


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (line("AllReduce", 1, rank=3), "line 2 is of another rank of the same communicator"),
        ({**line("AllReduce", 1), "metadata": {"hostname": "node-b", "pid": 1}}, "line 2 comes from another process"),
        ({"coll_perf": {}}, "line 2 belongs to no dump_stats line"),
        ({"version": 1}, "line 2 has no header"),
        (line("AllReduce", 1, n_ranks=0), "line 2 has no rank or no n_ranks"),
        ({**line("AllReduce", 1), "coll_perf": {"coll": "AllReduce"}}, "line 2 has no coll, coll_sn"),
    ],
)
def test_a_line_that_does_not_belong_is_refused_by_its_number(
    tmp_path: Path, second: dict[str, Any], message: str
) -> None:
    with pytest.raises(ReadError, match=message):
        read(tmp_path, line("AllReduce", 0), second)


def marker(records: int, **header: Any) -> dict[str, Any]:
    """The line that begins a dump of format 4.3: ``records`` lines without a header follow it."""
    stats = {"coll_records": records - 1, "p2p_records": 0, "coll_dropped_total": 2, "proxy_records": 1}
    return {**line("", 0, **header), "coll_perf": None, "dump_stats": stats}


def bare(coll: str, sn: int) -> dict[str, Any]:
    return {"coll_perf": line(coll, sn)["coll_perf"]}


PROXY = {"proxy_trace": {"record_type": "proxy_op", "parent_type": "coll", "parent_sn": 0, "rank": 0}}


def test_lines_without_a_header_belong_to_the_dump_that_begins_before_them(tmp_path: Path) -> None:
    first = [marker(3, comm_name="ep"), bare("AllGather", 0), PROXY, bare("AllGather", 1)]
    second = [marker(2, id="0xb", comm_name="dp", n_ranks=2), bare("AllReduce", 0), PROXY]
    ledger = read(tmp_path, *first, *second)
    assert summarize(ledger) == {("all_gather", "ep", 8, 2, 2 * 8 * 65536), ("all_reduce", "dp", 2, 1, 65536)}
    assert not any("missing" in guess for guess in ledger.guesses)
    assert any("the ring lost 4 calls" in guess for guess in ledger.guesses)


def test_a_dump_that_was_cut_lacks_calls_and_one_without_its_beginning_is_refused(tmp_path: Path) -> None:
    cut = read(tmp_path, marker(4), bare("AllGather", 0), marker(2, id="0xb"), bare("AllReduce", 0))
    assert any(guess.startswith("4 calls are missing") for guess in cut.guesses)
    with pytest.raises(ReadError, match="line 3 belongs to no dump_stats line before it"):
        read(tmp_path, marker(1), bare("AllGather", 0), bare("AllGather", 1))
