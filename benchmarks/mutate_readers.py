"""Read ten thousand damaged files with each reader of recordings. Each file must give a ledger or a ReadError.

``tests/support/mutations.py`` damages the files; the tests use 500 files for each reader. A seed makes the damage
repeatable. For each reader, the benchmark prints the numbers of files that were read and refused, the number of
different messages, and the longest time. If a reader raises another error, the benchmark ends and prints where the file
is."""

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from regbot.ledgers.readers import READERS, Reader, ReadError  # noqa: E402
from support.mutations import outcomes, samples  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("readers", nargs="*", default=[reader.NAME for reader in READERS])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", default="1")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="regbot-mutate-"))
    files = samples(folder)
    print(f"{'reader':<16} {'read':>7} {'refused':>8} {'messages':>9} {'slowest ms':>11} {'s':>6}")
    for reader in READERS:
        if reader.NAME in options.readers:
            report(reader, files[reader.NAME], options.runs, options.seed, folder)


def report(reader: Reader, sample: list[bytes], runs: int, seed: str, folder: Path) -> None:
    read, messages, slowest = 0, [], 0.0
    began = last = time.perf_counter()
    try:
        for outcome in outcomes(reader, sample, runs, seed, folder):
            now = time.perf_counter()
            slowest, last = max(slowest, now - last), now
            if isinstance(outcome, ReadError):
                messages.append(re.sub(r"\d+|'[^']*'", "#", str(outcome))[:120])
            else:
                outcome.to_json()
                read += 1
    except Exception as error:
        file = folder / f"{reader.NAME}.damaged"
        raise SystemExit(f"{reader.NAME}: {type(error).__name__}: {error}; the file is {file}") from error
    counts = f"{read:>7} {len(messages):>8} {len(set(messages)):>9}"
    print(f"{reader.NAME:<16} {counts} {1000 * slowest:>11.1f} {last - began:>6.1f}", flush=True)


if __name__ == "__main__":
    main()
