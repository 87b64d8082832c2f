"""Families of hostile files that a run may leave, which grow with a number: what readers could spend more than linear
work on."""

import gzip
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from regbot.ledgers.readers import READERS, ReadError, Source
from regbot.workloads.logs import FORMATS, LogError, StepLogFile
from traces.writer import Event, metadata, operator, text

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


def groups_in_each_line(n: int) -> bytes:
    lines = [
        f"%g{number} = f32[8]{{0}} all-gather(%p), channel_id=1, replica_groups=[{number + 1},64]<=[{64 * number + 64}]"
        for number in range(n)
    ]
    return module(computation("main", lines, entry=True))


# Logs


def lines_of(line: str) -> Make:
    return lambda n: "".join(line.format(number=number) for number in range(n)).encode()


MEGATRON = " iteration {number}/ 9 | elapsed time per iteration (ms): 5.4 | number of nan iterations: 0 |\n"
MAXTEXT = "completed step: {number}, seconds: 5.658, TFLOP/s/device: 1.1, loss: 1.5\n"
TITAN = "step: {number}  loss: 6.9  grad_norm: 2.0  memory: 1GiB(1%)  tps: 350,428  tflops: 2.5  mfu: 2.5%\n"


FAMILIES: dict[tuple[str, str], tuple[Make, int]] = {
    ("kineto", "ends of a list"): (list_ends, 500),
    ("kineto", "nested arguments"): (nested, 300),
    ("kineto", "empty gzip members"): (empty_gzip_members, 1500),
    ("kineto", "groups and rows"): (groups_and_rows, 120),
    ("hlo", "loops over one tuple"): (loops_over_one_tuple, 60),
    ("hlo", "groups in each line"): (groups_in_each_line, 30),
    ("megatron", "steps"): (lines_of(MEGATRON), 200),
    ("megatron", "incomplete steps"): (lines_of(" iteration {number}/ 9 |\n"), 200),
    ("maxtext", "steps"): (lines_of(MAXTEXT), 200),
    ("maxtext", "incomplete steps"): (lines_of("completed step: {number}, \n"), 200),
    ("torchtitan", "steps"): (lines_of(TITAN), 200),
    ("torchtitan", "incomplete steps"): (lines_of("step: {number}  loss: 6.9  grad_norm: 2.0\n"), 200),
}
"""Function that writes a file, and the number to begin with, by reader and name of the family."""
