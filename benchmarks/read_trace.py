"""Time and memory of reading recorded collectives, as ratios to peers that are measured in turns on the same machine.

    python benchmarks/read_trace.py [--fixtures DIR] [--peer PYTHON] [--repeat 5] [--small-mb 200] [--large-mb 2000]

Kineto traces must be read at least 10 times faster than HolisticTraceAnalysis loads the same file. Both run in one
process, and start-up is not measured. A trace of 2 GB may take at most 4 times as long as ``gzip -dc FILE >
/dev/null``, and less than 300 MB. HLO text must be read at 25 MB/s or more at every size.

``--peer`` names another Python with ``pip install HolisticTraceAnalysis``; without it, its rows are left out. Large
traces are made by repeating the events with shifted times and identifiers. Large HLO texts are made by repeating
computations under other names. ``DIR`` has the files ``traces/*.json.gz`` and ``hlo/*.hlo.txt``.
"""

import argparse
import gzip
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from regbot.ledgers.readers import read_file

HERE = Path(__file__).resolve().parent.parent
FASTER, SLOWER_THAN_GZIP, RSS_MB, HLO_MB_S = 10.0, 4.0, 300.0, 25.0
PEER = """
import json, logging, sys, time
from hta.trace_analysis import TraceAnalysis
logging.disable(logging.CRITICAL)
for line in sys.stdin:
    start = time.perf_counter()
    TraceAnalysis(trace_files={0: line.strip()}, trace_dir="")
    print("seconds", time.perf_counter() - start, flush=True)
"""
FRESH = """
import sys, time
from pathlib import Path
from regbot.ledgers.readers import read_file
start = time.perf_counter()
read_file(Path(sys.argv[1]))
seconds = time.perf_counter() - start
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(seconds, int(peak.split()[1]) / 1024)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fixtures", type=Path, default=HERE.parent / "shared" / "fixtures")
    parser.add_argument("--peer", help="a Python with HolisticTraceAnalysis")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--small-mb", type=int, default=200)
    parser.add_argument("--large-mb", type=int, default=2000)
    options = parser.parse_args()
    traces = sorted(options.fixtures.glob("traces/*.json.gz"))
    if not traces:
        raise SystemExit(f"{options.fixtures} holds no traces/*.json.gz; name such a folder with --fixtures")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.peer:
            compare_with_peer(traces, folder, options.peer, options.repeat, options.small_mb)
        else:
            print("HolisticTraceAnalysis was not measured: name a Python that has it with --peer")
        largest = max(traces, key=lambda path: path.stat().st_size)
        measure_large(grow(largest, options.large_mb, folder), options.repeat)
        measure_hlo(sorted(options.fixtures.glob("hlo/*.hlo.txt")), folder, options.repeat)


def compare_with_peer(traces: Sequence[Path], folder: Path, peer: str, repeat: int, small_mb: int) -> None:
    """Read each trace in its original size and enlarged, with both readers in turns, and print the ratios."""
    with subprocess.Popen([peer, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def peer_seconds(path: Path) -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{path}\n")
            process.stdin.flush()
            for line in process.stdout:
                if line.startswith("seconds"):
                    return float(line.split()[1])
            raise SystemExit(f"{peer}: HolisticTraceAnalysis could not load {path}")

        print(f"{'Kineto trace':<44}{'MB':>7}{'regbot s':>10}{'HTA s':>8}   HTA / regbot (min median max)")
        for original in traces:
            for path in (original, grow(original, small_mb, folder)):
                own_seconds = lambda path=path: seconds(lambda: read_file(path))  # noqa: E731
                own_seconds(), peer_seconds(path)  # the first readings fill the file cache
                pairs = [(own_seconds(), peer_seconds(path)) for _ in range(repeat)]
                ratios = [peer_s / own_s for own_s, peer_s in pairs]
                print(
                    f"{path.name:<44}{unpacked_mb(path):>7.0f}{statistics.median(own_s for own_s, _ in pairs):>10.3f}"
                    f"{statistics.median(peer_s for _, peer_s in pairs):>8.2f}   {spread(ratios)}, limit {FASTER:.0f}: "
                    f"{verdict(statistics.median(ratios) >= FASTER)}",
                    flush=True,
                )
        process.stdin.close()


def measure_large(path: Path, repeat: int) -> None:
    """Read a large trace in a fresh process, and decompress it with gzip, in turns. Print the ratio and the memory."""
    ratios, peaks = [], []
    for _ in range(repeat):
        gzip_s = seconds(lambda: subprocess.run(f"gzip -dc '{path}' > /dev/null", shell=True, check=True))
        done = subprocess.run([sys.executable, "-c", FRESH, str(path)], check=True, capture_output=True, text=True)
        own_s, peak = map(float, done.stdout.split())
        ratios.append(own_s / gzip_s)
        peaks.append(peak)
    print(
        f"{path.name}, {unpacked_mb(path):.0f} MB: regbot / gzip -dc {spread(ratios)}, limit {SLOWER_THAN_GZIP:.0f}: "
        f"{verdict(statistics.median(ratios) <= SLOWER_THAN_GZIP)}; RSS {spread(peaks)} MB, limit {RSS_MB:.0f}: "
        f"{verdict(max(peaks) < RSS_MB)}",
        flush=True,
    )


def measure_hlo(files: Sequence[Path], folder: Path, repeat: int) -> None:
    """Read HLO texts of three sizes, and print the speed at each size."""
    for original in files:
        for size_mb in (1, 4, 16):
            path = grow_hlo(original, size_mb, folder)
            size = path.stat().st_size / 1e6
            speeds = [size / seconds(lambda path=path: read_file(path)) for _ in range(repeat)]
            print(f"{path.name:<44}{size:>7.1f} MB: MB/s {spread(speeds)}, limit {HLO_MB_S:.0f}: "
                  f"{verdict(statistics.median(speeds) >= HLO_MB_S)}", flush=True)  # fmt: skip


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f} {statistics.median(values):.2f} {max(values):.2f}"


def verdict(kept: bool) -> str:
    return "held" if kept else "MISSED"


def unpacked_mb(path: Path) -> float:
    with gzip.open(path) as file:
        return sum(map(len, iter(lambda: file.read(2**20), b""))) / 1e6


_SHIFTED_FIELDS = re.compile(rb'("(?:ts|correlation|External id)"\s*:\s*)(\d+)')


def grow(original: Path, size_mb: int, folder: Path) -> Path:
    """Write a trace with copies of ``original``, one after the other in time, of ``size_mb`` unpacked. Return its
    path."""
    path = folder / f"{original.name.removesuffix('.json.gz')}_{size_mb}mb.json.gz"
    if path.exists():
        return path
    document = gzip.decompress(original.read_bytes())
    trace = json.loads(document)
    times = [event["ts"] for event in trace["traceEvents"] if "ts" in event]
    ends = [event["ts"] + event["dur"] for event in trace["traceEvents"] if "dur" in event]
    length, ids = int(max(ends) - min(times)) + 1000, 10**7
    opening = re.search(rb'"traceEvents"\s*:\s*\[', document)
    assert opening is not None
    last = re.compile(rb"\}\s*\]").search(document, document.rindex(b'"ph"'))
    assert last is not None
    closing = last.end() - 1
    events = document[opening.end() : closing]

    def copies() -> Iterator[bytes]:
        yield document[: opening.end()]
        written = copy = 0
        while written < size_mb * 1e6:
            shifts = {b'"t': copy * length, b'"c': copy * ids, b'"E': copy * ids}

            def shifted(match: re.Match[bytes], shifts: dict[bytes, int] = shifts) -> bytes:
                return b"%b%d" % (match[1], int(match[2]) + shifts[match[1][:2]])

            text = _SHIFTED_FIELDS.sub(shifted, events)
            yield (b"," if copy else b"") + text
            written, copy = written + len(text), copy + 1
        yield document[closing:]

    with gzip.open(path, "wb", compresslevel=6) as file:
        for part in copies():
            file.write(part)
    return path


def grow_hlo(original: Path, size_mb: int, folder: Path) -> Path:
    """Write an HLO module with repeated computations, each copy under its own names. Return its path."""
    path = folder / f"{original.name.removesuffix('.hlo.txt')}_{size_mb}mb.hlo.txt"
    head, *blocks = re.split(r"\n\n(?=(?:ENTRY )?%)", original.read_text())
    inner = [block for block in blocks if not block.startswith("ENTRY")]
    entry = [block for block in blocks if block.startswith("ENTRY")]
    text = "\n\n".join(inner)
    copies, size, copy = [head, text], len(text), 0
    while size < size_mb * 1e6:
        copies.append(re.sub(r"%([\w.-]+)", rf"%\1.copy{copy}", text))
        size, copy = size + len(copies[-1]), copy + 1
    path.write_text("\n\n".join((*copies, *entry)))
    return path


if __name__ == "__main__":
    main()
