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
# ``gemm`` is the number of rows and columns of the matrices.
SECONDS = {"gemm": 2.0, "all_to_all": 1.0, "copy": 0.5}
"""Duration of each measurement in seconds. The warm-up before a measurement takes another fifth of this time."""
TIMEOUT_S = 180.0
"""Time limit of the whole probe in seconds. Most of it is for importing torch from a slow file system."""
LAG_S = 10.0
"""Seconds that a shared file system may take to show the records of ranks that have succeeded."""
MAX_RECORD_BYTES = 65536
MAX_CAUSES = 64
"""Maximum number of faults that the record of a probe lists, such as memory errors of a GPU. Slowness is not listed."""


class ProbeError(EngineError):
    """Raised if the nodes could not be probed. The message says why and what to do."""

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

    Return one NodeProbe for each host, in the seat's order. Raises ProbeError, and the errors of ``Seat.run``.

    scratch   Private folder that all hosts share. It is emptied first.
    now       Time of the probe, for its record.
    python    Interpreter that has torch.
    gpus      Whether each rank uses a GPU. None means that ranks use GPUs if the nodes have any.
    sizes     Sizes of the measurements. None selects GPU_SIZES or CPU_SIZES.
    seconds   Duration of each measurement, by name.
    slowed    For tests of the judgement: rank -> percentage by which its matrix product is enlarged.
    """
    hosts = seat.allocation.hosts
    if ranks < 1 or ranks % len(hosts) or len(set(hosts)) != len(hosts):
        raise ProbeError(f"{ranks} ranks cannot be spread evenly over the hosts {', '.join(hosts[:8])}")
    on_gpu = bool(seat.node.gpus) if gpus is None else gpus
    probe_sizes = sizes or (GPU_SIZES if on_gpu else CPU_SIZES)
    nonce = secrets.token_hex(16)
    # A rank puts its number in place of {rank} in this path.
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
    rank_probes = _read_records(record, ranks, nonce, result, hosts)
    shutil.rmtree(record.parent / "torchrun", ignore_errors=True)
    return _combine_by_host(rank_probes, seat, probe_sizes, result, format_time(now))


def _read_records(
    record: Path, ranks: int, nonce: str, result: LaunchResult, hosts: Sequence[str]
) -> list[RawNodeProbe]:
    """Return the records of all ranks, in the order of the ranks. Raises ProbeError if one is missing or invalid.

    ``record`` is the path of a record, with ``{rank}`` in place of the rank's number. ``nonce`` is the request's.
    ``result`` is the end of the launch of all ranks, and ``hosts`` are the hosts of the ranks.
    """
    ranks_per_host = ranks // len(hosts)
    paths = [Path(str(record).replace("{rank}", str(rank))) for rank in range(ranks)]
    # A shared file system may show the records of successful ranks late.
    deadline = time.monotonic() + (LAG_S if result.exit_code == 0 else 0.0)
    while not all(path.exists() for path in paths) and time.monotonic() < deadline:
        time.sleep(0.1)
    rank_probes: dict[int, RawNodeProbe] = {}
    for rank, path in enumerate(paths):
        if not path.exists():
            continue
        source = f"rank {rank} on {hosts[rank // ranks_per_host]}"
        try:
            rank_probe = read_record(path, RawNodeProbe, MAX_RECORD_BYTES)
        except RecordError as error:
            raise ProbeError(f"{source}: {printable(str(error))}", "the node was not judged") from error
        if rank_probe.refusal:  # why this rank could not measure
            raise ProbeError(f"{source}: {printable(rank_probe.refusal)}")
        if fault := _find_fault(rank_probe, rank, nonce, result.wall_s):
            raise ProbeError(f"{source}: {fault}", "the node was not judged")
        rank_probes[rank] = rank_probe
    if len(rank_probes) == ranks and result.exit_code == 0:
        return [rank_probes[rank] for rank in range(ranks)]
    missing = [f"{rank} on {hosts[rank // ranks_per_host]}" for rank in range(ranks) if rank not in rank_probes]
    end_text = f"did not end within {TIMEOUT_S:.0f} s" if result.timed_out else describe_exit(result.exit_code)
    missing_text = f" without a record of rank {', '.join(missing[:8])}" if missing else ""
    raise ProbeError(f"the reference probe {end_text}{missing_text}; its last lines:\n{result.log_tail}".rstrip())


def _find_fault(rank_probe: RawNodeProbe, rank: int, nonce: str, wall_s: float) -> str:
    """Return why a well-formed record cannot be the result of this probe; '' if it can.

    ``nonce`` identifies the request, and a record names the request that it answers (``rank_probe.request``).

    ``wall_s`` is the duration of the whole probe. Of the ``n`` repetitions of a measurement, half take at least the
    median time each. Together these repetitions cannot take longer than the whole probe. ``fast_s`` is the time of the
    fastest tenth of the repetitions, which cannot be above the median.
    """
    if rank_probe.request != nonce or rank_probe.rank != rank:
        return "its record answers another request"
    required = (rank_probe.gemm, rank_probe.copy_, rank_probe.device, rank_probe.clock_s)
    if any(value is None for value in required):
        return "its record is incomplete"
    for timing in (rank_probe.gemm, rank_probe.local_all_to_all, rank_probe.all_to_all, rank_probe.copy_):
        if timing is None:
            continue
        slower_half_s = timing.n / 2 * timing.median_s
        if slower_half_s > wall_s or timing.fast_s > timing.median_s:
            return "its times are inconsistent"
    return ""


def _combine_by_host(
    rank_probes: Sequence[RawNodeProbe], seat: Seat, sizes: Sizes, result: LaunchResult, when: str
) -> list[NodeProbe]:
    """Return one probe for each host: for each measurement, its slowest rank. Raises ProbeError.

    ``rank_probes`` has the records of all ranks. ``result`` is the end of their launch, with the health of the machine
    during the probe. The health is known only if there is a single host.
    """
    hosts, allocation = seat.allocation.hosts, seat.allocation
    ranks_per_host = len(rank_probes) // len(hosts)
    median_clock_s = median(rank_probe.clock_s or 0.0 for rank_probe in rank_probes)
    health = result.health if len(hosts) == 1 else None
    probes = []
    for number, host in enumerate(hosts):
        # Ranks are numbered host by host.
        host_probes = rank_probes[number * ranks_per_host : (number + 1) * ranks_per_host]
        first_probe = host_probes[0]
        gemm, copy = _slowest(host_probes, "gemm"), _slowest(host_probes, "copy")
        # The local exchange is among the ranks of one host, the other one among all ranks.
        local_exchange, exchange = _slowest(host_probes, "local_all_to_all"), _slowest(host_probes, "all_to_all")
        needs_local_exchange, needs_exchange = ranks_per_host > 1, len(hosts) > 1
        if (
            gemm is None
            or copy is None
            or (local_exchange is not None) != needs_local_exchange
            or (exchange is not None) != needs_exchange
        ):
            raise ProbeError(f"{host}: its ranks did not measure what was requested", "the node was not judged")
        # The seat's node describes the first host. Its driver is used only for hosts with the same kind of device.
        has_same_device = first_probe.device_name == rank_probes[0].device_name
        # ``outside`` marks faults of the node and other work on it, which the probe itself did not cause.
        outside_causes = [cause.text for cause in health.causes if cause.outside] if health else []
        document = {
            "host": host,
            "when": when,
            "node_class": _node_class(host_probes, rank_probes[0], seat.node),
            "driver": first_probe.driver or (seat.node.driver if has_same_device else None),
            "container": seat.node.container,
            "software": f"torch {first_probe.torch}",
            "device": first_probe.device,
            "device_name": printable(first_probe.device_name),
            "ranks": ranks_per_host,
            "hosts": hosts,
            "engine": allocation.engine,
            "job": allocation.job,
            "sizes": sizes,
            "gemm": gemm,
            "gemm_rank": max(host_probes, key=_gemm_s).rank,
            "local_all_to_all": local_exchange,
            "all_to_all": exchange,
            "copy": copy,
            "gemm_tflops": 2 * sizes.gemm**3 / gemm.median_s / 1e12,  # n**3 multiplications and as many additions
            "local_all_to_all_gbs": _bandwidth_gbs(sizes, local_exchange, ranks_per_host),
            "all_to_all_gbs": _bandwidth_gbs(sizes, exchange, len(rank_probes)),
            "copy_gbs": 2 * sizes.copy_bytes / copy.median_s / 1e9,  # each byte is read and written
            # How far the clock of this host is ahead of the median clock. A rank reads its clock right after an
            # exchange among all ranks, so at about the same moment.
            "skew_s": median(rank_probe.clock_s or 0.0 for rank_probe in host_probes) - median_clock_s,
            # The share of the cores' time that other work took.
            "others_share": health.during.cpu.other_share if health else None,
            "causes": outside_causes[:MAX_CAUSES],
        }
        try:
            probes.append(NodeProbe.model_validate(document))
        except ValidationError as error:
            raise ProbeError(f"{host}: {describe_validation_error(error)}", "the node was not judged") from error
    return probes


def _gemm_s(rank_probe: RawNodeProbe) -> float:
    """Return the seconds of a rank's matrix product."""
    return rank_probe.gemm.median_s if rank_probe.gemm is not None else 0.0


