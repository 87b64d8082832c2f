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
from traces.writer import GEMM, Event, Writer, event, metadata, operator, text

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


def names_of_one_group(n: int) -> bytes:
    groups = [{"pg_name": str(number), "pg_desc": f"name{number}", "ranks": [0, 1]} for number in range(n)]
    return trace([_row(number, group="0", description="", ranks="[0, 1]") for number in range(n)], groups)


def rows_of_a_large_group(n: int) -> bytes:
    group = {"pg_name": "1", "pg_desc": "", "ranks": [3 * number * number for number in range(n)]}
    rows = [_row(number, group="1", description="", ranks="[]") for number in range(n)]
    return trace(rows, [group])


def _row(number: int, **words: Any) -> Event:
    return operator("record_param_comms", 20 * number, **metadata("allreduce", **words))


def rows_with_strides(n: int) -> bytes:
    """Each row stands for a thousand ranks."""
    words = metadata("allreduce") | {"Group size": 1000, "Global rank stride": 1}
    starts = [{"Global rank start": number} for number in range(n)]
    return trace(operator("record_param_comms", 0, **words | start) for start in starts)


def entries_and_compute(n: int) -> bytes:
    writer = Writer([event("kernel", GEMM, 100 * number, 50, 7, 0) for number in range(n)])
    for number in range(n):
        writer.call("allreduce", 100 * number, 100 * number + 25, 50, dtype=f"type{number}")
    return trace(writer.events)


def gzip_members(n: int) -> bytes:
    beginning = b'{"schemaVersion": 1, ' + b" " * n
    return b"".join(gzip.compress(beginning[number : number + 1], 1) for number in range(n))


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


def _doubling(levels: int) -> list[str]:
    """Fusions that each run the one before twice, with different parameters."""
    first = computation("f0", ["%p = s32[] parameter(0)", "%k = s32[] constant(1)", "ROOT %s = s32[] add(%p, %k)"])
    return [first] + [
        computation(
            f"f{level + 1}",
            [
                "%p = s32[] parameter(0)",
                f"%a = s32[] fusion(%p), calls=%f{level}",
                f"ROOT %b = s32[] fusion(%a), calls=%f{level}",
            ],
        )
        for level in range(levels)
    ]


def loops_with_much_arithmetic(n: int) -> bytes:
    """Each loop has a start that takes 2^13 additions to find out."""
    lines = []
    for number in range(n):
        lines += [
            f"%c{number} = s32[] constant({number})",
            f"%s{number} = s32[] fusion(%c{number}), calls=%f13",
            f"%t{number} = (s32[]) tuple(%s{number})",
            f"%w{number} = (s32[]) while(%t{number}), condition=%condition, body=%body",
        ]
    return module(*_doubling(13), BODY, CONDITION, computation("main", lines, entry=True))


def exchanges_of_one_operand(n: int) -> bytes:
    shape = "(" + "token[], " * n + "f32[8])"
    call = "f32[8]{0} ragged-all-to-all(%x), channel_id=1, replica_groups=[1,8]<=[8]"
    calls = [f"%r{number} = {call}" for number in range(n)]
    return module(computation("main", [f"%x = {shape} parameter(0)", *calls], entry=True))


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


def one_long_range_name(n: int) -> bytes:
    ranges = [(number, number + 1, None, 1, None) for number in range(n)]
    return database((_STRING, [(1, "ncclAll" + "R" * n)]), (_RANGE, [*ranges, (0, 1, "ncclAllReduce", None, None)]))


def one_long_kernel_name(n: int) -> bytes:
    kernels = [(number, number + 1, 0, 1, 1) for number in range(n)]
    return database((_STRING, [(1, "ncclOther" * n)]), (_KERNEL, kernels))


