"""Kineto traces line by line, in Kineto's own order of keys and spacing. Times are microseconds.

A trace has one process (100), the main thread (1), an autograd thread (2), and one device. Every event says when it
ran, so that a test can let a kernel run as late as it likes.
"""

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]
EP, DP = "[0, 1, 2, 3]", "[0, 1, 2, 3, 4, 5, 6, 7]"
INFO: dict[str, Any] = {"backend": "nccl", "rank": 0, "world_size": 8, "pg_count": 2, "pg_config": [
    {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 8, "ranks": list(range(8))},
    {"pg_name": "1", "pg_desc": "mesh_ep", "backend_config": "cuda:nccl", "pg_size": 4, "ranks": [0, 1, 2, 3]},
]}  # fmt: skip
NCCL = {
    "all_to_all": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "all_to_allv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "barrier": "ncclDevKernel_AllReduce_Sum_u8_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}
GEMM = "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_TNT"


def event(category: str, name: str, start: float, length: float, thread: int = 1, pid: int = 100, **args: Any) -> Event:
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": thread, "ts": start, "dur": length} | {
        "args": args
    }


def step(number: int, start: float, length: float) -> Event:
    return event("user_annotation", f"ProfilerStep#{number}", start, length)


def operator(name: str, start: float, length: float = 10, thread: int = 1, **args: Any) -> Event:
    return event("cpu_op", name, start, length, thread, **args)


def metadata(
    name: str, elements: tuple[int, int] = (1024, 1024), dtype: str = "BFloat16", group: str = "1",
    description: str = "mesh_ep", ranks: str = EP,
) -> dict[str, Any]:  # fmt: skip
    """The words of a call, as its row and its kernels carry them."""
    return {
        "Collective name": name, "dtype": dtype, "In msg nelems": elements[0], "Out msg nelems": elements[1],
        "Group size": len(json.loads(ranks)), "Process Group Name": group, "Process Group Description": description,
        "Process Group Ranks": ranks, "In split size": "[]", "Out split size": "[]",
    }  # fmt: skip


@dataclass
class Writer:
    """Events of one trace, with the numbers that link them."""

    events: list[Event] = field(default_factory=list)
    last: int = 0

    def add(self, *events: Event) -> None:
        self.events += events

    def number(self) -> int:
        self.last += 1
        return self.last

    def kernel(
        self, name: str, start: float, length: float, launched: float | None, thread: int = 1, external: int = 0,
        device: int = 0, **words: Any,
    ) -> None:  # fmt: skip
        """A kernel and its launch; no launch where ``launched`` is None."""
        number = 1000 + self.number()
        external = external or number
        if launched is not None:
            self.add(event("cuda_runtime", "cudaLaunchKernelExC", launched, 2, thread, cbid=430, correlation=number))
        args = {"External id": external, "device": device, "stream": 7, "correlation": number} | words
        self.add(event("kernel", name, start, length, 7, device, **args))

    def call(
        self, name: str, host: float, start: float, length: float, thread: int = 1, kernel: str = "", **words: Any
    ) -> None:
        """A call of the host with metadata, and its kernel."""
        given, number = metadata(name, **words), self.number()
        self.add(operator("record_param_comms", host, 10, thread, **{"External id": number}, **given))
        self.kernel(kernel or NCCL[name], start, length, host + 2, thread, number, **given)


def text(events: Iterable[Event], info: dict[str, Any] | None = INFO) -> str:
    envelope: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": []}
    if info is not None:
        envelope["distributedInfo"] = info
    head = json.dumps(envelope)[:-1]
    return head + ',\n  "traceEvents": [\n' + ",\n".join(map(_lines, events)) + '\n  ],\n  "traceName": "t.json"\n}\n'


def write(path: Path, content: str) -> Path:
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def _lines(event: Event) -> str:
    first = ", ".join(f'"{key}": {json.dumps(event[key])}' for key in ("ph", "cat", "name", "pid", "tid"))
    args = ",".join(f'"{key}": {json.dumps(value)}' for key, value in event["args"].items())
    times = f'"ts": {event["ts"]}, "dur": {event["dur"]}'
    return f'  {{\n    {first},\n    {times},\n    "args": {{\n      {args}\n    }}\n  }}'
