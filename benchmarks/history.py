"""Stored history at scale: what a million runs cost to store, and what one workload's trend costs out of them.

    python benchmarks/history.py [--runs 1000000] [--folder DIR]
    python benchmarks/history.py --rates

Sessions of 24 runs each, of 20 workloads on 2 classes of node, in 3 environments one after the other: made here, in the
format of the store, and stored one by one by ``Store.add``, as a nightly job would. Three sizes, each ten times the one
before. What is asked is the trend of one workload (``regbot baseline history``) and its rolling reference, at first as
the store was left, then again, without the index, and after 100 files came from elsewhere, as a merge brings them.

Every phase is a process of its own. Times are inside of it, without the start of Python; memory is all of it, its peak.
The promise: storing takes time in proportion to the history, asking takes far less than that, and the memory of neither
grows with it. Exit code 1 where that is not kept. Of storing the processor's time, but for syncs, and the number of
syncs are held against it: how long a sync takes is the disk's, and who else uses it. All of the time is printed too.

With ``--rates``: how often a change of level is seen that is none, and how often one that is.
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

from regbot.baselines import Asked, Rolling, Store, rolling
from regbot.baselines.history import history
from regbot.baselines.index import FOLDER
from regbot.baselines.names import session_path
from regbot.baselines.store import digest_of
from regbot.records.baseline import Baseline, EnvironmentKey, Provenance, RunSummary, utc
from regbot.records.ledger import Entry, Ledger
from regbot.stats.history import SEGMENT, change_points

SEED = 20260901
RUNS = 1_000_000
RUNS_OF_SESSION = 24
WORKLOADS, CLASSES, ENVIRONMENTS = 20, 2, 3
SIZES = (100, 10, 1)
"""Divisors of the largest size."""

BYTES_OF_SESSION = 24 * 1024
"""Disk that a session may take, its place in the index included."""

MERGED = 100
REPEATS = 9

INGEST_EXPONENT, QUERY_EXPONENT = 1.1, 0.7
"""Largest growth of the time, as a power of the history."""
MEMORY_GROWTH = 1.25
"""Largest ratio of the peak memory of the largest history to that of the smallest."""

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
    """Nightly sessions, all workloads and classes by turns. A workload is 2% slower from the middle on."""
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
        measured=utc(BEGIN + timedelta(hours=3 * night, seconds=turn)),
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
        ledger=digest_of(LEDGER),
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


def ingest(root: Path, count: int) -> dict[str, Any]:
    store, ledgers = Store(root), {digest_of(LEDGER): LEDGER}
    syncs, sync_s, sync_cpu_s, fsync = 0, 0.0, 0.0, os.fsync

    def counted(descriptor: Any) -> None:
        nonlocal syncs, sync_s, sync_cpu_s
        start, cpu = time.perf_counter(), time.process_time()
        fsync(descriptor)
        syncs, sync_s = syncs + 1, sync_s + time.perf_counter() - start
        sync_cpu_s += time.process_time() - cpu

    os.fsync = counted
    add_s, cpu_s, began = 0.0, 0.0, time.perf_counter()
    for each in sessions(count):
        start, cpu = time.perf_counter(), time.process_time()
        store.add([each], ledgers)
        add_s, cpu_s = add_s + time.perf_counter() - start, cpu_s + time.process_time() - cpu
    make_s = time.perf_counter() - began - add_s
    cpu_s -= sync_cpu_s
    return {"add_s": add_s, "add_cpu_s": cpu_s, "sync_s": sync_s, "syncs": syncs / count, "make_s": make_s}


def ask(root: Path) -> dict[str, Any]:
    """Seconds of the trend and of the reference: the first of this process, and the median of some more."""
    change_points([0.0] * 20)  # imports what it needs
    trend = timed(lambda: history(Store(root), workload(7), now=NOW))
    found = history(Store(root), workload(7), now=NOW)
    series = [series for trend in found.trends for series in trend.series]
    asked = Asked(
        workload(7), VARIANT, node_class(0), environment(ENVIRONMENTS - 1), 8, STEPS, CUT, "cuda_events", "alltoall"
    )
    reference = rolling(Store(root), asked, NOW)
    if not isinstance(reference, Rolling):
        raise SystemExit(reference.text)
    return {
        "first_s": trend[0],
        "trend_s": statistics.median(trend[1:]),
        "rolling_s": statistics.median(timed(lambda: rolling(Store(root), asked, NOW))),
        "used": len(reference.sessions),
        "sessions": sum(each.sessions for each in series),
        "changes": sum(len(each.changes) for each in series),
    }


def listed(root: Path) -> dict[str, Any]:
    """Seconds of ``baseline list``, which asks for every folder."""
    from regbot.baselines.commands import listing

    (first, *_), groups = timed(lambda: listing(Store(root)), 1), listing(Store(root)).groups
    return {"list_s": first, "sessions": sum(group.sessions for group in groups)}


def merge(root: Path) -> dict[str, Any]:
    """Files of sessions of one workload, written as git writes them."""
    draw = random.Random(SEED + 1)
    for number in range(MERGED):
        found = session(10**9 + number, 7, 10**4 + number, ENVIRONMENTS - 1, math.log(0.5), draw)
        text = found.to_json()
        (root / session_path(found, digest_of(found))).write_text(text)
    return {}


PHASES: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "ingest": ingest,
    "ask": lambda root, _: ask(root),
    "list": lambda root, _: listed(root),
    "merge": lambda root, _: merge(root),
}


def timed(do: Callable[[], object], times: int = REPEATS) -> list[float]:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        do()
        found.append(time.perf_counter() - start)
    return found


def phase(name: str, root: Path, count: int) -> dict[str, Any]:
    """What a fresh process says; ``peak_bytes`` is its largest resident set."""
    command = [sys.executable, __file__, "--phase", name, "--folder", str(root), "--sessions", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# ---- sizes


def measure(root: Path, count: int) -> dict[str, Any]:
    """All phases at one size; the store is removed again."""
    stored = phase("ingest", root, count)
    files = [path.stat() for path in root.rglob("*.json")]
    index = sum(path.stat().st_size for path in (root / FOLDER).rglob("*"))
    left, warm = phase("ask", root, count), phase("ask", root, count)
    every = phase("list", root, count)
    shutil.rmtree(root / FOLDER)
    cold = phase("ask", root, count)
    phase("merge", root, count)
    merged = phase("ask", root, count)
    shutil.rmtree(root)
    assert every["sessions"] == count, "the index knows every session"
    assert merged["sessions"] == warm["sessions"] + MERGED, "what was merged is seen"
    return {
        **{name: stored[name] for name in ("add_s", "add_cpu_s", "sync_s", "syncs", "make_s")},
        "add_peak": stored["peak_bytes"],
        "files": sum(each.st_size for each in files),
        "index": index,
        "sessions": warm["sessions"],
        "changes": warm["changes"],
        "left_s": left["first_s"],
        "trend_s": warm["trend_s"],
        "rolling_s": warm["rolling_s"],
        "used_s": warm["rolling_s"] / warm["used"],
        "ask_peak": warm["peak_bytes"],
        "cold_s": cold["first_s"],
        "cold_peak": cold["peak_bytes"],
        "merged_s": merged["first_s"],
        "list_s": every["list_s"],
    }


def report(sizes: list[int], found: list[dict[str, Any]]) -> bool:
    """Print what was measured, and what of the promise is kept; whether all of it is."""
    print(f"{'runs':<44}" + "".join(f"{size:>12,}" for size in sizes))
    ms, mb = 1000.0, 1 / 2**20
    lines: list[tuple[str, Callable[[dict[str, Any]], float], str]] = [
        ("sessions made, s", lambda each: each["make_s"], ".1f"),
        ("sessions stored, s", lambda each: each["add_s"], ".1f"),
        ("  of it the processor's, s", lambda each: each["add_cpu_s"], ".1f"),
        ("  of it waiting for syncs, s", lambda each: each["sync_s"], ".1f"),
        ("  syncs of one session", lambda each: each["syncs"], ".2f"),
        ("  sessions/s", lambda each: each["count"] / each["add_s"], ",.0f"),
        ("  peak memory, MB", lambda each: each["add_peak"] * mb, ".0f"),
        ("files, MB", lambda each: each["files"] * mb, ".0f"),
        ("index, MB", lambda each: each["index"] * mb, ".1f"),
        ("sessions of the workload asked for", lambda each: each["sessions"], ",.0f"),
        ("  changes seen (2 are there, one a class)", lambda each: each["changes"], ".0f"),
        ("trend, ms", lambda each: each["trend_s"] * ms, ".1f"),
        ("  the first, as the store was left, ms", lambda each: each["left_s"] * ms, ".1f"),
        (f"  the first after {MERGED} files were merged, ms", lambda each: each["merged_s"] * ms, ".1f"),
        ("  the first without an index, ms", lambda each: each["cold_s"] * ms, ".1f"),
        ("  peak memory, MB", lambda each: each["ask_peak"] * mb, ".0f"),
        ("  peak memory without an index, MB", lambda each: each["cold_peak"] * mb, ".0f"),
        ("rolling reference, ms", lambda each: each["rolling_s"] * ms, ".1f"),
        ("  of one of its sessions (40 at most), ms", lambda each: each["used_s"] * ms, ".2f"),
        ("list of all groups, ms", lambda each: each["list_s"] * ms, ".1f"),
    ]
    for name, value, form in lines:
        print(f"{name:<44}" + "".join(f"{value(each):>12{form}}" for each in found))
    print()

    def grows(what: str, key: str, limit: float | None) -> bool:
        """As the power of the history by which it does: over all sizes, and from each to the next."""
        values = [each[key] for each in found]
        ends = (sizes[0], sizes[-1]), (values[0], values[-1])
        return promise(f"{what}, power of growth", exponents(*ends), limit, exponents(sizes, values))

    def ratio(what: str, key: str, limit: float) -> bool:
        return promise(f"{what}, largest history / smallest", [found[-1][key] / found[0][key]], limit)

    kept = [
        grows("stored, time", "add_s", None),
        grows("stored, processor's time", "add_cpu_s", INGEST_EXPONENT),
        ratio("stored, syncs of a session", "syncs", 1.0),
        grows("trend, time", "trend_s", QUERY_EXPONENT),
        grows("rolling reference, time of one session", "used_s", QUERY_EXPONENT),
        ratio("stored, memory", "add_peak", MEMORY_GROWTH),
        ratio("trend, memory", "ask_peak", MEMORY_GROWTH),
        ratio("trend without an index, memory", "cold_peak", MEMORY_GROWTH),
    ]
    return all(kept)


def exponents(sizes: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """Of the power by which time grows with size, from each size to the next."""
    return [math.log(t / s) / math.log(n / m) for (m, s), (n, t) in pairwise(zip(sizes, seconds, strict=True))]


def promise(what: str, values: Sequence[float], limit: float | None, steps: Sequence[float] = ()) -> bool:
    kept = limit is None or max(values) <= limit
    words = ", ".join(f"{value:.2f}" for value in values)
    shown = f"({', '.join(f'{step:.2f}' for step in steps)})" if steps else ""
    told = "" if limit is None else f"limit {limit:.2f}   {'kept' if kept else 'NOT KEPT'}"
    print(f"{what:<58}{words:>6} {shown:<15}{told}".rstrip())
    return kept


# ---- rates


def plain(levels: Any, penalty: float) -> list[int]:
    """PELT as its manual has it: bad nights stay in, and pass for changes."""
    import numpy as np
    from ruptures import KernelCPD  # type: ignore[import-untyped]

    noise = 1.4826 * float(np.median(np.abs(np.diff(levels)))) / math.sqrt(2)
    search = KernelCPD(kernel="linear", min_size=SEGMENT).fit(levels[:, None])
    return [int(end) for end in search.predict(pen=penalty * math.log(len(levels)) * noise**2)[:-1]]


METHODS: dict[str, Callable[[Any], list[int]]] = {
    "regbot": change_points,
    "PELT, penalty 3": lambda levels: plain(levels, 3.0),
    "PELT, penalty 6": lambda levels: plain(levels, 6.0),
}
STEPS_SEEN = ((0.01, None), (0.02, None), (0.02, 5), (0.02, 10), (0.05, 4))
"""Changes of level on the log scale, and how many sessions ago; None: in the middle."""


def rates(series: int = 1000) -> None:
    """Levels that scatter by 0.4% or 1%, 2% of them outliers; ``rho``: how much neighbours have in common."""
    import numpy as np

    def flat(rng: np.random.Generator, count: int, sd: float, rho: float) -> Any:
        noise = rng.normal(0, sd * math.sqrt(1 - rho**2), count)
        noise[0] = rng.normal(0, sd)
        for at in range(1, count):
            noise[at] += rho * noise[at - 1]
        return noise + (rng.random(count) < 0.02) * rng.exponential(0.05, count)

    print("flat: changes seen in a series without one; others: share of changes seen, to within 5 sessions")
    print(f"{'method':<17}{'sessions':>9}{'scatter':>9}{'rho':>5}{'flat':>8}", end="")
    print("".join(f"{f'{100 * step:.0f}%, {old or chr(189)} old':>12}" for step, old in STEPS_SEEN))
    cases = [(count, sd, rho) for count in (10, 30, 200, 1000) for sd, rho in ((0.004, 0.0), (0.01, 0.0), (0.01, 0.3))]
    for name, method in METHODS.items():
        for count, sd, rho in cases:
            if name != "regbot" and count != 200:
                continue
            rng = np.random.default_rng(SEED)
            seen = sum(len(method(flat(rng, count, sd, rho))) for _ in range(series))
            cells = [f"{name:<17}{count:>9}{100 * sd:>8.1f}%{rho:>5.1f}{seen / series:>8.3f}"]
            for step, old in STEPS_SEEN:
                begin = count - (old or count // 2)
                if begin < SEGMENT + 1:
                    cells.append(f"{'-':>12}")
                    continue
                shift = step * (np.arange(count) >= begin)
                moved = [method(flat(rng, count, sd, rho) + shift) for _ in range(series // 2)]
                cells.append(f"{sum(any(abs(at - begin) <= 5 for at in each) for each in moved) / len(moved):>12.2f}")
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
        found = PHASES[options.phase](options.folder, options.sessions)
        print(json.dumps(found | {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
        return 0
    if options.rates:
        rates()
        return 0
    turns = WORKLOADS * CLASSES
    nights = [math.ceil(options.runs / RUNS_OF_SESSION / divisor / turns) for divisor in SIZES]
    counts = [turns * max(number, ENVIRONMENTS * size) for size, number in enumerate(nights, 1)]  # each can be asked
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
