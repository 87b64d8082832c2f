"""Families of hostile files, which grow with a number: what readers could spend more than linear work on."""

import gzip
import json
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from regbot.ledgers.readers import READERS, ReadError, Source
from regbot.workloads.logs import FORMATS, LogError, StepLogFile
from support.nsys_exports import SCHEMA
from traces.writer import Event, event, metadata, operator, text

Make = Callable[[int], bytes]


def read_any(name: str, path: Path) -> str:
    """Read a file with the reader or format of this name. Return '' or why the reader refuses the file."""
    readers = {reader.NAME: reader for reader in READERS}
    try:
        if name in readers:
            readers[name].read(Source(path))
        else:
            formats = {log_format.NAME: log_format for log_format in FORMATS}
            formats[name].read(StepLogFile(path, tokens_per_step=8192.0))
    except (ReadError, LogError) as error:
        return str(error)
    return ""


# Kineto


def trace(events: Iterable[Event], groups: Iterable[dict[str, Any]] = ()) -> bytes:
    return text(events, {"world_size": 8, "rank": 0, "pg_config": list(groups)}).encode()


def list_ends(n: int) -> bytes:
    return b'{"traceEvents":[' + b"}]" * n


def nested(n: int) -> bytes:
    row = operator("record_param_comms", 0, **metadata("allreduce"), deep="DEEP")
    return trace([row]).replace(b'"DEEP"', b"[" * n + b"]" * n)


def groups_and_rows(n: int) -> bytes:
    groups = [{"pg_name": str(number), "pg_desc": "", "ranks": [0, 1, 2, number + 3]} for number in range(n)]
    return trace([operator("c10d::allreduce_", 20 * number) for number in range(n)], groups)


def rows_with_strides(n: int) -> bytes:
    """Each row stands for a thousand ranks."""
    words = metadata("allreduce") | {"Group size": 1000, "Global rank stride": 1}
    starts = [{"Global rank start": number} for number in range(n)]
    return trace(operator("record_param_comms", 0, **words | start) for start in starts)


def empty_gzip_members(n: int) -> bytes:
    return gzip.compress(b'{"traceEvents": [') + gzip.compress(b"", 1) * n


def kernel_name(part: str) -> Make:
    return lambda n: trace([event("kernel", part * n, 0, 5, 7, 0)])


# HLO


def module(*computations: str, partitions: int = 8) -> bytes:
    header = f"HloModule m, is_scheduled=true, num_partitions={partitions}"
    return "\n\n".join([header, *computations, ""]).encode()


def computation(name: str, lines: Iterable[str], result: str = "s32[]", entry: bool = False) -> str:
    body = "".join(f"  {line}\n" for line in lines)
    return f"{'ENTRY ' if entry else ''}%{name} (p: s32[]) -> {result} {{\n{body}}}"


GATHER = "%g = f32[8]{0} all-gather(%p), channel_id=1, replica_groups=[1,8]<=[8], dimensions={0}"
BODY = computation("body", ["%p = (s32[]) parameter(0)", GATHER, "ROOT %t = (s32[]) tuple(%i)"], "(s32[])")
CONDITION = computation(
    "condition",
    [
        "%p = (s32[]) parameter(0)",
        "%i = s32[] get-tuple-element(%p), index=0",
        "%c = s32[] constant(3)",
        "ROOT %l = pred[] compare(%i, %c), direction=LT",
    ],
    "pred[]",
)


def loops_over_one_tuple(n: int) -> bytes:
    operands = ", ".join(f"%c{number}" for number in range(n))
    constants = [f"%c{number} = s32[] constant({number})" for number in range(n)]
    loops = [f"%w{number} = (s32[]) while(%t), condition=%condition, body=%body" for number in range(n)]
    lines = [*constants, f"%t = (s32[]) tuple({operands})", *loops]
    return module(BODY, CONDITION, computation("main", lines, entry=True))


def line_of_program(beginning: str, part: str) -> Make:
    return lambda n: module(computation("main", [GATHER, beginning + part * n], entry=True))


def groups_in_each_line(n: int) -> bytes:
    lines = [
        f"%g{number} = f32[8]{{0}} all-gather(%p), channel_id=1, replica_groups=[{number + 1},64]<=[{64 * number + 64}]"
        for number in range(n)
    ]
    return module(computation("main", lines, entry=True))


# Flight Recorder


def dump(entries: Iterable[dict[str, Any]], groups: dict[str, Any]) -> bytes:
    return json.dumps({"pg_config": groups, "entries": list(entries)}).encode()


def recorded(number: int, group: str = "0", dtype: str = "Float") -> dict[str, Any]:
    sizes = {"input_sizes": [[8]], "output_sizes": [[8]], "input_dtypes": [dtype], "output_dtypes": [dtype]}
    return {"profiling_name": "nccl:all_reduce", "record_id": number, "process_group": [group, ""], **sizes}


def _large_group(n: int) -> dict[str, Any]:
    return {"0": {"name": "0", "desc": "", "ranks": str([3 * number * number for number in range(n)])}}


def recorded_in_a_large_group(n: int) -> bytes:
    return dump(map(recorded, range(n)), _large_group(n))


def recorded_on_axes_of_a_large_group(n: int) -> bytes:
    entries = [recorded(number) | {"process_group": ["0", f"axis{number}"]} for number in range(n)]
    return dump(entries, _large_group(1000))