def _slowest(host_probes: Sequence[RawNodeProbe], measure: Measure) -> RepeatedTiming | None:
    """Return the timing of the slowest rank of one host; None if a rank did not make this measurement."""
    # The measurement "copy" is the field ``copy_`` of the record.
    timings: list[RepeatedTiming | None] = [
        rank_probe.copy_ if measure == "copy" else getattr(rank_probe, measure) for rank_probe in host_probes
    ]
    present_timings = [timing for timing in timings if timing is not None]
    return max(present_timings, key=lambda timing: timing.median_s) if len(present_timings) == len(timings) else None


def _node_class(host_probes: Sequence[RawNodeProbe], first_rank: RawNodeProbe, node: Node) -> str:
    """Return the class of the host whose ranks are ``host_probes``. ``node`` describes the seat.

    If the host has the same kind of device as the seat's first rank, it has the class of the seat. Otherwise the class
    names the host's own devices.
    """
    device_name = host_probes[0].device_name
    if device_name == first_rank.device_name:
        return node.node_class
    return clip_label(printable(f"{len(host_probes)} x {device_name}"))


def _bandwidth_gbs(sizes: Sizes, timing: RepeatedTiming | None, ranks: int) -> float | None:
    """Return the GB/s that a rank sends to the other ranks in an all-to-all; None if it was not measured."""
    if timing is None:
        return None
    bytes_to_others = sizes.all_to_all_bytes * (ranks - 1) / ranks
    return bytes_to_others / timing.median_s / 1e9
