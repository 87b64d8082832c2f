"""Kineto traces: what is counted, from which rows, in which step, how much of it was exposed, and what is refused."""

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regbot.ledgers.readers import ReadError, Source, detect_reader, kineto, read_file
from regbot.ledgers.readers.kernels import classify
from regbot.ledgers.readers.kineto import events, record
from regbot.records.ledger import Ledger
from support.guest_runs import GUEST, TINY, _run, ask, once
from traces.writer import DP, EP, GEMM, INFO, NCCL, Event, Writer, event, metadata, operator, step, text, write

TRACES = Path(__file__).parents[1] / "traces"
SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"

Row = tuple[str, str, str, str, str]


def rows(ledger: Ledger) -> dict[Row, tuple[int, int]]:
    return {(e.kind, e.axis, e.phase, e.role, e.via): (e.count, e.bytes) for e in ledger.entries}


def counts(ledger: Ledger, role: str = "payload") -> dict[str, int]:
    counts_by_kind: Counter[str] = Counter()
    for entry in ledger.entries:
        if entry.role == role:
            counts_by_kind[entry.kind] += entry.count
    return dict(counts_by_kind)


def read(name: str) -> Ledger:
    return read_file(TRACES / name)


@pytest.fixture
def ledger_of(tmp_path: Path) -> Callable[..., Ledger]:
    """Reads the trace of some events."""

    def make(*given: Event, info: dict[str, Any] | None = INFO) -> Ledger:
        return read_file(write(tmp_path / "t.json.gz", text(given, info)), "kineto")

    return make


# What is counted


def test_metadata_gives_kind_axis_bytes_phase_and_role() -> None:
    ledger = read("nccl_metadata.json")
    assert (ledger.source, ledger.scope, ledger.steps) == ("kineto:metadata", "step", 3)
    assert (ledger.world_size, ledger.rank) == (8, 0)
    assert rows(ledger) == {
        ("all_gather", "[0-7]", "unknown", "payload", "nccl"): (1, 4096 * 2),  # the output
        ("all_reduce", "[0-7]", "optimizer", "payload", "nccl"): (1, 4),
        ("all_to_all", "ep", "backward", "payload", "nccl"): (1, 4096 * 2),
        ("all_to_all", "ep", "unknown", "payload", "nccl"): (2, (4096 + 4000) * 2),
        ("all_to_all", "ep", "unknown", "control", "nccl"): (1, 64),
        ("barrier", "[0-7]", "unknown", "control", "nccl"): (1, 0),
        ("reduce_scatter", "[0-7]", "backward", "payload", "nccl"): (1, 4096 * 4),  # the input
    }
    assert {name: axis.ranks for name, axis in ledger.axes.items()} == {"ep": [0, 1, 2, 3], "[0-7]": list(range(8))}
    assert not ledger.warnings


def test_waits_and_set_up_are_no_collectives(ledger_of: Callable[..., Ledger]) -> None:
    words = [operator("record_param_comms", 10 * n, 5, **metadata(name)) for n, name in enumerate(("init", "wait"))]
    ledger = ledger_of(*words, operator("record_param_comms", 50, 5, **metadata("allreduce")))
    assert counts(ledger) == {"all_reduce": 1}


def test_old_traces_are_counted_by_annotations_once_for_two_rows_of_a_call() -> None:
    ledger = read("annotations_2022.json")
    assert (ledger.source, ledger.scope, ledger.steps, ledger.rank) == ("kineto:annotations", "step", 2, 3)
    assert rows(ledger) == {
        ("all_reduce", "unknown", "backward", "payload", "nccl"): (1, 4096 * 4),
        ("all_to_all", "unknown", "unknown", "payload", "nccl"): (1, 8 * 1024 * 4),
        ("all_to_all", "unknown", "unknown", "control", "nccl"): (1, 64),
    }
    assert any("the groups of some collectives are unknown" in warning for warning in ledger.warnings)


