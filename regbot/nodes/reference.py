"""The reference probe: for some seconds, all ranks of a seat run a fixed computation and a fixed exchange.

This module is the trusted side of the probe, which starts the ranks and reads their records. No code under test runs,
so the node is trusted. The records are still validated like those of a guest, because a broken node may write anything.
"""

import secrets
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median

from pydantic import ValidationError

from regbot.engines import EngineError, Launch, LaunchResult, Seat, clean_environment
from regbot.records.baseline import format_time
from regbot.records.files import RecordError, describe_validation_error, read_record
from regbot.records.node import Measure, NodeProbe, RawNodeProbe, RepeatedTiming, Sizes
from regbot.records.run import Node
from regbot.records.verdict import EXIT_CODES
from regbot.text.clip import clip_label
from regbot.text.printable import printable
from regbot.workloads.guest import GUEST_ENVIRONMENT, MEGABYTE, describe_exit, guest_folder, write_request

GPU_SIZES = Sizes(gemm=8192, dtype="bfloat16", all_to_all_bytes=64 * MEGABYTE, copy_bytes=1024 * MEGABYTE)
CPU_SIZES = Sizes(gemm=1024, dtype="float32", all_to_all_bytes=4 * MEGABYTE, copy_bytes=128 * MEGABYTE)
SECONDS = {"gemm": 2.0, "all_to_all": 1.0, "copy": 0.5}
"""Duration of each measurement in seconds. The warm-up before a measurement takes another fifth of this time."""
TIMEOUT_S = 180.0
"""Time limit of the whole probe in seconds. Most of it is for importing torch from a slow file system."""
LAG_S = 10.0
"""Seconds until records of successful ranks must be visible on a shared file system."""
MAX_RECORD_BYTES = 65536


class ProbeError(EngineError):
    """The nodes could not be probed. The message says why and what to do."""

    exit_code = EXIT_CODES["INVALID"]


def probe(
    seat: Seat,
    ranks: int,
    scratch: Path,
    now: datetime,
    *,
    python: str = sys.executable,
    gpus: bool | None = None,
    sizes: Sizes | None = None,
    seconds: Mapping[str, float] = SECONDS,
    slowed: Mapping[int, float] | None = None,
) -> list[NodeProbe]:
    """Probe all hosts of ``seat`` at the same time, with ``ranks`` ranks in total.

    Return one NodeProbe for each host, in the seat's order. ``scratch`` is a private folder that all hosts share; it is
    emptied first. ``python`` is an interpreter that has torch. ``gpus`` says whether each rank uses a GPU; None means
    that ranks use GPUs if the nodes have any. To test the judgement, ``slowed`` maps a rank to the percentage by which
    its matrix product is enlarged. Raises ProbeError, and the errors of ``Seat.run``.
    """
    hosts = seat.allocation.hosts
    if ranks < 1 or ranks % len(hosts) or len(set(hosts)) != len(hosts):
        raise ProbeError(f"{ranks} ranks cannot be spread evenly over the hosts {', '.join(hosts[:8])}")
    on_gpu = bool(seat.node.gpus) if gpus is None else gpus
    probe_sizes = sizes or (GPU_SIZES if on_gpu else CPU_SIZES)
    nonce = secrets.token_hex(16)
    record = scratch / "record" / "node.{rank}.json"
    request = write_request(
        scratch,
        {
            "request": nonce,
            "record": str(record),
            "ranks": ranks,
            "ranks_per_host": ranks // len(hosts),
            "gpus": on_gpu,
            "sizes": probe_sizes.model_dump(),
            "seconds": dict(seconds),
            "slowed": {str(rank): pct for rank, pct in (slowed or {}).items()},
        },
    )
    result = seat.run(
        Launch(
            command=(python, str(guest_folder()), "--reference", str(request)),
            cwd=scratch,
            env=clean_environment({**GUEST_ENVIRONMENT, "OMP_NUM_THREADS": "1"}),
            log=scratch / "output.log",
            record_dir=record.parent,
            timeout_s=TIMEOUT_S,
            max_output_bytes=MEGABYTE,
            max_dir_bytes=MEGABYTE + 4 * ranks * MAX_RECORD_BYTES,
            ranks=ranks,
            readable=(guest_folder(), request),
        )
    )
    raws = _read_records(record, ranks, nonce, result, hosts)
    shutil.rmtree(record.parent / "torchrun", ignore_errors=True)
    return _combine_by_host(raws, seat, probe_sizes, result, format_time(now))


