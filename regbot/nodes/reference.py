"""The reference probe, trusted side: all ranks of a seat compute and exchange what never changes, for some seconds.

The machine is trusted here, no code under test runs. What the ranks write is read like any record all the same: a node
that is broken enough writes anything.
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

from regbot.engines import Ended, EngineError, Launch, Seat, clean_environment
from regbot.records.baseline import utc
from regbot.records.files import RecordError, describe, read_record
from regbot.records.node import Measure, NodeProbe, RawNodeProbe, Repeated, Sizes
from regbot.records.run import Node
from regbot.text import printable
from regbot.workloads.guest import GUEST_ENVIRONMENT, MEGABYTE, exit_words, guest_folder, write_request

GPU = Sizes(gemm=8192, dtype="bfloat16", all_to_all_bytes=64 * MEGABYTE, copy_bytes=1024 * MEGABYTE)
CPU = Sizes(gemm=1024, dtype="float32", all_to_all_bytes=4 * MEGABYTE, copy_bytes=128 * MEGABYTE)
SECONDS = {"gemm": 2.0, "all_to_all": 1.0, "copy": 0.5}
"""Of each measurement. It is warmed up for a fifth of that first."""
TIMEOUT_S = 180.0
"""Most of it for a torch that is read from a slow file system."""
LAG_S = 10.0
"""How long records of ranks that ended well may take to be seen through a shared file system."""
MAX_RECORD_BYTES = 65536


class ProbeError(EngineError):
    """The nodes could not be probed. The message says why and what to do."""


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
    """Probe every host of ``seat``, with ``ranks`` on all of them together. One NodeProbe per host, in their order.

    ``scratch`` is a private folder that all hosts see, emptied first. ``python`` has torch. ``gpus``: one for each
    rank; None for what the nodes have. ``slowed``: rank to percent by which its matrix product is made larger, to try
    the judgement with. Raises ProbeError, and what the seat raises.
    """
    hosts = seat.allocation.hosts
    if ranks < 1 or ranks % len(hosts) or len(set(hosts)) != len(hosts):
        raise ProbeError(f"{ranks} ranks cannot be spread evenly over the hosts {', '.join(hosts[:8])}")
    on_gpu = bool(seat.node.gpus) if gpus is None else gpus
    chosen = sizes or (GPU if on_gpu else CPU)
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
            "sizes": chosen.model_dump(),
            "seconds": dict(seconds),
            "slowed": {str(rank): pct for rank, pct in (slowed or {}).items()},
        },
    )
    ended = seat.run(
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
    raws = _read(record, ranks, nonce, ended, hosts)
    shutil.rmtree(record.parent / "torchrun", ignore_errors=True)
    return _by_host(raws, seat, chosen, ended, utc(now))


def _read(record: Path, ranks: int, nonce: str, ended: Ended, hosts: Sequence[str]) -> list[RawNodeProbe]:
    """What every rank wrote. Raises ProbeError where that is not a whole probe."""
    paths = [Path(str(record).replace("{rank}", str(rank))) for rank in range(ranks)]
    until = time.monotonic() + (LAG_S if ended.exit_code == 0 else 0.0)
    while not all(path.exists() for path in paths) and time.monotonic() < until:
        time.sleep(0.1)
    raws: dict[int, RawNodeProbe] = {}
    for rank, path in enumerate(paths):
        if not path.exists():
            continue
        whose = f"rank {rank} on {hosts[rank * len(hosts) // ranks]}"
        try:
            raw = read_record(path, RawNodeProbe, MAX_RECORD_BYTES)
        except RecordError as error:
            raise ProbeError(f"{whose}: {printable(str(error))}; the node was not judged") from error
        if raw.refusal:
            raise ProbeError(f"{whose}: {printable(raw.refusal)}")
        if fault := _unbelievable(raw, rank, nonce, ended.wall_s):
            raise ProbeError(f"{whose}: {fault}; the node was not judged")
        raws[rank] = raw
    if len(raws) == ranks and ended.exit_code == 0:
        return [raws[rank] for rank in range(ranks)]
    missing = [f"{rank} on {hosts[rank * len(hosts) // ranks]}" for rank in range(ranks) if rank not in raws]
    how = f"did not end within {TIMEOUT_S:.0f} s" if ended.timed_out else exit_words(ended.exit_code)
    lost = f" without a record of rank {', '.join(missing[:8])}" if missing else ""
    raise ProbeError(f"the reference probe {how}{lost}; its last lines:\n{ended.log_tail}".rstrip())


def _unbelievable(raw: RawNodeProbe, rank: int, nonce: str, wall_s: float) -> str:
    """Why a well-formed record cannot be this probe's, '' where it can."""
    if raw.request != nonce or raw.rank != rank:
        return "its record answers another request"
    if raw.gemm is None or raw.copy_ is None or raw.device is None or raw.clock_s is None:
        return "its record is not whole"
    for each in (raw.gemm, raw.local_all_to_all, raw.all_to_all, raw.copy_):
        if each is not None and (each.n * each.median_s / 2 > wall_s or each.fast_s > each.median_s):
            return "its times make no sense together"  # half of the repetitions took the median or longer
    return ""