@pytest.mark.parametrize(
    ("name", "via", "payload", "control"),
    [
        ("deepep_v1.json", "deepep", {"all_to_all": 6}, {"all_to_all": 2}),
        ("deepep_v2.json", "deepep", {"all_to_all": 4}, {}),
        ("hybridep.json", "hybridep", {"all_to_all": 2}, {}),
        ("nccl_ep.json", "nccl-ep", {"all_to_all": 2}, {}),
        ("symm_mem.json", "symm-mem", {"all_to_all": 2, "all_reduce": 1}, {"all_to_all": 1}),
    ],
)
def test_dispatch_libraries_are_counted_by_their_payload_kernels(
    name: str, via: str, payload: dict[str, int], control: dict[str, int]
) -> None:
    ledger = read(name)
    assert (ledger.source, ledger.scope, ledger.steps) == ("kineto:kernels", "step", 2)
    assert (counts(ledger), counts(ledger, "control")) == (payload, control)
    assert {entry.via for entry in ledger.entries} == {via}
    assert {e.axis for e in ledger.entries if e.kind == "all_to_all"} == {"ep"}
    assert f"the bytes of {via} kernels are unknown and shown as 0" in ledger.warnings
    assert not ledger.unclassified


@pytest.mark.parametrize(
    ("payload", "others", "via"),
    [
        (
            ["mori::moe::EpDispatchIntraNodeKernel_bf16(mori::moe::EpDispatchCombineArgs<__hip_bfloat16>)"],
            ["mori::moe::EpCombineSyncBarrier_bf16(mori::moe::EpDispatchCombineArgs<__hip_bfloat16>)"],
            "mori",
        ),
        (["EpDispatchLowLatencyAsyncSend_fp8"], ["EpDispatchLowLatencyAsyncRecv_fp8"], "mori"),
        (["void uccl::internode_ll::combine<true, 7168>(void*)"], ["void uccl::internode::cached_notify<8>()"], "uccl"),
        (["void tensorrt_llm::kernels::moe_alltoall::moeA2ACombineKernel<__nv_bfloat16, 8>(int)"], [GEMM], "trtllm"),
        (["void tensorrt_llm::kernels::moeAllToAllKernel<false>(FusedMoeCommKernelParam)"], [GEMM], "trtllm"),
    ],
)
def test_kernels_of_other_dispatch_libraries_are_exchanges_that_compute_may_hide(
    ledger_of: Callable[..., Ledger], payload: list[str], others: list[str], via: str
) -> None:
    writer = Writer([step(1, 0, 90)])
    for number, name in enumerate((*payload, *others)):
        writer.kernel(name, 100 + 50 * number, 40, 10 + number)
    ledger = ledger_of(*writer.events)
    (entry,) = ledger.entries
    assert (entry.kind, entry.via, entry.count, ledger.unclassified) == ("all_to_all", via, len(payload), [])
    assert (entry.exposed_s, entry.hidden_s) == (pytest.approx(4e-5), pytest.approx(0))


def test_generic_kernels_of_rccl_are_counted_by_metadata_and_the_rest_is_unclassified() -> None:
    ledger = read("rccl_generic.json")
    assert counts(ledger) == {"all_to_all": 1, "all_gather": 1, "reduce_scatter": 1}
    assert [(u.name[:21], u.count, u.seconds) for u in ledger.unclassified] == [("ncclDevKernel_Generic", 1, 3e-5)]
    assert any("communication of unknown kind is not counted" in warning for warning in ledger.warnings)


def test_a_gloo_trace_is_counted_from_the_dispatcher_and_not_from_gloo_names() -> None:
    ledger = read("gloo_smoke.json.gz")
    assert (ledger.source, ledger.scope, ledger.steps) == ("kineto:dispatcher", "step", 3)
    assert counts(ledger) == {"all_to_all": 4, "all_gather": 3, "reduce_scatter": 2}
    assert counts(ledger, "control") == {"all_to_all": 1}
    assert {(entry.via, entry.axis, entry.group_size) for entry in ledger.entries} == {("gloo", "[0,1]", 2)}
    text_of = gzip.decompress((TRACES / "gloo_smoke.json.gz").read_bytes()).decode()
    assert text_of.count('"gloo:all_reduce"') == 3 * 2  # what gloo calls its reduce-scatters
    assert "reduce_scatter" not in text_of.replace("c10d::_reduce_scatter_base_", "")


