"""The trusted side of the reference probe: for some seconds, all ranks of a seat run a fixed computation and a fixed
exchange. The records are validated like those of a guest, because a broken node may write anything."""

import secrets
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from regbot.engines.engine import Seat
from regbot.engines.guest import GUEST_ENVIRONMENT, MEGABYTE, describe_exit, guest_folder, write_request
from regbot.engines.launch import EngineError, Launch, LaunchResult
from regbot.engines.local import clean_environment
from regbot.records.files import RecordError, describe_validation_error, read_record
from regbot.records.node import Measure, NodeProbe, RawNodeProbe, RepeatedTiming, Sizes
from regbot.records.text.printable import printable

GPU_SIZES = Sizes(gemm=8192, dtype="bfloat16", all_to_all_bytes=64 * MEGABYTE, copy_bytes=1024 * MEGABYTE)
CPU_SIZES = Sizes(gemm=1024, dtype="float32", all_to_all_bytes=4 * MEGABYTE, copy_bytes=128 * MEGABYTE)
# ``gemm`` is the number of rows and columns of the matrices.
SECONDS = {"gemm": 2.0, "all_to_all": 1.0, "copy": 0.5}
"""Duration of each measurement in seconds, without its warm-up of another fifth."""
TIMEOUT_S = 180.0
"""Time limit of the whole probe, mostly for importing torch from a slow file system."""
LAG_S = 10.0
MAX_RECORD_BYTES = 65536
CROWDED_SHARE = 0.1
"""A probe is not judged if other work took at least this share of the cores' time."""


class ProbeError(EngineError):
    """Raised if the nodes could not be probed. The message says why and what to do."""


def probe_nodes(
    seat: Seat,
    ranks: int,
    scratch: Path,
    now: datetime,
    *,
    python: str,
    gpus: bool,
    sizes: Sizes | None = None,
    seconds: Mapping[str, float] = SECONDS,
    slowed: Mapping[int, float] | None = None,
) -> list[NodeProbe]:
    """Probe all hosts of ``seat`` at the same time. Return one NodeProbe for each, in the seat's order. ``scratch`` is
    a private folder that all hosts share; it is emptied first. ``python`` has torch; one of the checkout is code under
    test, so regbot's own is used if this is no absolute path. ``sizes`` and ``seconds`` of the measurements have
    defaults. ``slowed``, for tests: rank -> percentage by which its matrix product is enlarged. Raises ProbeError, and
    the errors of ``Seat.run``."""
    hosts = seat.allocation.hosts
    if ranks < 1 or ranks % len(hosts) or len(set(hosts)) != len(hosts):
        raise ProbeError(f"{ranks} ranks cannot be spread evenly over the hosts {', '.join(hosts[:8])}")
    probe_sizes = sizes or (GPU_SIZES if gpus else CPU_SIZES)
    interpreter = python if Path(python).is_absolute() else sys.executable
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
            "gpus": gpus,
            "sizes": probe_sizes.model_dump(),
            "seconds": dict(seconds),
            "slowed": {str(rank): pct for rank, pct in (slowed or {}).items()},
        },
    )
    result = seat.run(
        Launch(
            command=(interpreter, str(guest_folder()), "--reference", str(request)),
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
    return _combine_by_host(rank_probes, seat, probe_sizes, result, now)


def _read_records(
    record: Path, ranks: int, nonce: str, result: LaunchResult, hosts: Sequence[str]
) -> list[RawNodeProbe]:
    """Return the records of all ranks, in their order. Raises ProbeError if one is missing or invalid."""
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
    """Return why a well-formed record cannot be the result of this probe, which took ``wall_s`` seconds; '' if it can.
    Of the ``n`` repetitions of a measurement, half take at least the median time each, and the fastest tenth at most
    the median."""
    if rank_probe.request != nonce or rank_probe.rank != rank:
        return "its record answers another request"
    if None in (rank_probe.gemm, rank_probe.copy_, rank_probe.device):
        return "its record is incomplete"
    for timing in (rank_probe.gemm, rank_probe.local_all_to_all, rank_probe.all_to_all, rank_probe.copy_):
        if timing is None:
            continue
        if timing.n / 2 * timing.median_s > wall_s or timing.fast_s > timing.median_s:
            return "its times are inconsistent"
    return ""


def _combine_by_host(
    rank_probes: Sequence[RawNodeProbe], seat: Seat, sizes: Sizes, result: LaunchResult, now: datetime
) -> list[NodeProbe]:
    """Return one probe for each host: for each measurement, its slowest rank. Raises ProbeError."""
    hosts = seat.allocation.hosts
    ranks_per_host = len(rank_probes) // len(hosts)
    disturbance = ""
    if result.health is not None and len(hosts) == 1:
        disturbance = next((cause.text for cause in result.health.causes if cause.outside), "")
        others_share = result.health.during.cpu.other_share
        if others_share is not None and others_share >= CROWDED_SHARE:
            disturbance = f"other work took {others_share:.0%} of its cores' time"
    probes = []
    for number, host in enumerate(hosts):
        # Ranks are numbered host by host.
        host_probes = rank_probes[number * ranks_per_host : (number + 1) * ranks_per_host]
        first_probe = host_probes[0]
        timings = {measure: _slowest(host_probes, measure) for measure in get_args(Measure)}
        expected = {"gemm": True, "copy": True, "local_all_to_all": ranks_per_host > 1, "all_to_all": len(hosts) > 1}
        if {measure: timing is not None for measure, timing in timings.items()} != expected:
            raise ProbeError(f"{host}: its ranks did not measure what was requested", "the node was not judged")
        document = {
            "host": host,
            "unix_s": now.timestamp(),
            "driver": first_probe.driver or seat.node.driver,
            "container": seat.node.container,
            "software": f"torch {first_probe.torch}",
            "device_name": printable(first_probe.device_name),
            "ranks": ranks_per_host,
            "hosts": hosts,
            "sizes": sizes,
            "disturbance": disturbance,
            **timings,
        }
        try:
            probes.append(NodeProbe.model_validate(document))
        except ValidationError as error:
            raise ProbeError(f"{host}: {describe_validation_error(error)}", "the node was not judged") from error
    return probes


def _slowest(host_probes: Sequence[RawNodeProbe], measure: Measure) -> RepeatedTiming | None:
    # The measurement "copy" is the field ``copy_`` of the record.
    timings: list[RepeatedTiming | None] = [
        rank_probe.copy_ if measure == "copy" else getattr(rank_probe, measure) for rank_probe in host_probes
    ]
    present_timings = [timing for timing in timings if timing is not None]
    return max(present_timings, key=lambda timing: timing.median_s) if len(present_timings) == len(timings) else None