def _by_host(raws: Sequence[RawNodeProbe], seat: Seat, sizes: Sizes, ended: Ended, when: str) -> list[NodeProbe]:
    hosts, allocation = seat.allocation.hosts, seat.allocation
    each = len(raws) // len(hosts)
    middle = median(raw.clock_s or 0.0 for raw in raws)
    health = ended.health if len(hosts) == 1 else None
    found = []
    for number, host in enumerate(hosts):
        mine = raws[number * each : (number + 1) * each]
        gemm, local, together, copy = (_slowest(mine, m) for m in ("gemm", "local_all_to_all", "all_to_all", "copy"))
        if gemm is None or copy is None or (local is None) != (each == 1) or (together is None) != (len(hosts) == 1):
            raise ProbeError(f"{host}: its ranks measured something else than was asked for; the node was not judged")
        document = {
            "host": host,
            "when": when,
            "node_class": _class_of(mine, raws[0], seat.node),
            "driver": mine[0].driver or (seat.node.driver if mine[0].device_name == raws[0].device_name else None),
            "container": seat.node.container,
            "software": f"torch {mine[0].torch}",
            "device": mine[0].device,
            "device_name": printable(mine[0].device_name),
            "ranks": each,
            "hosts": hosts,
            "engine": allocation.engine,
            "job": allocation.job,
            "sizes": sizes,
            "gemm": gemm,
            "gemm_rank": max(mine, key=lambda raw: raw.gemm.median_s if raw.gemm else 0.0).rank,
            "local_all_to_all": local,
            "all_to_all": together,
            "copy": copy,
            "gemm_tflops": 2 * sizes.gemm**3 / gemm.median_s / 1e12,
            "local_all_to_all_gbs": _to_others(sizes, local, each),
            "all_to_all_gbs": _to_others(sizes, together, len(raws)),
            "copy_gbs": 2 * sizes.copy_bytes / copy.median_s / 1e9,
            "skew_s": median(raw.clock_s or 0.0 for raw in mine) - middle,
            "others_share": health.during.cpu.other_share if health else None,
            "causes": [cause.text for cause in health.causes if cause.outside][:64] if health else [],
        }
        try:
            found.append(NodeProbe.model_validate(document))
        except ValidationError as error:
            raise ProbeError(f"{host}: {describe(error)}; the node was not judged") from error
    return found


def _slowest(raws: Sequence[RawNodeProbe], measure: Measure) -> Repeated | None:
    """Of the ranks of one host, the one that took longest; None where any did not measure it."""
    found: list[Repeated | None] = [raw.copy_ if measure == "copy" else getattr(raw, measure) for raw in raws]
    known = [each for each in found if each is not None]
    return max(known, key=lambda each: each.median_s) if len(known) == len(raws) else None


def _class_of(mine: Sequence[RawNodeProbe], first: RawNodeProbe, node: Node) -> str:
    """The seat tells its first node's class; a host whose device has the same name is of it."""
    name = mine[0].device_name
    return node.node_class if name == first.device_name else printable(f"{len(mine)} x {name}")[:500]


def _to_others(sizes: Sizes, found: Repeated | None, ranks: int) -> float | None:
    return sizes.all_to_all_bytes * (ranks - 1) / ranks / found.median_s / 1e9 if found else None
