"""Compare one real step with the paper trace of the same program."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from gpu_hour.launcher import GUEST, PROGRAMS
from gpu_hour.rows import Row
from regbot.workloads.paper import NoPaperGpuError, library_for

PEAK_TOLERANCE = 0.02
"""Largest relative difference of the peak memory. Only the real peak contains workspaces of libraries."""
MAX_DIFFERENCES = 5
"""Number of differing rows that a table names."""
TRACE_S = 300.0
ROW = ("kind", "axis", "group_size", "dtype", "phase", "role", "where")

Step = Mapping[str, Any]
"""Result of ``programs/step.py``."""


@cache
def paper_library() -> Path:
    """Return the paper GPU for this interpreter's torch. Raises NoPaperGpuError."""
    folder = Path(tempfile.mkdtemp(prefix="regbot-first-hour-"))
    return library_for(sys.executable, Path.home() / ".cache" / "regbot", folder).path


def trace_on_paper(request: Mapping[str, Any]) -> Step:
    """Run the step of ``request`` on the paper GPU. Raises NoPaperGpuError, or RuntimeError with the end of its log."""
    folder = Path(tempfile.mkdtemp(prefix="regbot-first-hour-"))
    try:
        document = {**request, "root": str(GUEST), "record": str(folder / "raw.{rank}.json"), "device": "cuda"}
        path = folder / "request.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        command = [sys.executable, str(PROGRAMS / "step.py"), str(path), str(paper_library())]
        done = subprocess.run(
            command,
            env={"PYTHONPATH": str(GUEST), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=TRACE_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"the step failed on the paper GPU: {done.stderr[-2000:]}")
        step: Step = json.loads((folder / "paper.json").read_text(encoding="utf-8"))
        return step
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def compare_with_paper(name: str, request: Mapping[str, Any], real: Step) -> Iterator[Row]:
    """Yield the rows of one step: its collectives, operators, host reads and peak memory on paper and on the device."""
    try:
        paper = trace_on_paper(request)
    except (NoPaperGpuError, RuntimeError) as error:
        yield Row(f"{name}: paper trace", "a trace", str(error).strip().splitlines()[-1], False)
        return
    if paper["torch"].partition("+")[0] != real["torch"].partition("+")[0]:
        yield Row(f"{name}: torch", f"{paper['torch']} here", f"{real['torch']} there: install it here", None)
    expected, seen = _rows(paper), _rows(real)
    count = sum(row[0] for row in expected.values())
    yield Row(
        f"{name}: collectives",
        f"{count} in {len(expected)} rows",
        _describe(expected, seen, f"{sum(row[0] for row in seen.values())} in {len(seen)} rows"),
        expected == seen,
    )
    if real["device"] == "cpu":  # a rehearsal: other operators and another allocator
        return
    yield _compare_counts(f"{name}: operators", paper["operators"], real["operators"])
    yield _compare_counts(f"{name}: host reads", paper["host_reads"], real["host_reads"])
    ratio = real["peak_bytes"] / paper["peak_bytes"]
    yield Row(
        f"{name}: peak memory",
        f"{paper['peak_bytes'] / 1e9:.2f} GB",
        f"{real['peak_bytes'] / 1e9:.2f} GB ({100 * (ratio - 1):+.1f}%)",
        abs(ratio - 1) <= PEAK_TOLERANCE,
    )


def _rows(step: Step) -> dict[tuple[Any, ...], tuple[int, int]]:
    """Return count and bytes by row. The backend is not part of a row, because the paper GPU has none."""
    rows: dict[tuple[Any, ...], tuple[int, int]] = {}
    for entry in step["entries"]:
        key = tuple(entry[field] for field in ROW)
        count, size = rows.get(key, (0, 0))
        rows[key] = (count + entry["count"], size + entry["bytes"])
    return rows


def _compare_counts(what: str, expected: Mapping[str, int], seen: Mapping[str, int]) -> Row:
    text = f"{sum(expected.values())} of {len(expected)} kinds"
    seen_text = _describe(expected, seen, f"{sum(seen.values())} of {len(seen)} kinds")
    return Row(what, text, seen_text, dict(expected) == dict(seen))


def _describe(expected: Mapping[Any, Any], seen: Mapping[Any, Any], total: str) -> str:
    """Return the total that was seen and the first differences, as ``key: expected -> seen``."""
    keys = sorted({*expected, *seen}, key=str)
    differences = [key for key in keys if expected.get(key) != seen.get(key)]
    texts = [f"{_name(key)}: {expected.get(key, 0)} -> {seen.get(key, 0)}" for key in differences[:MAX_DIFFERENCES]]
    more = len(differences) - len(texts)
    return "; ".join([total, *texts, *([f"and {more} more differences"] if more > 0 else [])])


def _name(key: Any) -> str:
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key or "(no module)")
