"""The trusted side of the reference probe: for some seconds, all ranks of a seat run a fixed computation and a fixed
exchange. The records are validated like those of a guest, because a broken node may write anything."""

import secrets
import shutil
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from regbot.engines.engine import Seat
from regbot.engines.guest import GUEST_ENVIRONMENT, MEGABYTE, describe_exit, guest_folder, write_request
from regbot.engines.launch import EngineError, Launch, LaunchResult
from regbot.engines.local import clean_environment
from regbot.records.files import RecordError, describe_validation_error, read_record
from regbot.records.health import Health
from regbot.records.node import Measure, NodeProbe, RawNodeProbe, RepeatedTiming, Sizes
from regbot.records.text.printable import printable

GPU_SIZES = Sizes(gemm=8192, dtype="bfloat16", all_to_all_bytes=64 * MEGABYTE, copy_bytes=1024 * MEGABYTE)
CPU_SIZES = Sizes(gemm=1024, dtype="float32", all_to_all_bytes=4 * MEGABYTE, copy_bytes=128 * MEGABYTE)
# ``gemm`` is the number of rows and columns of the matrices.
SECONDS = {"gemm": 2.0, "all_to_all": 1.0, "copy": 0.5}
"""Duration of each measurement in seconds, without its warm-up of another fifth."""
TIMEOUT_S = 180.0
"""Time limit of the whole probe, mostly for importing torch from a slow file system."""
MAX_RECORD_BYTES = 65536
CROWDED_SHARE = 0.1
"""A probe is not judged if other work took at least this share of the cores' time."""


class ProbeError(EngineError):
    """Raised if the nodes could not be probed. The message says why and what to do."""


def probe_nodes(seat: Seat, ranks: int, scratch: Path, now: datetime, *, python: str, gpus: bool) -> list[NodeProbe]:
    """Probe all hosts of ``seat`` at the same time. Return one NodeProbe for each, in the seat's order. ``scratch`` is
    a private folder that all hosts share; it is emptied first. ``python`` has torch; one of the checkout is code under
    test, so regbot's own is used if this is no absolute path. Raises ProbeError, and the errors of ``Seat.run``."""
    hosts = seat.allocation.hosts
    ranks_per_host = ranks // len(hosts)
    sizes = GPU_SIZES if gpus else CPU_SIZES
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
            "ranks_per_host": ranks_per_host,
            "gpus": gpus,
            "sizes": sizes.model_dump(),
            "seconds": SECONDS,
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
    probes = []
    for number, host in enumerate(hosts):
        # Ranks are numbered host by host.
        host_ranks = range(number * ranks_per_host, (number + 1) * ranks_per_host)
        rank_probes = [_read_record(record, rank, host, nonce, result) for rank in host_ranks]
        document = {
            "host": host,
            "unix_s": now.timestamp(),
            "driver": rank_probes[0].driver or seat.node.driver,
            "container": seat.node.container,
            "software": f"torch {rank_probes[0].torch}",
            "device_name": printable(rank_probes[0].device_name),
            "ranks": ranks_per_host,
            "hosts": hosts,
            "sizes": sizes,
            "disturbance": _describe_disturbance(result.health) if len(hosts) == 1 else "",
            **{measure: _slowest(rank_probes, measure) for measure in get_args(Measure)},
        }
        try:
            probes.append(NodeProbe.model_validate(document))
        except ValidationError as error:  # such as a missing measurement
            raise ProbeError(f"{host}: {describe_validation_error(error)}", "the node was not judged") from error
    shutil.rmtree(record.parent / "torchrun", ignore_errors=True)
    return probes


def _read_record(record: Path, rank: int, host: str, nonce: str, result: LaunchResult) -> RawNodeProbe:
    """Return the record of one rank. Raises ProbeError if it is missing or invalid."""
    path = Path(str(record).replace("{rank}", str(rank)))
    if not path.exists():
        end = f"did not end within {TIMEOUT_S:.0f} s" if result.timed_out else describe_exit(result.exit_code)
        raise ProbeError(
            f"the reference probe {end} without a record of rank {rank} on {host}; its last lines:\n{result.log_tail}"
        )
    try:
        rank_probe = read_record(path, RawNodeProbe, MAX_RECORD_BYTES)
    except RecordError as error:
        raise ProbeError(f"rank {rank} on {host}: {printable(str(error))}", "the node was not judged") from error
    fault = rank_probe.refusal  # why this rank could not measure
    if rank_probe.request != nonce:
        fault = "its record answers another request"
    if fault:
        raise ProbeError(f"rank {rank} on {host}: {printable(fault)}", "the node was not judged")
    return rank_probe


def _describe_disturbance(health: Health | None) -> str:
    """Return what other work or which fault disturbed the probe; '' if nothing."""
    if health is None:
        return ""
    others_share = health.during.cpu.other_share or 0.0
    if others_share >= CROWDED_SHARE:
        return f"other work took {others_share:.0%} of its cores' time"
    return next((cause.text for cause in health.causes if cause.outside), "")


def _slowest(rank_probes: Sequence[RawNodeProbe], measure: Measure) -> RepeatedTiming | None:
    # The measurement "copy" is the field ``copy_`` of the record.
    name = "copy_" if measure == "copy" else measure
    timings = [timing for probe in rank_probes if (timing := getattr(probe, name)) is not None]
    return max(timings, key=lambda timing: timing.median_s, default=None)
