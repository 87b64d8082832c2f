"""Time and memory of the static ledger at full model shape, divided by the promised limits.

    python benchmarks/static_ledger.py [--worlds 8 16 64 256 1024] [--repeat 1]

Each trace is a fresh process, as in a check, so its time includes the start-up of Python and torch. The documentation
promises these limits on two cores: 20 s and 1 GiB at 16 ranks, and 60 s at 1024 ranks.
"""

import argparse
import statistics
from pathlib import Path

from regbot.check.static_trace import TraceOptions, trace_working_tree
from regbot.cli.options import cache_folder

SHAPES = ("qwen3-30b-a3b", "mixtral-8x7b")
WORLDS = (8, 16, 64, 256, 1024)
LIMIT_S = {16: 20.0, 1024: 60.0}
LIMIT_BYTES = {16: 2**30}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, nargs="+", default=WORLDS)
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    print(
        f"{'shape':<16}{'world':>6}{'EP':>4}{'seconds':>9}{'spread':>8}{'of limit':>10}"
        f"{'GiB':>7}{'of limit':>10}  counts"
    )
    for shape in SHAPES:
        for world in options.worlds:
            measure(shape, world, options.repeat)


def measure(shape: str, world: int, repeat: int) -> None:
    """Trace ``repeat`` times and print one row. Raises SystemExit if a trace gives no ledger."""
    runs = [trace_working_tree(TraceOptions(shape, world=world), Path.cwd(), cache_folder()) for _ in range(repeat)]
    for run in runs:
        if run.ledger is None:
            raise SystemExit(f"{shape} on {world} ranks: {run.outcome}: {run.reason}")
    seconds = [run.wall_s for run in runs]
    peak = max(run.peak_rss_bytes or 0 for run in runs)
    ledger = runs[0].ledger
    assert ledger is not None
    counts: dict[str, int] = {}
    for entry in ledger.entries:
        counts[entry.kind] = counts.get(entry.kind, 0) + entry.count
    print(
        f"{shape:<16}{world:>6}{ledger.axes['ep'].size:>4}{statistics.median(seconds):>9.1f}"
        f"{max(seconds) - min(seconds):>8.1f}{_ratio(statistics.median(seconds), LIMIT_S.get(world)):>10}"
        f"{peak / 2**30:>7.2f}{_ratio(peak, LIMIT_BYTES.get(world)):>10}"
        f"  {', '.join(f'{n} {kind}' for kind, n in sorted(counts.items()))}",
        flush=True,
    )


def _ratio(value: float, limit: float | None) -> str:
    return f"{value / limit:.2f}" if limit else "-"


if __name__ == "__main__":
    main()
