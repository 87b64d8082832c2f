"""Start-up time of ``regbot --help`` divided by that of ``python -c "import typer"``, in turns. The limit is 2.

python benchmarks/cli_start.py [--pairs 20]
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

PEER = [sys.executable, "-c", "import typer"]
OURS = [str(Path(sys.executable).with_name("regbot")), "--help"]


def seconds(command: list[str]) -> float:
    """Return the wall time of one process."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20)
    pairs = parser.parse_args().pairs
    for command in (PEER, OURS):  # once each to fill the file cache
        seconds(command)
    peer, ours = zip(*[(seconds(PEER), seconds(OURS)) for _ in range(pairs)], strict=True)
    ratios = sorted(b / a for a, b in zip(peer, ours, strict=True))
    print(f"import typer   median {statistics.median(peer) * 1000:6.1f} ms")
    print(f"regbot --help  median {statistics.median(ours) * 1000:6.1f} ms")
    low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
    print(
        f"ratio          median {statistics.median(ratios):6.2f}, 80% of pairs in {low:.2f} to {high:.2f}; limit 2.00"
    )


if __name__ == "__main__":
    main()