def test_gloo_calls_beside_nccl_are_counted_too(ledger_of: Callable[..., Ledger]) -> None:
    shapes = {"Input Dims": [[[4]], []], "Input type": ["TensorList", ""]}
    ledger = ledger_of(
        operator("c10d::allreduce_", 0, 50, **shapes),
        operator("record_param_comms", 10, 20, **metadata("allreduce")),
        operator("c10d::allreduce_", 60, 5, **shapes),
        event("user_annotation", "gloo:all_reduce", 62, 9, 5, **{"Input Dims": [[4]], "Input type": ["long int"]}),
    )
    assert {(e.via, e.role): (e.count, e.bytes) for e in ledger.entries} == {
        ("nccl", "payload"): (1, 2048),
        ("gloo", "control"): (1, 32),
    }


def test_symmetric_memory_is_counted_by_its_operator_where_there_is_one(ledger_of: Callable[..., Ledger]) -> None:
    shapes = {"Input Dims": [[64, 16], [128, 16], []], "Input type": ["c10::BFloat16", "c10::BFloat16", ""]}
    writer = Writer([operator("symm_mem::all_to_all_vdev", 10, 20, **shapes)])
    writer.kernel("c10d::nvshmem_extension::exchangeSplitAndOffset(long*)", 100, 5, 12)
    writer.kernel("c10d::nvshmem_extension::allToAllV(void*)", 105, 40, 15)
    volumes_by_role = {(e.role, e.dtype): (e.count, e.bytes, e.exposed_s) for e in ledger_of(*writer.events).entries}
    assert volumes_by_role == {
        ("payload", "bfloat16"): (1, 64 * 16 * 2, pytest.approx(40e-6)),
        ("control", "unknown"): (1, 0, pytest.approx(5e-6)),
    }


def test_an_operator_that_a_dispatch_mode_sent_twice_is_one(ledger_of: Callable[..., Ledger]) -> None:
    twice = [operator("c10d::barrier", start, length) for start, length in ((0, 50), (10, 20), (100, 9), (110, 9))]
    assert counts(ledger_of(*twice), "control") == {"barrier": 3}


@pytest.mark.parametrize(
    ("description", "ranks", "axis"),
    [
        ("mesh_ep", EP, "ep"),
        ("EXPERT_MODEL_PARALLEL_GROUP", EP, "ep"),
        ("DATA_PARALLEL_GROUP", EP, "dp"),
        ("undefined", "[0, 4]", "[0,4]"),
        ("default_pg", DP, "[0-7]"),
        ("undefined", EP, "ep"),  # the ranks of the only axis that has them
    ],
)
def test_the_axis_is_that_of_the_description_else_of_the_ranks(
    ledger_of: Callable[..., Ledger], description: str, ranks: str, axis: str
) -> None:
    words = metadata("allreduce", description=description, ranks=ranks, group="9")
    assert [e.axis for e in ledger_of(operator("record_param_comms", 0, 5, **words)).entries] == [axis]


def test_ranks_that_the_row_shortens_are_those_of_the_envelope_or_of_start_and_stride(
    ledger_of: Callable[..., Ledger],
) -> None:
    words = metadata("allreduce", description="undefined") | {"Group size": 4, "Process Group Ranks": "[0, 1, ...]"}
    strided = words | {"Process Group Name": "7", "Global rank start": 1, "Global rank stride": 2}
    ledger = ledger_of(*(operator("record_param_comms", n, 1, **w) for n, w in enumerate((words, strided))))
    assert {axis.ranks[1] for axis in ledger.axes.values()} == {1, 3}
    assert {entry.axis for entry in ledger.entries} == {"ep", "[1-7:2]"}


# Names that disagree


def test_a_kernel_name_that_contradicts_the_metadata_is_a_warning(ledger_of: Callable[..., Ledger]) -> None:
    writer = Writer()
    writer.call("_allgather_base", 0, 100, 9, kernel=SENDRECV)
    ledger = ledger_of(*writer.events)
    assert counts(ledger) == {"all_gather": 1}
    assert any("disagree with the metadata" in w and "SendRecv" in w and "all_gather" in w for w in ledger.warnings)


@pytest.mark.parametrize(
    "name",
    [
        "void deep_ep::elastic::dispatch_v3_impl<8>(void*)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "void pplx::a2a_kernels::a2a_dispatch_send_kernel<true>(int, expert_args)",
        "ncclEpCombineKernel_v2",
        "__raw_ptr_fn void nixl_ep::ll::dispatch<4>(void*)",
        SENDRECV,
    ],
)
def test_communication_that_nothing_explains_is_unclassified_and_never_zero(
    ledger_of: Callable[..., Ledger], name: str
) -> None:
    writer = Writer([step(1, 0, 90)])
    writer.kernel(name, 100, 40, 10)
    ledger = ledger_of(*writer.events)
    assert [(u.name, u.count, u.seconds) for u in ledger.unclassified] == [(name, 1, pytest.approx(4e-5))]
    assert (ledger.entries, ledger.source) == ([], "kineto:kernels")
    assert any("communication of unknown kind is not counted" in warning for warning in ledger.warnings)


