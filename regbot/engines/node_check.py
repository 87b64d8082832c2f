"""Check the nodes of a seat with the reference probe before a session is timed on them: for some seconds, all ranks of
the seat run a fixed computation and a fixed exchange. Their records are validated like those of a guest, because a
broken node may write anything. A node is compared with its own stored probes only. A measurement is slow if its median
and its fastest tenth are both more than 10% above the median of the stored probes, and, from MIN_PROBES stored probes
on, more than 5 robust standard deviations. Other work on the node slows the median more than the fastest repetitions,
so one slow statistic is not enough. The exchange over several hosts cannot show which of them is slow: it is compared
with earlier exchanges over the same hosts, and only warns."""

import secrets
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, get_args

from filelock import FileLock
from pydantic import ValidationError

from regbot.engines.engine import Needs, Seat
from regbot.engines.guest import GUEST_ENVIRONMENT, MEGABYTE, describe_exit, guest_folder, write_request
from regbot.engines.launch import EngineError, Launch, LaunchResult
from regbot.engines.local import clean_environment
from regbot.records.files import RecordError, describe_validation_error, read_record, write_record
from regbot.records.health import Health
from regbot.records.node import Measure, NodeHistory, NodeProbe, RawNodeProbe, Sizes
from regbot.records.text.clip import clip_message
from regbot.records.text.printable import printable
from regbot.records.text.words import count

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

HISTORY_FILE = "nodes.json"
MIN_PROBES, MIN_DAYS = 8, 3
"""A node is refused only against at least this many stored probes, of at least this many days. Fewer probes may all
come from one unusual hour."""
WINDOW = 20
"""Number of stored probes of each node, driver, software and number of ranks."""
SLOW_SHARE = 0.10
SLOW_SDS = 5.0
MAD_TO_SD = 1.4826
"""Factor that converts a median absolute deviation to the standard deviation of a normal distribution."""
MEASURE_NAMES: dict[Measure, str] = {
    "gemm": "matrix product",
    "local_all_to_all": "all-to-all within the node",
    "all_to_all": "all-to-all over all hosts",
    "copy": "memory copy",
}
COMPARED_FIELDS = ("host", "driver", "container", "software", "device_name", "ranks", "sizes")
"""Two probes are compared only if these fields are equal."""


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
        slowest: dict[str, Any] = {}
        for measure in get_args(Measure):
            timings = [timing for probe in rank_probes if (timing := probe.get_timing(measure)) is not None]
            slowest[measure] = max(timings, key=lambda timing: timing.median_s, default=None)
        try:
            probe = NodeProbe(
                host=host,
                unix_s=now.timestamp(),
                driver=rank_probes[0].driver or seat.node.driver,
                container=seat.node.container,
                software=f"torch {rank_probes[0].torch}",
                device_name=printable(rank_probes[0].device_name),
                ranks=ranks_per_host,
                hosts=hosts,
                sizes=sizes,
                disturbance=_describe_disturbance(result.health) if len(hosts) == 1 else "",
                **slowest,
            )
        except ValidationError as error:  # such as a missing measurement
            raise ProbeError(f"{host}: {describe_validation_error(error)}", "the node was not judged") from error
        probes.append(probe)
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
    wrong_request = "its record answers another request" if rank_probe.request != nonce else ""
    if fault := wrong_request or rank_probe.refusal:  # why this rank could not measure
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


# ---- the judgement


@dataclass(frozen=True)
class NodeCheck:
    probes: list[NodeProbe] = field(default_factory=list)
    refused_hosts: frozenset[str] = frozenset()
    refusal: str = ""
    """Why nothing may be timed on these nodes; '' if they are fit."""
    warnings: list[str] = field(default_factory=list)


