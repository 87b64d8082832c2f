"""The Nsight Systems reader: NCCL's ranges, the kernels beside them, and databases that are something else."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from regbot.ledgers.readers import ReadError, Source, nsys
from regbot.records.ledger import Ledger
from support.nsys_exports import export

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
DISPATCH = "void deep_ep::intranode::dispatch<8>()"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
EXCHANGE = ("ncclGroupStart", "ncclSend", "ncclRecv", "ncclSend", "ncclRecv", "ncclGroupEnd")
COMMUNICATOR = '{"NCCL communicator ID": 99, "No. of ranks": 8, "Rank": 0}'


def read(path: Path) -> Ledger:
    return nsys.read(Source(path))


def summarize(ledger: Ledger) -> set[tuple[Any, ...]]:
    return {(entry.kind, entry.axis, entry.group_size, entry.count, entry.bytes) for entry in ledger.entries}


def test_nccl_ranges_are_calls_except_those_of_administration(tmp_path: Path) -> None:
    calls = ["ncclCommInitRank", "ncclAllReduce", "ncclAllGather", "ncclAllReduce", "ncclReduceScatter", "ncclAlltoAll"]
    ledger = read(export(tmp_path / "a.sqlite", calls))
    assert {(entry.kind, entry.count) for entry in ledger.entries} == {
        ("all_reduce", 2),
        ("all_gather", 1),
        ("reduce_scatter", 1),
        ("all_to_all", 1),
    }
    assert (ledger.source, ledger.scope, ledger.steps) == ("nsys:nvtx", "whole", 1)
    assert "the number of steps in this recording is unknown" in ledger.guesses


def test_payloads_give_sizes_and_groups(tmp_path: Path) -> None:
    sized = '{"NCCL communicator ID": 99, "Message size [bytes]": 4096}'
    calls = [("ncclCommInitRank", COMMUNICATOR), ("ncclAllReduce", sized), ("ncclAllGather", sized)]
    ledger = read(export(tmp_path / "a.sqlite", calls))
    group = "communicator of 8 ranks"
    assert summarize(ledger) == {("all_reduce", group, 8, 1, 4096), ("all_gather", group, 8, 1, 8 * 4096)}
    assert not any("bytes are unknown" in guess for guess in ledger.guesses)


def test_grouped_sends_and_receives_are_one_all_to_all(tmp_path: Path) -> None:
    ledger = read(export(tmp_path / "a.sqlite", [*EXCHANGE, *EXCHANGE]))
    assert [(entry.kind, entry.count, entry.group_size) for entry in ledger.entries] == [("all_to_all", 2, 2)]
    assert any("2 groups of sends and receives" in warning for warning in ledger.warnings)


@pytest.mark.parametrize("transfers", [["ncclSend", "ncclRecv"], ["ncclSend", "ncclRecv", "ncclRecv"]])
def test_a_lone_send_stays_what_it_is(tmp_path: Path, transfers: list[str]) -> None:
    ledger = read(export(tmp_path / "a.sqlite", ["ncclGroupStart", *transfers, "ncclGroupEnd"]))
    assert [(entry.kind, entry.count) for entry in ledger.entries] == [("send_recv", len(transfers))]


def test_a_communicator_of_one_rank_communicates_with_nobody(tmp_path: Path) -> None:
    alone = [("ncclCommInitRank", COMMUNICATOR.replace("8", "1")), ("ncclAllReduce", COMMUNICATOR.replace("8", "1"))]
    with pytest.raises(ReadError, match="no communication was recorded"):
        read(export(tmp_path / "a.sqlite", alone))


def test_ranges_of_another_domain_that_look_alike_are_not_nccl(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite", ["ncclAllReduce"])
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) "
            "SELECT start, end, eventType, text, globalTid, 2 FROM NVTX_EVENTS WHERE eventType = 59"
        )
        database.commit()
    assert [entry.count for entry in read(path).entries] == [1]


def test_without_ranges_kernels_of_nccl_are_unclassified_and_those_of_dispatch_libraries_counted(
    tmp_path: Path,
) -> None:
    ledger = read(export(tmp_path / "a.sqlite", [], [(ALL_REDUCE, 0, 10), (SEND_RECV, 20, 30), (DISPATCH, 40, 50)]))
    assert ledger.source == "nsys:kernels"
    assert [(entry.kind, entry.count) for entry in ledger.entries] == [("all_to_all", 1)]
    assert [unclassified.count for unclassified in ledger.unclassified] == [2]


def test_kernels_of_cuda_graphs_are_reported_as_missing(tmp_path: Path) -> None:
    ledger = read(export(tmp_path / "a.sqlite", ["ncclAllReduce"], [(ALL_REDUCE, 0, 10)], graph=True))
    assert any("1 NCCL kernels ran from CUDA graphs" in guess for guess in ledger.guesses)


def test_of_several_processes_the_one_on_the_first_device_is_read(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite", ["ncclAllReduce"] * 3, [(ALL_REDUCE, 0, 10)] * 3, process=5, device=1)
    export(path, ["ncclAllReduce"] * 2, [(ALL_REDUCE, 0, 10)] * 2, process=9, device=0)
    ledger = read(path)
    assert [entry.count for entry in ledger.entries] == [2]
    assert any("covers 2 processes" in warning for warning in ledger.warnings)


def test_an_export_of_a_version_with_fewer_columns_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            "CREATE TABLE StringIds (id INTEGER, value TEXT);"
            "CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, textId INT, globalTid INT);"
            "INSERT INTO StringIds VALUES (3, 'ncclAllReduce');"
            "INSERT INTO NVTX_EVENTS VALUES (1, 2, 59, 3, 1);"
        )
    assert [(entry.kind, entry.count) for entry in read(path).entries] == [("all_reduce", 1)]


def test_a_database_of_something_else_is_refused_with_how_to_export(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE users (name TEXT)")
    with pytest.raises(ReadError, match=r"other\.sqlite: .*not an Nsight Systems export.*nsys export --type sqlite"):
        read(path)