def names_without_index(n: int) -> bytes:
    kernels = [(number, number + 1, 0, number, number) for number in range(n)]
    schema = SCHEMA.replace("id INTEGER NOT NULL PRIMARY KEY", "id INTEGER NOT NULL")
    names = (_STRING, [(number, f"ncclDevKernel_AllReduce{number}") for number in range(n)])
    return database(names, (_KERNEL, kernels), schema=schema)


def long_default_text(n: int) -> bytes:
    rows = ("INSERT INTO NVTX_EVENTS (start, end, eventType) VALUES (?, 1, 59)", [(0,) for _ in range(n)])
    schema = SCHEMA.replace("text TEXT, ", "")
    return database(rows, f"ALTER TABLE NVTX_EVENTS ADD COLUMN text TEXT DEFAULT 'nccl{'A' * n}'", schema=schema)


# Logs


def lines_of(line: str) -> Make:
    return lambda n: "".join(line.format(number=number) for number in range(n)).encode()


MEGATRON = " iteration {number}/ 9 | elapsed time per iteration (ms): 5.4 | number of nan iterations: 0 |\n"
MAXTEXT = "completed step: {number}, seconds: 5.658, TFLOP/s/device: 1.1, loss: 1.5\n"
TITAN = "step: {number}  loss: 6.9  grad_norm: 2.0  memory: 1GiB(1%)  tps: 350,428  tflops: 2.5  mfu: 2.5%\n"


def golden(n: int) -> bytes:
    return json.dumps({"iteration-time": {"values": {str(number): 1.5 for number in range(n)}}}).encode()


def scalars(n: int) -> bytes:
    return json.dumps([[1.5 * number, number, 1.5] for number in range(n)]).encode()


def nested_document(n: int) -> bytes:
    return b'{"iteration-time": ' + b"[" * n


FAMILIES: dict[tuple[str, str], tuple[Make, int]] = {
    ("kineto", "ends of a list"): (list_ends, 500),
    ("kineto", "nested arguments"): (nested, 300),
    ("kineto", "gzip members"): (gzip_members, 1500),
    ("kineto", "empty gzip members"): (empty_gzip_members, 1500),
    ("kineto", "groups and rows"): (groups_and_rows, 120),
    ("kineto", "names of one group"): (names_of_one_group, 60),
    ("kineto", "rows of a large group"): (rows_of_a_large_group, 60),
    ("kineto", "entries and compute"): (entries_and_compute, 200),
    ("hlo", "loops over one tuple"): (loops_over_one_tuple, 60),
    ("hlo", "loops with much arithmetic"): (loops_with_much_arithmetic, 10),
    ("hlo", "exchanges of one operand"): (exchanges_of_one_operand, 60),
    ("hlo", "groups in each line"): (groups_in_each_line, 30),
    ("flight-recorder", "calls in a large group"): (recorded_in_a_large_group, 60),
    ("nccl-inspector", "communicators"): (communicators, 60),
    ("nccl-inspector", "gaps"): (gaps, 100),
    ("nccl-inspector", "nested lines"): (nested_lines, 200),
    ("nsys", "one long payload"): (one_long_payload, 100),
    ("nsys", "one long name of a range"): (one_long_range_name, 500),
    ("nsys", "one long name of a kernel"): (one_long_kernel_name, 100),
    ("nsys", "names without an index"): (names_without_index, 100),
    ("nsys", "long default text"): (long_default_text, 400),
    ("megatron", "steps"): (lines_of(MEGATRON), 200),
    ("megatron", "incomplete steps"): (lines_of(" iteration {number}/ 9 |\n"), 200),
    ("maxtext", "steps"): (lines_of(MAXTEXT), 200),
    ("maxtext", "incomplete steps"): (lines_of("completed step: {number}, \n"), 200),
    ("torchtitan", "steps"): (lines_of(TITAN), 200),
    ("torchtitan", "incomplete steps"): (lines_of("step: {number}  loss: 6.9  grad_norm: 2.0\n"), 200),
    ("golden", "values"): (golden, 200),
    ("golden", "nested document"): (nested_document, 500),
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