def test_a_collective_that_no_table_knows_is_unclassified(ledger_of: Callable[..., Ledger]) -> None:
    given = [
        operator("record_param_comms", 0, 5, **metadata("all_to_all_of_the_future")),
        operator("record_param_comms", 9, 5, **metadata("allreduce")),
        operator("c10d::teleport_", 20, 5),
    ]
    ledger = ledger_of(*given)
    assert counts(ledger) == {"all_reduce": 1}
    assert {u.name for u in ledger.unclassified} == {
        "Collective name all_to_all_of_the_future",
        "c10d::teleport_ of a backend that wrote no row",
    }


@pytest.mark.parametrize(
    "name",
    [
        GEMM,
        "triton_poi_fused_all_gather_into_tensor_wait_tensor_3",
        "void at::native::vectorized_gather_kernel<16, long>(char*)",
        "void hybrid_ep::permute_kernel<unsigned short>(unsigned short*)",
        "void deep_ep::layout::get_dispatch_layout<256>(long const*)",
        "void uccl::layout::get_dispatch_layout<256>(long const*)",
        "mori::moe::EpDispatchCopyToStaging_bf16(mori::moe::EpDispatchCombineArgs<__hip_bfloat16>)",
        "void tensorrt_llm::kernels::moe_comm::moeA2APrepareDispatchKernel(int*)",
        "void at::native::combine_kernel<deep_gemm::Step>(float*)",
        "void vllm::moe::topkGating<8, 128>(float const*)",
    ],
)
def test_kernels_that_work_on_local_memory_compute(name: str) -> None:
    assert classify(name) is None


@pytest.mark.parametrize(
    ("name", "possible_kinds"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", {"all_reduce", "barrier"}),
        ("ncclSymkDevKernel_ReduceScatter_LD_sum_bf16(ncclSymkDevWorkArgs4K)", {"reduce_scatter"}),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", {"reduce", "reduce_scatter"}),
    ],
)
def test_names_of_nccl_kernels_say_what_they_can_serve(name: str, possible_kinds: set[str]) -> None:
    communication = classify(name)
    assert communication is not None
    assert communication.possible_kinds == possible_kinds


def test_a_kernel_launched_after_the_rows_of_a_coalesced_call_is_reported_and_not_counted_again(
    ledger_of: Callable[..., Ledger],
) -> None:
    writer = Writer(
        [operator("record_param_comms", 10 * n, 5, **metadata(name)) for n, name in enumerate(("send", "recv"))]
    )
    writer.kernel(SENDRECV, 100, 9, 30)
    ledger = ledger_of(*writer.events)
    assert (counts(ledger), ledger.unclassified) == ({"send_recv": 2}, [])
    assert any("1 NCCL kernels could not be linked" in warning for warning in ledger.warnings)


def test_a_call_in_a_group_of_one_rank_explains_no_kernel(ledger_of: Callable[..., Ledger]) -> None:
    """Such a call needs no kernel. The kernel may be one of a replayed CUDA graph."""
    writer = Writer([operator("record_param_comms", 10, 5, **metadata("allreduce", ranks="[0]"))])
    writer.call("all_to_all", 20, 40, 10)
    writer.kernel(NCCL["allreduce"], 100, 9, 90)
    ledger = ledger_of(*writer.events)
    assert (counts(ledger), [item.name for item in ledger.unclassified]) == ({"all_to_all": 1}, [NCCL["allreduce"]])


def test_a_kernel_of_a_call_before_the_trace_is_reported_and_not_counted(ledger_of: Callable[..., Ledger]) -> None:
    writer = Writer()
    writer.kernel(SENDRECV, 0, 9, None, external=99, **metadata("all_to_allv"))
    writer.call("allreduce", 10, 100, 9)
    ledger = ledger_of(*writer.events)
    assert counts(ledger) == {"all_reduce": 1}
    assert any("1 kernels belong to calls before the start of the trace" in w for w in ledger.warnings)


