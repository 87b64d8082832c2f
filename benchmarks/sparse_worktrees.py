"""Files and seconds of a worktree of a large repository: all files, and sparse; new, and reused from the cache.

python benchmarks/sparse_worktrees.py [--files 50000] [--commits 2]

The peer is ``git worktree add`` of the same commit. The first commit only fills the private clone and is not counted.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from regbot.workloads.checkout import Build, check_out

FOLDERS = 500
TRAIN_FILES = 100


def create_repository(folder: Path, files: int, commits: int) -> list[str]:
    """Create a repository of ``files`` files, 100 of them in ``train``. Each commit changes one file there."""
    subprocess.run(["git", "init", "--quiet", "--bare", str(folder)], check=True)
    names = [f"train/m{number}.py" for number in range(TRAIN_FILES)]
    names += [f"web/d{number % FOLDERS}/f{number}.js" for number in range(files - TRAIN_FILES)]
    stream = []
    for commit in range(commits):
        stream.append(
            f"commit refs/heads/main\ncommitter b <b@example.org> {1_700_000_000 + commit} +0000\ndata 1\nc\n"
        )
        for name in names if not commit else names[:1]:
            text = f"{name} {commit}\n" * 40
            stream.append(f"M 100644 inline {name}\ndata {len(text)}\n{text}\n")
    subprocess.run(["git", "fast-import", "--quiet"], cwd=folder, input="".join(stream).encode(), check=True)
    log = subprocess.run(
        ["git", "rev-list", "--reverse", "main"], cwd=folder, capture_output=True, text=True, check=True
    )
    return log.stdout.split()


def measure_s(action: Callable[[], object]) -> float:
    """Return the seconds that ``action`` takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--commits", type=int, default=2)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    build = Build([], sys.executable, 600.0)
    with tempfile.TemporaryDirectory(prefix="regbot-") as name:
        home = Path(name)
        repo, cache = home / "repository.git", home / "cache"
        commits = create_repository(repo, options.files, options.commits + 1)
        for number, commit in enumerate(commits):

            def add(commit: str = commit, number: int = number) -> None:
                command = ["git", "worktree", "add", "--quiet", "--detach", str(home / f"peer{number}"), commit]
                subprocess.run(command, cwd=repo, check=True)

            row = {"git worktree add": measure_s(add)}
            for label, sparse in (("all files", ()), ("sparse", ("train",))):
                for state in ("new", "reused"):
                    row[f"{label}, {state}"] = measure_s(
                        lambda commit=commit, sparse=sparse: check_out(repo, commit, cache, build, sparse=sparse)
                    )
                tree = check_out(repo, commit, cache, build, sparse=sparse)
                counts[label] = sum(path.is_file() for path in tree.path.rglob("*")) - 1
            for label, value in row.items() if number else ():
                seconds.setdefault(label, []).append(value)
    print(f"{options.files:,} files, {options.commits} commits; seconds: median (least to most)")
    for label, values in seconds.items():
        files = counts.get(label.partition(",")[0], options.files)
        spread = f"({min(values):.2f} to {max(values):.2f})"
        print(f"{label:20} {files:7,} files {statistics.median(values):7.2f} {spread}")


if __name__ == "__main__":
    main()
