"""Cost of a stored history of a million runs: storing them, and computing the trend of one workload.

    python benchmarks/history.py [--runs 1000000] [--folder DIR]
    python benchmarks/history.py --rates

The history has sessions of 24 runs, of 20 workloads on 2 classes of node, in 3 environments one after the other. The
sessions are generated in the format of the store. ``Store.add`` stores them one by one, as a nightly job does. There
are three sizes; each is ten times the one before. The queries are the trend of one workload (``regbot baseline
history``) and its rolling reference. They are made on the new store, a second time, without the index, and after 100
files were added without regbot, as by a merge.

Each phase is a process of its own. Its time does not include the start of Python. Its memory is the peak of the
process. The promise is: the time of storing is proportional to the history, the time of a query grows much more slowly,
and the memory of both does not grow. For storing, the promise is checked with the processor time without syncs and with
the number of syncs, because the time of a sync depends on the disk and its other users. The total time is printed too.
The exit code is 1 if the promise is not kept.

With ``--rates``, the benchmark measures how often the history shows a false and a true change of level.
"""

import argparse
import hashlib
import json
import math
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from regbot.baselines import ReferenceQuery, RollingReference, Store, load_rolling_reference
from regbot.baselines.history import history
from regbot.baselines.index import FOLDER
from regbot.baselines.names import session_path
from regbot.baselines.store import record_digest
from regbot.records.baseline import Baseline, EnvironmentKey, Provenance, RunSummary, format_time
from regbot.records.ledger import Entry, Ledger
from regbot.stats.history import MIN_SEGMENT, change_points

SEED = 20260901
RUNS = 1_000_000
RUNS_OF_SESSION = 24
WORKLOADS, CLASSES, ENVIRONMENTS = 20, 2, 3
SIZES = (100, 10, 1)
"""The sizes, as divisors of the largest size."""

BYTES_OF_SESSION = 24 * 1024
"""Estimate of the disk space of a session with its part of the index. It is used to check the free space."""

MERGED = 100
"""Number of session files that are added as by a merge."""
REPEATS = 9

INGEST_EXPONENT, QUERY_EXPONENT = 1.1, 0.7
"""Limits on the growth of the time, as a power of the size of the history."""
MEMORY_GROWTH = 1.25
"""Limit on the peak memory for the largest history divided by that for the smallest history."""

BEGIN = datetime(2020, 1, 1, tzinfo=UTC)
NOW = datetime(2040, 1, 1, tzinfo=UTC)
VARIANT = "smoke"
STEPS, CUT = 50, 10

LEDGER = Ledger(
    source="dispatch-mode",
    scope="step",
    steps=1,
    world_size=8,
    entries=[
        Entry(
            kind="all_to_all", axis="ep", group_size=8, dtype="bfloat16", phase=phase, role="payload", via="nccl",
            where=f"layers.{layer}.moe", count=2, bytes=2**27,
        )
        for layer in range(8) for phase in ("forward", "backward")
    ],
)  # fmt: skip


def workload(number: int) -> str:
    return f"w{number:02d}:qwen3-30b-a3b@1/ep"


def node_class(number: int) -> str:
    return f"8 x H100 of cluster {number}"


def environment(number: int) -> EnvironmentKey:
    return EnvironmentKey(
        driver="580.1", toolkit="CUDA 13.0", nccl="2.28.3", framework=f"torch 2.{13 + number}.0", python="3.12.3"
    )