# Steps


def test_kernels_that_run_in_the_next_window_belong_to_the_step_that_launched_them(
    ledger_of: Callable[..., Ledger],
) -> None:
    writer = Writer([step(1, 0, 100), step(2, 100, 100)])
    for start in (10, 110):  # both dispatches run after the last step has ended, as asynchronous kernels may
        writer.kernel("void deep_ep::intranode::dispatch<8>()", 300 + start, 20, start)
    ledger = ledger_of(*writer.events)
    assert (ledger.scope, ledger.steps, counts(ledger)) == ("step", 2, {"all_to_all": 1})
    assert ledger.entries[0].exposed_s == pytest.approx(20e-6)


def test_without_launches_the_whole_trace_is_counted(ledger_of: Callable[..., Ledger]) -> None:
    writer = Writer([step(1, 0, 100), step(2, 100, 100)])
    for start in (10, 110):
        writer.kernel("void deep_ep::intranode::dispatch<8>()", start, 20, None)
    ledger = ledger_of(*writer.events)
    assert (ledger.scope, ledger.steps, counts(ledger)) == ("whole", 2, {"all_to_all": 2})
    assert any("cannot be assigned to a step" in warning for warning in ledger.warnings)


def calls_in_steps(*numbers: int) -> list[Event]:
    given: list[Event] = []
    for place, number in enumerate(numbers):
        given.append(step(place, 1000 * place, 999))
        given += [
            operator("record_param_comms", 1000 * place + 10 * n, 5, **metadata("allreduce")) for n in range(number)
        ]
    return given


@pytest.mark.parametrize(
    ("numbers", "scope", "steps", "count", "message"),
    [
        ((3, 3, 3), "step", 3, 3, ""),
        ((3, 3, 1), "step", 1, 3, "first or the last step differs"),
        ((1, 3, 3, 9), "step", 2, 3, "first or the last step differs"),
        ((3, 2, 3, 3), "whole", 4, 11, "4 steps are not equal (3, 2, 3, 3 collectives)"),
    ],
)
def test_steps_are_counted_where_they_are_equal(
    ledger_of: Callable[..., Ledger], numbers: tuple[int, ...], scope: str, steps: int, count: int, message: str
) -> None:
    ledger = ledger_of(*calls_in_steps(*numbers))
    assert (ledger.scope, ledger.steps, counts(ledger)) == (scope, steps, {"all_reduce": count})
    assert any(message in warning for warning in ledger.warnings) if message else not ledger.warnings


# Exposed communication


def test_exposed_and_hidden_communication_are_interval_unions_per_step() -> None:
    times = {(e.kind, e.phase, e.role): (e.exposed_s, e.hidden_s) for e in read("nccl_metadata.json").entries}
    for key, (exposed, hidden) in {
        ("all_gather", "unknown", "payload"): (30e-6, 10e-6),
        ("all_to_all", "unknown", "payload"): (105e-6, 20e-6),
        ("reduce_scatter", "backward", "payload"): (5e-6, 45e-6),
        ("all_to_all", "backward", "payload"): (60e-6, 0.0),
    }.items():
        assert times[key] == pytest.approx((exposed, hidden), abs=1e-9), key


# What is refused


def refusal(path: Path) -> str:
    with pytest.raises(ReadError) as raised:
        read_file(path, "kineto")
    return str(raised.value)


@pytest.mark.parametrize("info", [INFO, None])
def test_a_trace_without_collectives_is_no_ledger_of_zero(tmp_path: Path, info: dict[str, Any] | None) -> None:
    writer = Writer([step(1, 0, 90), operator("aten::mm", 5)])
    writer.kernel(GEMM, 100, 9, 10)
    message = refusal(write(tmp_path / "t.json", text(writer.events, info)))
    assert "no collective was recorded" in message
    assert "does not prove" in message
    assert "does not prove" in refusal(write(tmp_path / "t.json", text([], info)))


def test_ranks_that_are_mixed_in_one_file_are_refused(tmp_path: Path) -> None:
    first, second = Writer(), Writer()
    first.call("allreduce", 0, 100, 9)
    second.call("allreduce", 0, 100, 9)
    moved = [{**item, "pid": {100: 200, 0: 1}[item["pid"]]} for item in second.events]
    assert "mixes the communication of 2 processes (100, 200)" in refusal(
        write(tmp_path / "t.json", text([*first.events, *moved]))
    )
    devices = [item for item in [*first.events, *moved] if item["cat"] == "kernel"]
    assert "2 devices (0, 1)" in refusal(write(tmp_path / "t.json", text(devices)))