def _read_records(
    record: Path, ranks: int, nonce: str, result: LaunchResult, hosts: Sequence[str]
) -> list[RawNodeProbe]:
    """Return the records of all ranks. Raises ProbeError if a record is missing or invalid."""
    paths = [Path(str(record).replace("{rank}", str(rank))) for rank in range(ranks)]
    deadline = time.monotonic() + (LAG_S if result.exit_code == 0 else 0.0)
    while not all(path.exists() for path in paths) and time.monotonic() < deadline:
        time.sleep(0.1)
    raws: dict[int, RawNodeProbe] = {}
    for rank, path in enumerate(paths):
        if not path.exists():
            continue
        source = f"rank {rank} on {hosts[rank * len(hosts) // ranks]}"
        try:
            raw = read_record(path, RawNodeProbe, MAX_RECORD_BYTES)
        except RecordError as error:
            raise ProbeError(f"{source}: {printable(str(error))}", "the node was not judged") from error
        if raw.refusal:
            raise ProbeError(f"{source}: {printable(raw.refusal)}")
        if fault := _find_fault(raw, rank, nonce, result.wall_s):
            raise ProbeError(f"{source}: {fault}", "the node was not judged")
        raws[rank] = raw
    if len(raws) == ranks and result.exit_code == 0:
        return [raws[rank] for rank in range(ranks)]
    missing = [f"{rank} on {hosts[rank * len(hosts) // ranks]}" for rank in range(ranks) if rank not in raws]
    how = f"did not end within {TIMEOUT_S:.0f} s" if result.timed_out else describe_exit(result.exit_code)
    missing_text = f" without a record of rank {', '.join(missing[:8])}" if missing else ""
    raise ProbeError(f"the reference probe {how}{missing_text}; its last lines:\n{result.log_tail}".rstrip())


def _find_fault(raw: RawNodeProbe, rank: int, nonce: str, wall_s: float) -> str:
    """Return why a well-formed record cannot be the result of this probe; '' if it can."""
    if raw.request != nonce or raw.rank != rank:
        return "its record answers another request"
    if raw.gemm is None or raw.copy_ is None or raw.device is None or raw.clock_s is None:
        return "its record is incomplete"
    for timing in (raw.gemm, raw.local_all_to_all, raw.all_to_all, raw.copy_):
        if timing is not None and (timing.n * timing.median_s / 2 > wall_s or timing.fast_s > timing.median_s):
            return "its times are inconsistent"  # half of the repetitions took at least the median
    return ""


def _combine_by_host(
    raws: Sequence[RawNodeProbe], seat: Seat, sizes: Sizes, result: LaunchResult, when: str
) -> list[NodeProbe]:
    hosts, allocation = seat.allocation.hosts, seat.allocation
    ranks_per_host = len(raws) // len(hosts)
    median_clock_s = median(raw.clock_s or 0.0 for raw in raws)
    health = result.health if len(hosts) == 1 else None
    probes = []
    for number, host in enumerate(hosts):
        host_raws = raws[number * ranks_per_host : (number + 1) * ranks_per_host]
        gemm, local, together, copy = (
            _slowest(host_raws, measure) for measure in ("gemm", "local_all_to_all", "all_to_all", "copy")
        )
        if (
            gemm is None
            or copy is None
            or (local is None) != (ranks_per_host == 1)
            or (together is None) != (len(hosts) == 1)
        ):
            raise ProbeError(f"{host}: its ranks did not measure what was requested", "the node was not judged")
        document = {
            "host": host,
            "when": when,
            "node_class": _node_class(host_raws, raws[0], seat.node),
            "driver": host_raws[0].driver
            or (seat.node.driver if host_raws[0].device_name == raws[0].device_name else None),
            "container": seat.node.container,
            "software": f"torch {host_raws[0].torch}",
            "device": host_raws[0].device,
            "device_name": printable(host_raws[0].device_name),
            "ranks": ranks_per_host,
            "hosts": hosts,
            "engine": allocation.engine,
            "job": allocation.job,
            "sizes": sizes,
            "gemm": gemm,
            "gemm_rank": max(host_raws, key=lambda raw: raw.gemm.median_s if raw.gemm else 0.0).rank,
            "local_all_to_all": local,
            "all_to_all": together,
            "copy": copy,
            "gemm_tflops": 2 * sizes.gemm**3 / gemm.median_s / 1e12,
            "local_all_to_all_gbs": _bandwidth_gbs(sizes, local, ranks_per_host),
            "all_to_all_gbs": _bandwidth_gbs(sizes, together, len(raws)),
            "copy_gbs": 2 * sizes.copy_bytes / copy.median_s / 1e9,
            "skew_s": median(raw.clock_s or 0.0 for raw in host_raws) - median_clock_s,
            "others_share": health.during.cpu.other_share if health else None,
            "causes": [cause.text for cause in health.causes if cause.outside][:64] if health else [],
        }
        try:
            probes.append(NodeProbe.model_validate(document))
        except ValidationError as error:
            raise ProbeError(f"{host}: {describe_validation_error(error)}", "the node was not judged") from error
    return probes


def _slowest(raws: Sequence[RawNodeProbe], measure: Measure) -> RepeatedTiming | None:
    """Return the timing of the slowest rank of one host; None if a rank did not make this measurement."""
    timings: list[RepeatedTiming | None] = [raw.copy_ if measure == "copy" else getattr(raw, measure) for raw in raws]
    measured = [timing for timing in timings if timing is not None]
    return max(measured, key=lambda timing: timing.median_s) if len(measured) == len(raws) else None


def _node_class(host_raws: Sequence[RawNodeProbe], first: RawNodeProbe, node: Node) -> str:
    """Return the class of a host.

    If the host has the same kind of device as the seat's first node, it has the class of the seat. Otherwise the class
    names the host's own devices.
    """
    name = host_raws[0].device_name
    return node.node_class if name == first.device_name else clip_label(printable(f"{len(host_raws)} x {name}"))


def _bandwidth_gbs(sizes: Sizes, timing: RepeatedTiming | None, ranks: int) -> float | None:
    return sizes.all_to_all_bytes * (ranks - 1) / ranks / timing.median_s / 1e9 if timing else None