def sessions(count: int) -> Iterator[Baseline]:
    """Yield nightly sessions of all workloads and classes in turn. From the middle on, all workloads are 2% slower."""
    draw = random.Random(SEED)
    turns = WORKLOADS * CLASSES
    nights = math.ceil(count / turns)
    for number in range(count):
        night, turn = divmod(number, turns)
        level = math.log(0.5) + (0.02 if 2 * night >= nights else 0.0) + draw.gauss(0, 0.01)
        yield session(number, turn, night, min(ENVIRONMENTS * night // nights, ENVIRONMENTS - 1), level, draw)


def session(number: int, turn: int, night: int, software: int, level: float, draw: random.Random) -> Baseline:
    commit = hashlib.sha1(str(night).encode()).hexdigest()
    return Baseline(
        tier="timed",
        series="rolling",
        measured=format_time(BEGIN + timedelta(hours=3 * night, seconds=turn)),
        session=hashlib.sha256(str(number).encode()).hexdigest(),
        workload=workload(turn % WORKLOADS),
        variant=VARIANT,
        shape_version=1,
        node_class=node_class(turn // WORKLOADS),
        commit=commit,
        tree=commit,
        world_size=8,
        steps=STEPS,
        cut=CUT,
        clock="cuda_events",
        dispatcher="alltoall",
        executed="alltoall",
        ledger=record_digest(LEDGER),
        environment=environment(software),
        provenance=Provenance(
            who="nightly",
            why="the nightly session of main",
            node=f"node-{number % 16}",
            container=None,
            platform="Linux",
            revision="main",
            regbot="0.1.0",
        ),
        runs=[
            RunSummary(
                block=run // 2 + 1,
                slot=(0, 3)[run % 2],
                attempt=1,
                log_median=level + draw.gauss(0, 0.005),
                log_mean=level + draw.gauss(0.01, 0.005),
                steady_steps=STEPS - CUT,
                cut=CUT,
                memory_peak_bytes=60 * 2**30,
                loss=[10.0 - 0.01 * step + 0.001 * draw.random() for step in range(STEPS)] if run < 3 else [],
            )
            for run in range(RUNS_OF_SESSION)
        ],
    )


# ---- phases, each in a process of its own


def store_sessions(root: Path, count: int) -> dict[str, Any]:
    """Store ``count`` sessions one by one. Return the times in seconds, and the number of syncs for each session."""
    store, ledgers = Store(root), {record_digest(LEDGER): LEDGER}
    syncs, sync_s, sync_cpu_s, fsync = 0, 0.0, 0.0, os.fsync

    def counting_fsync(descriptor: Any) -> None:
        nonlocal syncs, sync_s, sync_cpu_s
        start, cpu = time.perf_counter(), time.process_time()
        fsync(descriptor)
        syncs, sync_s = syncs + 1, sync_s + time.perf_counter() - start
        sync_cpu_s += time.process_time() - cpu

    os.fsync = counting_fsync
    add_s, cpu_s, began = 0.0, 0.0, time.perf_counter()
    for stored_session in sessions(count):
        start, cpu = time.perf_counter(), time.process_time()
        store.add([stored_session], ledgers)
        add_s, cpu_s = add_s + time.perf_counter() - start, cpu_s + time.process_time() - cpu
    make_s = time.perf_counter() - began - add_s
    cpu_s -= sync_cpu_s
    return {"add_s": add_s, "add_cpu_s": cpu_s, "sync_s": sync_s, "syncs": syncs / count, "make_s": make_s}


def query(root: Path) -> dict[str, Any]:
    """Measure the queries in seconds: the first trend of this process, and the medians of further trends and
    references."""
    change_points([0.0] * 20)  # imports the modules that the queries need
    trend = timed(lambda: history(Store(root), workload(7), now=NOW))
    stored_history = history(Store(root), workload(7), now=NOW)
    series = [series for trend in stored_history.trends for series in trend.series]
    reference_query = ReferenceQuery(
        workload(7), VARIANT, node_class(0), environment(ENVIRONMENTS - 1), 8, STEPS, CUT, "cuda_events", "alltoall"
    )
    reference = load_rolling_reference(Store(root), reference_query, NOW)
    if not isinstance(reference, RollingReference):
        raise SystemExit(reference.text)
    return {
        "first_s": trend[0],
        "trend_s": statistics.median(trend[1:]),
        "rolling_s": statistics.median(timed(lambda: load_rolling_reference(Store(root), reference_query, NOW))),
        "used": len(reference.sessions),
        "sessions": sum(one_series.sessions for one_series in series),
        "changes": sum(len(one_series.changes) for one_series in series),
    }


def list_all(root: Path) -> dict[str, Any]:
    """Measure ``baseline list`` in seconds. It reads every folder."""
    from regbot.baselines.commands import list_groups

    (first, *_), groups = timed(lambda: list_groups(Store(root)), 1), list_groups(Store(root)).groups
    return {"list_s": first, "sessions": sum(group.sessions for group in groups)}


def merge(root: Path) -> dict[str, Any]:
    """Add session files of one workload to the store, as git does in a merge."""
    draw = random.Random(SEED + 1)
    for number in range(MERGED):
        merged = session(10**9 + number, 7, 10**4 + number, ENVIRONMENTS - 1, math.log(0.5), draw)
        (root / session_path(merged, record_digest(merged))).write_text(merged.to_json())
    return {}


PHASES: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "store": store_sessions,
    "query": lambda root, _: query(root),
    "list": lambda root, _: list_all(root),
    "merge": lambda root, _: merge(root),
}


def timed(work: Callable[[], object], times: int = REPEATS) -> list[float]:
    """Return the seconds of each of several calls of ``work``."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds


def run_phase(name: str, root: Path, count: int) -> dict[str, Any]:
    """Run a phase in a fresh process. Return its numbers; ``peak_bytes`` is the peak of its resident memory."""
    command = [sys.executable, __file__, "--phase", name, "--folder", str(root), "--sessions", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr}")
    numbers: dict[str, Any] = json.loads(done.stdout)
    return numbers


# ---- sizes


def measure(root: Path, count: int) -> dict[str, Any]:
    """Run all phases at one size, and remove the store at the end."""
    stored = run_phase("store", root, count)
    files = [path.stat() for path in root.rglob("*.json")]
    index = sum(path.stat().st_size for path in (root / FOLDER).rglob("*"))
    first, warm = run_phase("query", root, count), run_phase("query", root, count)
    listing = run_phase("list", root, count)
    shutil.rmtree(root / FOLDER)
    cold = run_phase("query", root, count)
    run_phase("merge", root, count)
    merged = run_phase("query", root, count)
    shutil.rmtree(root)
    assert listing["sessions"] == count, "the index knows every session"
    assert merged["sessions"] == warm["sessions"] + MERGED, "the queries see the merged sessions"
    return {
        **{name: stored[name] for name in ("add_s", "add_cpu_s", "sync_s", "syncs", "make_s")},
        "add_peak": stored["peak_bytes"],
        "files": sum(status.st_size for status in files),
        "index": index,
        "sessions": warm["sessions"],
        "changes": warm["changes"],
        "new_s": first["first_s"],
        "trend_s": warm["trend_s"],
        "rolling_s": warm["rolling_s"],
        "used_s": warm["rolling_s"] / warm["used"],
        "query_peak": warm["peak_bytes"],
        "cold_s": cold["first_s"],
        "cold_peak": cold["peak_bytes"],
        "merged_s": merged["first_s"],
        "list_s": listing["list_s"],
    }


def report(sizes: list[int], results: list[dict[str, Any]]) -> bool:
    """Print the results and the promises. Return whether all promises are kept."""
    print(f"{'runs':<44}" + "".join(f"{size:>12,}" for size in sizes))
    ms, mb = 1000.0, 1 / 2**20
    lines: list[tuple[str, Callable[[dict[str, Any]], float], str]] = [
        ("sessions made, s", lambda result: result["make_s"], ".1f"),
        ("sessions stored, s", lambda result: result["add_s"], ".1f"),
        ("  of it the processor's, s", lambda result: result["add_cpu_s"], ".1f"),
        ("  of it waiting for syncs, s", lambda result: result["sync_s"], ".1f"),
        ("  syncs of one session", lambda result: result["syncs"], ".2f"),
        ("  sessions/s", lambda result: result["count"] / result["add_s"], ",.0f"),
        ("  peak memory, MB", lambda result: result["add_peak"] * mb, ".0f"),
        ("files, MB", lambda result: result["files"] * mb, ".0f"),
        ("index, MB", lambda result: result["index"] * mb, ".1f"),
        ("sessions of the workload asked for", lambda result: result["sessions"], ",.0f"),
        ("  changes seen (2 are there, one a class)", lambda result: result["changes"], ".0f"),
        ("trend, ms", lambda result: result["trend_s"] * ms, ".1f"),
        ("  the first on the new store, ms", lambda result: result["new_s"] * ms, ".1f"),
        (f"  the first after {MERGED} files were merged, ms", lambda result: result["merged_s"] * ms, ".1f"),
        ("  the first without an index, ms", lambda result: result["cold_s"] * ms, ".1f"),
        ("  peak memory, MB", lambda result: result["query_peak"] * mb, ".0f"),
        ("  peak memory without an index, MB", lambda result: result["cold_peak"] * mb, ".0f"),
        ("rolling reference, ms", lambda result: result["rolling_s"] * ms, ".1f"),
        ("  of one of its sessions (40 at most), ms", lambda result: result["used_s"] * ms, ".2f"),
        ("list of all groups, ms", lambda result: result["list_s"] * ms, ".1f"),
    ]
    for name, value, form in lines:
        print(f"{name:<44}" + "".join(f"{value(result):>12{form}}" for result in results))
    print()

    def grows(what: str, key: str, limit: float | None) -> bool:
        """Print a promise about growth, as a power of the size of the history. Return whether it is kept.

        The power is computed over all sizes, and also from each size to the next.
        """
        values = [result[key] for result in results]
        ends = (sizes[0], sizes[-1]), (values[0], values[-1])
        return check_promise(f"{what}, power of growth", exponents(*ends), limit, exponents(sizes, values))

    def ratio(what: str, key: str, limit: float) -> bool:
        return check_promise(f"{what}, largest history / smallest", [results[-1][key] / results[0][key]], limit)

    kept = [
        grows("stored, time", "add_s", None),
        grows("stored, processor's time", "add_cpu_s", INGEST_EXPONENT),
        ratio("stored, syncs of a session", "syncs", 1.0),
        grows("trend, time", "trend_s", QUERY_EXPONENT),
        grows("rolling reference, time of one session", "used_s", QUERY_EXPONENT),
        ratio("stored, memory", "add_peak", MEMORY_GROWTH),
        ratio("trend, memory", "query_peak", MEMORY_GROWTH),
        ratio("trend without an index, memory", "cold_peak", MEMORY_GROWTH),
    ]
    return all(kept)


def exponents(sizes: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """Return the power by which the time grows with the size, from each size to the next."""
    return [math.log(t / s) / math.log(n / m) for (m, s), (n, t) in pairwise(zip(sizes, seconds, strict=True))]


def check_promise(what: str, values: Sequence[float], limit: float | None, steps: Sequence[float] = ()) -> bool:
    kept = limit is None or max(values) <= limit
    words = ", ".join(f"{value:.2f}" for value in values)
    step_words = f"({', '.join(f'{step:.2f}' for step in steps)})" if steps else ""
    outcome = "" if limit is None else f"limit {limit:.2f}   {'kept' if kept else 'NOT KEPT'}"
    print(f"{what:<58}{words:>6} {step_words:<15}{outcome}".rstrip())
    return kept


# ---- rates


def pelt(levels: Any, penalty: float) -> list[int]:
    """Return the change points by PELT, as in its manual. Outliers are not removed, so they can look like changes."""
    import numpy as np
    from ruptures import KernelCPD  # type: ignore[import-untyped]

    noise = 1.4826 * float(np.median(np.abs(np.diff(levels)))) / math.sqrt(2)
    search = KernelCPD(kernel="linear", min_size=MIN_SEGMENT).fit(levels[:, None])
    return [int(end) for end in search.predict(pen=penalty * math.log(len(levels)) * noise**2)[:-1]]


METHODS: dict[str, Callable[[Any], list[int]]] = {
    "regbot": change_points,
    "PELT, penalty 3": lambda levels: pelt(levels, 3.0),
    "PELT, penalty 6": lambda levels: pelt(levels, 6.0),
}
CHANGES = ((0.01, None), (0.02, None), (0.02, 5), (0.02, 10), (0.05, 4))
"""Changes of level on the log scale, and their age in sessions; None for a change in the middle."""


def rates(series: int = 1000) -> None:
    """Print how often changes are detected, in simulated levels that scatter by 0.4% or 1% and have 2% outliers.

    ``rho`` is the correlation of neighbouring levels.
    """
    import numpy as np

    def flat(rng: np.random.Generator, count: int, sd: float, rho: float) -> Any:
        noise = rng.normal(0, sd * math.sqrt(1 - rho**2), count)
        noise[0] = rng.normal(0, sd)
        for at in range(1, count):
            noise[at] += rho * noise[at - 1]
        return noise + (rng.random(count) < 0.02) * rng.exponential(0.05, count)

    print("flat: changes seen in a series without one; others: share of changes seen, to within 5 sessions")
    print(f"{'method':<17}{'sessions':>9}{'scatter':>9}{'rho':>5}{'flat':>8}", end="")
    print("".join(f"{f'{100 * step:.0f}%, {old or chr(189)} old':>12}" for step, old in CHANGES))
    cases = [(count, sd, rho) for count in (10, 30, 200, 1000) for sd, rho in ((0.004, 0.0), (0.01, 0.0), (0.01, 0.3))]
    for name, method in METHODS.items():
        for count, sd, rho in cases:
            if name != "regbot" and count != 200:
                continue
            rng = np.random.default_rng(SEED)
            seen = sum(len(method(flat(rng, count, sd, rho))) for _ in range(series))
            cells = [f"{name:<17}{count:>9}{100 * sd:>8.1f}%{rho:>5.1f}{seen / series:>8.3f}"]
            for step, old in CHANGES:
                begin = count - (old or count // 2)
                if begin < MIN_SEGMENT + 1:
                    cells.append(f"{'-':>12}")
                    continue
                shift = step * (np.arange(count) >= begin)
                moved = [method(flat(rng, count, sd, rho) + shift) for _ in range(series // 2)]
                cells.append(
                    f"{sum(any(abs(at - begin) <= 5 for at in changes) for changes in moved) / len(moved):>12.2f}"
                )
            print("".join(cells), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--folder", type=Path, help="where the stores are made, and removed; a local disk")
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--phase", choices=PHASES, help=argparse.SUPPRESS)
    parser.add_argument("--sessions", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        numbers = PHASES[options.phase](options.folder, options.sessions)
        print(json.dumps(numbers | {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
        return 0
    if options.rates:
        rates()
        return 0
    turns = WORKLOADS * CLASSES
    nights = [math.ceil(options.runs / RUNS_OF_SESSION / divisor / turns) for divisor in SIZES]
    counts = [
        turns * max(number, ENVIRONMENTS * size) for size, number in enumerate(nights, 1)
    ]  # every environment has a session
    folder = options.folder or Path(tempfile.gettempdir())
    needed, free = counts[-1] * BYTES_OF_SESSION, shutil.disk_usage(folder).free
    if free < 2 * needed:
        raise SystemExit(f"{folder}: {free >> 20:,} MB are free, and {2 * needed >> 20:,} MB are needed")
    measured = []
    for count in counts:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            measured.append({"count": count, **measure(Path(scratch) / "baselines", count)})
    return 0 if report([count * RUNS_OF_SESSION for count in counts], measured) else 1


if __name__ == "__main__":
    sys.exit(main())