@pytest.mark.parametrize("name", ["nccl_metadata.json", "annotations_2022.json", "gloo_smoke.json.gz"])
def test_a_file_that_was_cut_off_is_refused_wherever_it_was_cut(tmp_path: Path, name: str) -> None:
    whole = (TRACES / name).read_bytes()
    plain = gzip.decompress(whole) if name.endswith(".gz") else whole
    for place in [*range(200, len(plain), len(plain) // 23), plain.rindex(b"]") - 1, len(plain) - 3]:
        assert str(tmp_path) in refusal(_put(tmp_path / "t.json", plain[:place]))
    packed = gzip.compress(plain)
    for place in (len(packed) // 2, len(packed) - 5):
        assert "in the middle of its gzip data" in refusal(_put(tmp_path / "t.json.gz", packed[:place]))


def _put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("limit", [(record, "MAX_ROWS"), (record, "MAX_VALUE_BYTES"), (events, "MAX_TIMES")])
def test_what_is_kept_in_memory_is_capped(monkeypatch: pytest.MonkeyPatch, limit: tuple[Any, str]) -> None:
    monkeypatch.setattr(*limit, 3)
    assert "record fewer steps" in refusal(TRACES / "nccl_metadata.json")


# Files


def test_every_way_to_write_the_same_trace_reads_the_same(tmp_path: Path) -> None:
    document = json.loads((TRACES / "nccl_metadata.json").read_text())
    for number, content in enumerate((
        json.dumps(document),
        json.dumps(document, indent=4),
        json.dumps(document, separators=(",", ":")),
        json.dumps({"traceEvents": document.pop("traceEvents"), **document}),
    )):  # fmt: skip
        path = write(tmp_path / f"{number}.json.gz", content)
        assert detect_reader(Source(path)) is kineto
        assert read_file(path) == read("nccl_metadata.json")


def test_events_that_are_not_written_as_kineto_writes_them_are_refused(tmp_path: Path) -> None:
    row = operator("record_param_comms", 0, 5, **metadata("allreduce"))
    whole = text([row, row])
    for other in (json.dumps(dict(sorted(row.items()))), json.dumps(row, separators=(",", ":"))):
        mixed = whole.replace(text([row]).split("[\n", 1)[1].split("\n  ],")[0], other, 1)
        assert mixed != whole
        assert "not written as Kineto writes them" in refusal(write(tmp_path / "t.json", mixed))


def test_chunks_may_end_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read("nccl_metadata.json")
    for size in (61, 997, 4096):
        monkeypatch.setattr(events, "CHUNK_BYTES", size)
        assert read("nccl_metadata.json") == expected


# Real runs


def _record(folder: Path) -> None:
    request = ask(folder, "tiny", geometry=TINY)
    script = str(Path(__file__).parents[1] / "support" / "record_trace.py")
    done = _run([script, str(request), str(folder)], 2, {"PYTHONPATH": str(GUEST)})
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory.getbasetemp(), "kineto", _record)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["shapes", "plain"])
def test_traces_of_real_gloo_ranks_agree_with_the_counter_of_the_same_run(recorded: Path, name: str, rank: int) -> None:
    ledger = read_file(recorded / f"{name}.rank{rank}.json.gz")
    assert (ledger.source, ledger.scope, ledger.steps, ledger.rank) == ("kineto:dispatcher", "step", 3, rank)
    ours: Counter[tuple[str, str]] = Counter()
    theirs: Counter[tuple[str, str]] = Counter()
    for entry in ledger.entries:
        ours[entry.kind, entry.role if name != "plain" else ""] += entry.count
        ours[entry.kind, "bytes"] += entry.bytes if name != "plain" else 0
    for reported in json.loads((recorded / f"entries.rank{rank}.json").read_text()):
        theirs[reported["kind"], reported["role"] if name != "plain" else ""] += reported["count"]
        theirs[reported["kind"], "bytes"] += reported["bytes"] if name != "plain" else 0
    assert ours == theirs
    assert sum(count for (_, word), count in ours.items() if word != "bytes") == 10
