"""The reference probe: what a node does at a fixed size, whatever code is under test.

Run by torch's launcher on every rank: ``python <guest folder> --reference REQUEST.json``. Each rank leaves one record:
a matrix product, an all-to-all among the ranks of its host, one among all ranks where there are several hosts, and a
copy in memory, each repeated for a few seconds. Times are summed up by their median and their median absolute
deviation, so that a single disturbance counts for nothing, and by their fastest tenth, which hardly shows who else was
busy there.

Needs torch, as the ranks that are timed afterwards do. All ranks compute at the same time, as they do in training.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

REFUSED = 10
"""Exit code of a process that left a record with a refusal."""
JOIN_S = 60.0
"""How long ranks wait for each other: a rank that never joins is a finding, and not to be waited for long."""
MOST = 2000
LEAST = 5
"""Repetitions of one measurement."""
BATCH = 10
"""Repetitions between two looks at the clock on a GPU, which is asked to finish for that."""

Work = Callable[[], Any]


def main(path: str) -> int:
    request: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    rank = int(os.environ.get("RANK", "0"))
    record: dict[str, Any] = {"schema": "regbot/node-probe-raw@1", "request": request["request"], "rank": rank}
    try:
        import torch
    except ImportError as error:
        record["refusal"] = f"{sys.executable} cannot import torch ({error}), which the probe needs as training does"
    else:
        record |= _probe(torch, request, rank)
    _write(Path(request["record"].replace("{rank}", str(rank))), record)
    if "refusal" in record:
        print(record["refusal"], file=sys.stderr)
    return REFUSED if "refusal" in record else 0


def _probe(torch: Any, request: dict[str, Any], rank: int) -> dict[str, Any]:
    import torch.distributed as dist

    torch.set_num_threads(1)
    here, world = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), int(os.environ.get("WORLD_SIZE", "1"))
    if world != request["ranks"]:
        return {"refusal": f"the launcher started {world} ranks, {request['ranks']} were asked for"}
    on_gpu = request["gpus"]
    if on_gpu and torch.cuda.device_count() < here:
        found = torch.cuda.device_count()
        return {"refusal": f"torch {torch.__version__} sees {found} GPUs here, and {here} ranks need one each"}
    kind = "cuda" if on_gpu else "cpu"
    device = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device(kind)
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(seconds=JOIN_S))
    try:
        found = _measure(torch, dist, request, device, rank)
    finally:
        dist.destroy_process_group()
    name = torch.cuda.get_device_name(device) if on_gpu else _processor()
    return {**found, "device": kind, "device_name": name, "driver": _driver(), "torch": str(torch.__version__)}


def _measure(torch: Any, dist: Any, request: dict[str, Any], device: Any, rank: int) -> dict[str, Any]:
    sizes, seconds, each = request["sizes"], request["seconds"], request["ranks_per_host"]
    hosts = request["ranks"] // each
    clock = _gpu_times if device.type == "cuda" else _cpu_times
    local = None
    for host in range(hosts):  # every rank takes part in making every group
        made = dist.new_group(list(range(host * each, (host + 1) * each)))
        local = made if host == rank // each else local
    meet = torch.zeros(1, device=device)
    dist.all_reduce(meet)
    found: dict[str, Any] = {"clock_s": time.time()}  # at about one moment on all hosts
    product = _product(torch, sizes, device, float(request["slowed"].get(str(rank), 0.0)))
    copy = _copy(torch, sizes["copy_bytes"], device)
    for name, work, group, ranks in (
        ("gemm", product, None, 1),
        ("local_all_to_all", None, local, each),
        ("all_to_all", None, dist.group.WORLD, request["ranks"] if hosts > 1 else 1),
        ("copy", copy, None, 1),
    ):
        if work is None and ranks == 1:
            found[name] = None  # a group of one exchanges nothing
            continue
        collective = work is None
        step = work or _exchange(torch, dist, sizes["all_to_all_bytes"], device, group, ranks)
        budget = seconds["all_to_all" if collective else name]
        dist.all_reduce(meet)
        warm = clock(torch, step, budget / 5, LEAST)
        count = None
        if collective:  # all ranks must repeat it equally often
            slowest = torch.tensor([statistics.median(warm)], device=device)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            count = max(LEAST, min(MOST, int(budget / max(slowest.item(), 1e-6))))
        found[name] = _summary(clock(torch, step, budget, count))
    dist.all_reduce(meet)  # nobody leaves while another is measuring
    return found


def _product(torch: Any, sizes: dict[str, Any], device: Any, slowed_pct: float) -> Work:
    """A square matrix product. A planted slowdown, which tries the judgement, gives it more rows to compute."""
    size, dtype = sizes["gemm"], getattr(torch, sizes["dtype"])
    rows = round(size * (1 + slowed_pct / 100))
    generator = torch.Generator(device=device).manual_seed(1234)
    left = torch.randn(rows, size, generator=generator, device=device).to(dtype)
    right = torch.randn(size, size, generator=generator, device=device).to(dtype)
    out = torch.empty(rows, size, device=device, dtype=dtype)
    return lambda: torch.mm(left, right, out=out)


def _exchange(torch: Any, dist: Any, size: int, device: Any, group: Any, ranks: int) -> Work:
    """``size`` bytes of each rank, to all ranks of the group in equal parts."""
    elements = size // 4 // ranks * ranks
    given, taken = torch.ones(elements, device=device), torch.empty(elements, device=device)
    return lambda: dist.all_to_all_single(taken, given, group=group)


def _copy(torch: Any, size: int, device: Any) -> Work:
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _cpu_times(torch: Any, step: Work, seconds: float, count: "int | None") -> list[float]:
    """Seconds of each repetition: ``count`` of them, or as many as fit into ``seconds``."""
    del torch
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < (count or MOST) and (count or len(times) < LEAST or time.perf_counter() < until):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return times


def _gpu_times(torch: Any, step: Work, seconds: float, count: "int | None") -> list[float]:
    """The same by the device's own clock."""
    marks: list[Any] = []
    until = time.perf_counter() + seconds
    while len(marks) < (count or MOST) and (count or len(marks) < LEAST or time.perf_counter() < until):
        for _ in range(min(BATCH, (count or MOST) - len(marks))):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            step()
            end.record()
            marks.append((start, end))
        torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1000 for start, end in marks]


def _summary(times: list[float]) -> dict[str, Any]:
    middle = statistics.median(times)
    return {
        "n": len(times),
        "median_s": middle,
        "mad_s": statistics.median(abs(each - middle) for each in times),
        "fast_s": sorted(times)[len(times) // 10],
    }


def _processor() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    name = "CPU"
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{name}, {cores} core{'s' * (cores > 1)}"


def _driver() -> "str | None":
    """Version of the NVIDIA driver that is loaded; None where none is, or none that tells."""
    try:
        return Path("/sys/module/nvidia/version").read_text(errors="replace").strip()[:100] or None
    except OSError:
        return None


def _write(path: Path, record: dict[str, Any]) -> None:
    """Atomically: a reader that looks too early, as through a file system that lags, sees no half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(record, file, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
