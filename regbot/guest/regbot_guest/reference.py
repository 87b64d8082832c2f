"""The reference probe: measures how fast a node runs fixed operations, independent of the code under test.

Every rank, at the same time, measures a matrix product, an all-to-all in its host and one among all hosts, and a memory
copy, each for a few seconds. Median and median absolute deviation are robust to single disturbances; the 10th
percentile is hardly affected by other load on the node.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from regbot_guest.record_file import write_json

EXIT_REFUSED = 10
JOIN_S = 60.0
"""Seconds that the ranks wait for each other: short, because a rank that does not join has a fault."""
MAX_REPETITIONS = 2000
MIN_REPETITIONS = 5
SYNC_INTERVAL = 10
"""Repetitions between two synchronisations with a GPU, after which the time budget is checked."""

Work = Callable[[], Any]


def main(path: str) -> int:
    """Run the probe on this rank and write its record. ``path`` is the file of the request. Return the exit code."""
    request: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    rank = int(os.environ.get("RANK", "0"))
    record: dict[str, Any] = {"schema": "regbot/node-probe-raw@1", "request": request["request"], "rank": rank}
    try:
        import torch
    except ImportError as error:
        record["refusal"] = f"{sys.executable} cannot import torch ({error}); the probe needs torch as training does"
    else:
        record |= _probe(torch, request, rank)
    write_json(request["record"], record)
    if "refusal" in record:
        print(record["refusal"], file=sys.stderr)
    return EXIT_REFUSED if "refusal" in record else 0


def _probe(torch: Any, request: dict[str, Any], rank: int) -> dict[str, Any]:
    import torch.distributed as dist

    torch.set_num_threads(1)
    local_ranks, world = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), int(os.environ.get("WORLD_SIZE", "1"))
    if world != request["ranks"]:
        return {"refusal": f"the launcher started {world} ranks, but {request['ranks']} were requested"}
    on_gpu = request["gpus"]
    if on_gpu and torch.cuda.device_count() < local_ranks:
        visible_gpus = torch.cuda.device_count()
        return {
            "refusal": f"torch {torch.__version__} sees {visible_gpus} GPUs here, but {local_ranks} ranks need one each"
        }
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(seconds=JOIN_S))
    try:
        results = _measure(torch, dist, request, device, rank)
    finally:
        dist.destroy_process_group()
    name = torch.cuda.get_device_name(device) if on_gpu else _describe_processor()
    return {
        **results,
        "device": device.type,
        "device_name": name,
        "driver": _read_driver_version(),
        "torch": str(torch.__version__),
    }


class _Operation(NamedTuple):
    name: str
    work: "Work | None" = None  # None for an all-to-all, whose tensors are created only when it is measured
    group: Any = None
    ranks: int = 1  # number of ranks of the group; an all-to-all of 1 rank is not measured


def _measure(torch: Any, dist: Any, request: dict[str, Any], device: Any, rank: int) -> dict[str, Any]:
    """None stands for an all-to-all that is not measured."""
    sizes, seconds, host_ranks = request["sizes"], request["seconds"], request["ranks_per_host"]
    hosts = request["ranks"] // host_ranks
    time_repetitions = partial(_time_on_gpu, torch) if device.type == "cuda" else _time_on_cpu
    host_group = None
    for host in range(hosts):  # every rank must call new_group for every group
        new_group = dist.new_group(list(range(host * host_ranks, (host + 1) * host_ranks)))
        host_group = new_group if host == rank // host_ranks else host_group
    barrier_tensor = torch.zeros(1, device=device)
    dist.all_reduce(barrier_tensor)
    results: dict[str, Any] = {}
    # On a single host both all-to-alls are the same, so only local_all_to_all is measured. The loop below skips an
    # all-to-all of 1 rank.
    ranks_across_hosts = request["ranks"] if hosts > 1 else 1
    operations = (
        _Operation("gemm", work=_make_product(torch, sizes, device)),
        _Operation("local_all_to_all", group=host_group, ranks=host_ranks),
        _Operation("all_to_all", group=dist.group.WORLD, ranks=ranks_across_hosts),
        _Operation("copy", work=_make_copy(torch, sizes["copy_bytes"], device)),
    )
    for operation in operations:
        is_collective = operation.work is None
        if is_collective and operation.ranks == 1:
            results[operation.name] = None
            continue
        work = operation.work or _make_exchange(
            torch, dist, sizes["all_to_all_bytes"], device, operation.group, operation.ranks
        )
        budget_s = seconds["all_to_all" if is_collective else operation.name]
        dist.all_reduce(barrier_tensor)
        # With a count, the number of seconds has no effect.
        warmup_times = time_repetitions(work, budget_s / 5, count=MIN_REPETITIONS)
        num_repetitions = None  # as many as fit into budget_s
        if is_collective:  # all ranks must repeat a collective equally often
            slowest_median_s = torch.tensor([statistics.median(warmup_times)], device=device)
            dist.all_reduce(slowest_median_s, op=dist.ReduceOp.MAX)
            fitting_repetitions = int(budget_s / max(slowest_median_s.item(), 1e-6))
            num_repetitions = max(MIN_REPETITIONS, min(MAX_REPETITIONS, fitting_repetitions))
        results[operation.name] = _summarize(time_repetitions(work, budget_s, count=num_repetitions))
    dist.all_reduce(barrier_tensor)  # no rank leaves while another rank is still measuring
    return results


def _make_product(torch: Any, sizes: dict[str, Any], device: Any) -> Work:
    size, dtype = sizes["gemm"], getattr(torch, sizes["dtype"])
    generator = torch.Generator(device=device).manual_seed(1234)
    left = torch.randn(size, size, generator=generator, device=device).to(dtype)
    right = torch.randn(size, size, generator=generator, device=device).to(dtype)
    out = torch.empty(size, size, device=device, dtype=dtype)
    return lambda: torch.mm(left, right, out=out)


def _make_exchange(torch: Any, dist: Any, num_bytes: int, device: Any, group: Any, ranks: int) -> Work:
    """Each rank sends ``num_bytes`` bytes in equal parts."""
    elements_per_rank = num_bytes // 4 // ranks  # a float32 has 4 bytes
    elements = elements_per_rank * ranks
    sent, received = torch.ones(elements, device=device), torch.empty(elements, device=device)
    return lambda: dist.all_to_all_single(received, sent, group=group)


def _make_copy(torch: Any, num_bytes: int, device: Any) -> Work:
    source = torch.ones(num_bytes // 4, device=device)  # a float32 has 4 bytes
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _time_on_cpu(work: Work, budget_s: float, count: "int | None") -> list[float]:
    """Return the seconds of ``count`` repetitions, or of as many as fit into ``budget_s`` if ``count`` is None."""
    times: list[float] = []
    deadline = time.perf_counter() + budget_s
    while _is_repetition_due(len(times), count, deadline):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times


def _time_on_gpu(torch: Any, work: Work, budget_s: float, count: "int | None") -> list[float]:
    events: list[Any] = []
    deadline = time.perf_counter() + budget_s
    most_repetitions = count or MAX_REPETITIONS
    while _is_repetition_due(len(events), count, deadline):
        for _ in range(min(SYNC_INTERVAL, most_repetitions - len(events))):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            work()
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1000 for start, end in events]


def _is_repetition_due(finished: int, count: "int | None", deadline: float) -> bool:
    if count is not None:
        return finished < count
    if finished < MIN_REPETITIONS:
        return True
    return finished < MAX_REPETITIONS and time.perf_counter() < deadline


def _summarize(times: list[float]) -> dict[str, Any]:
    median_s = statistics.median(times)
    return {
        "n": len(times),
        "median_s": median_s,
        "mad_s": statistics.median(abs(seconds - median_s) for seconds in times),
        "fast_s": sorted(times)[len(times) // 10],
    }


def _describe_processor() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    names: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'CPU'}, {cores} {'core' if cores == 1 else 'cores'}"


def _read_driver_version() -> "str | None":
    try:
        return Path("/sys/module/nvidia/version").read_text(errors="replace").strip()[:100] or None
    except OSError:
        return None