def check_nodes(seat: Seat, needs: Needs, python: str, scratch: Path, history_file: Path) -> NodeCheck:
    """Probe the nodes of ``seat``, compare them with their stored probes, and store the probes of healthy nodes. This
    machine is not probed, because no other node could replace it, and for programs of one process neither, because
    their interpreter may lack torch. Nodes whose probe fails count as fit, with a warning. Raises NoSeatError, OSError.
    """
    if needs.ranks == 0 or seat.allocation.engine == "local":
        return NodeCheck()
    now = datetime.now(UTC)
    try:
        probes = probe_nodes(seat, needs.ranks, scratch, now, python=python, gpus=bool(needs.gpus))
    except ProbeError as error:
        hosts = ", ".join(seat.allocation.hosts)
        return NodeCheck(warnings=[clip_message(f"{hosts}: could not be probed, and count as fit: {error}")])
    history_file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(history_file.with_suffix(".lock")):
        try:
            stored_probes = read_record(history_file, NodeHistory).probes if history_file.exists() else []
            warnings = []
        except RecordError as error:
            stored_probes, warnings = [], [f"{error}; the stored probes of nodes begin anew"]
        check = judge_probes(probes, stored_probes, history_file)
        healthy_probes = [probe for probe in probes if not probe.disturbance and probe.host not in check.refused_hosts]
        write_record(history_file, NodeHistory(probes=_keep_latest([*stored_probes, *healthy_probes])))
    return NodeCheck(check.probes, check.refused_hosts, check.refusal, [*warnings, *check.warnings])


def judge_probes(probes: Sequence[NodeProbe], stored_probes: Sequence[NodeProbe], history_file: Path) -> NodeCheck:
    refusals: dict[str, list[str]] = {}
    """What is slow, by host."""
    warnings = [
        f"{probe.host}: its reference probe is not judged: {probe.disturbance}" for probe in probes if probe.disturbance
    ]
    for probe in probes:
        past_probes = [stored for stored in stored_probes if _is_comparable(stored, probe)]
        days = {int(stored.unix_s // 86400) for stored in past_probes}
        for measure in get_args(Measure) if not probe.disturbance else ():
            if measure == "all_to_all":
                # One exchange is measured on all its hosts, so it is judged once.
                same_exchanges = [stored for stored in past_probes if stored.hosts == probe.hosts]
                if probe.host == probe.hosts[0] and (finding := _describe_slowness(probe, measure, same_exchanges)):
                    hosts = ", ".join(probe.hosts[:8])
                    warnings.append(f"{hosts} together: {finding}; this does not show which of them is slow")
            elif finding := _describe_slowness(probe, measure, past_probes):
                if len(past_probes) >= MIN_PROBES and len(days) >= MIN_DAYS:
                    refusals.setdefault(probe.host, []).append(f"{probe.host}: {finding}")
                else:
                    least = f"at least {MIN_PROBES} probes of {MIN_DAYS} days"
                    warnings.append(f"{probe.host}: {finding}; a node is refused only against {least}")
    refusal = ""
    if refusals:
        slow = "; ".join(text for texts in refusals.values() for text in texts)
        advice = f"If this is their usual speed now, delete {history_file}"
        refusal = clip_message(f"the reference probe found slow nodes. {slow}. {advice}")
    return NodeCheck(list(probes), frozenset(refusals), refusal, [clip_message(text) for text in warnings])


def _describe_slowness(probe: NodeProbe, measure: Measure, references: Sequence[NodeProbe]) -> str:
    timing = probe.get_timing(measure)
    timings = [past for reference in references if (past := reference.get_timing(measure)) is not None]
    if timing is None or not timings:
        return ""
    excesses = []
    for statistic in ("median_s", "fast_s"):
        past_values = [getattr(past, statistic) for past in timings]
        middle = median(past_values)
        deviation = median(abs(past - middle) for past in past_values) / middle
        scatter = SLOW_SDS * MAD_TO_SD * deviation if len(timings) >= MIN_PROBES else 0.0
        excesses.append(getattr(timing, statistic) / middle - 1)
        if excesses[-1] <= max(SLOW_SHARE, scatter):
            return ""
    return f"{MEASURE_NAMES[measure]} {min(excesses):.0%} slower than in {count(len(timings), 'stored probe')}"


def _is_comparable(first: NodeProbe, second: NodeProbe) -> bool:
    return all(getattr(first, name) == getattr(second, name) for name in COMPARED_FIELDS)


def _keep_latest(probes: Iterable[NodeProbe]) -> list[NodeProbe]:
    kept: list[NodeProbe] = []
    for probe in reversed([*probes]):
        if sum(_is_comparable(later, probe) for later in kept) < WINDOW:
            kept.append(probe)
    return kept[::-1]