# NCCL Inspector


def inspected(number: int, communicator: str, **header: Any) -> bytes:
    line = {
        "header": {"id": communicator, "comm_name": "unknown", "rank": 0, "n_ranks": 8, **header},
        "metadata": {"hostname": "a", "pid": 1},
        "coll_perf": {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 65536},
    }
    return json.dumps(line).encode()


def communicators(n: int) -> bytes:
    return b"\n".join(inspected(0, str(number)) for number in range(n))


def gaps(n: int) -> bytes:
    return b"\n".join(inspected(-3 * number % (3 * n), "a") for number in range(n))


def nested_lines(n: int) -> bytes:
    return inspected(0, "ID").replace(b'"ID"', b"[" * n + b"]" * n)


# Nsight Systems


def database(*statements: str | tuple[str, Iterable[tuple[Any, ...]]], schema: str = SCHEMA) -> bytes:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema)
        for statement in statements:
            if isinstance(statement, str):
                connection.execute(statement)
            else:
                connection.executemany(*statement)
        connection.commit()
        return connection.serialize()


_RANGE = "INSERT INTO NVTX_EVENTS (start, end, eventType, text, textId, globalTid, jsonTextId) VALUES (?,?,59,?,?,1,?)"
_KERNEL = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 1, 7, 1, 16777216, ?, ?, NULL)"
_STRING = "INSERT INTO StringIds VALUES (?, ?)"


def one_long_payload(n: int) -> bytes:
    payload = json.dumps({"NCCL communicator ID": 9, "Message size [bytes]": 64} | dict.fromkeys(map(str, range(n)), 1))
    ranges = [(number, number + 1, "ncclAllReduce", None, 1) for number in range(n)]
    return database((_STRING, [(1, payload)]), (_RANGE, ranges))


def one_long_kernel_name(n: int) -> bytes:
    kernels = [(number, number + 1, 0, 1, 1) for number in range(n)]
    return database((_STRING, [(1, "ncclOther" * n)]), (_KERNEL, kernels))


# Logs


def lines_of(line: str) -> Make:
    return lambda n: "".join(line.format(number=number) for number in range(n)).encode()


MEGATRON = " iteration {number}/ 9 | elapsed time per iteration (ms): 5.4 | number of nan iterations: 0 |\n"
MAXTEXT = "completed step: {number}, seconds: 5.658, TFLOP/s/device: 1.1, loss: 1.5\n"
NEMO = "Training epoch 0, iteration 1/9 | global_step: {number} | train_step_timing in s: 2.01 | consumed_samples: 5\n"
TITAN = "step: {number}  loss: 6.9  grad_norm: 2.0  memory: 1GiB(1%)  tps: 350,428  tflops: 2.5  mfu: 2.5%\n"


def golden(n: int) -> bytes:
    return json.dumps({"iteration-time": {"values": {str(number): 1.5 for number in range(n)}}}).encode()


def scalars(n: int) -> bytes:
    return json.dumps([[1.5 * number, number, 1.5] for number in range(n)]).encode()


FAMILIES: dict[tuple[str, str], tuple[Make, int]] = {
    ("kineto", "ends of a list"): (list_ends, 500),
    ("kineto", "nested arguments"): (nested, 300),
    ("kineto", "empty gzip members"): (empty_gzip_members, 1500),
    ("kineto", "groups and rows"): (groups_and_rows, 120),
    ("hlo", "loops over one tuple"): (loops_over_one_tuple, 60),
    ("hlo", "groups in each line"): (groups_in_each_line, 30),
    ("flight-recorder", "calls in a large group"): (recorded_in_a_large_group, 60),
    ("nccl-inspector", "communicators"): (communicators, 60),
    ("nccl-inspector", "gaps"): (gaps, 100),
    ("nccl-inspector", "nested lines"): (nested_lines, 200),
    ("nsys", "one long payload"): (one_long_payload, 100),
    ("nsys", "one long name of a kernel"): (one_long_kernel_name, 100),
    ("megatron", "steps"): (lines_of(MEGATRON), 200),
    ("megatron", "incomplete steps"): (lines_of(" iteration {number}/ 9 |\n"), 200),
    ("maxtext", "steps"): (lines_of(MAXTEXT), 200),
    ("maxtext", "incomplete steps"): (lines_of("completed step: {number}, \n"), 200),
    ("nemo", "steps"): (lines_of(NEMO), 200),
    ("torchtitan", "steps"): (lines_of(TITAN), 200),
    ("torchtitan", "incomplete steps"): (lines_of("step: {number}  loss: 6.9  grad_norm: 2.0\n"), 200),
    ("golden", "values"): (golden, 200),
    ("tensorboard", "values"): (scalars, 200),
}
"""Function that writes a file, and the number to begin with, by reader and name of the family."""

_EXCHANGE = '%r = f32[8] custom-call(f32[8] %x), custom_call_target="ragged_all_to_all", backend_config="'
LONG_TEXTS: dict[tuple[str, str], Make] = {
    **{
        ("kineto", f"a kernel called {part}"): kernel_name(part)
        for part in ("symmetric_memory::", "nccl_ep_prob", "nccl_ep::")
    },
    ("hlo", "groups in a configuration"): line_of_program(_EXCHANGE, "replica_groups = dense<"),
}
"""The same for texts that regular expressions search, whose work no count of lines shows."""
