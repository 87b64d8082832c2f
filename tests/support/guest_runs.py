"""Running the guest as regbot does: a request file, a process or the ranks of a launcher, one record per rank.

Several requests share a process where a test allows it, because importing torch takes longer than most requests.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock

import regbot
from regbot.workloads.shapes import load_shape
from regbot_guest.request import Geometry, Request

GUEST = Path(regbot.__file__).parent / "guest"
SCRIPTS = Path(__file__).parents[1] / "gloo"
TINY = {"layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1, "head_dim": 16, "expert_width": 16} | {
    "experts": 8, "top_k": 2, "vocabulary": 64, "sequence": 16, "micro_batch": 1,
}  # fmt: skip
"""Small dimensions for tests that do not depend on sizes."""

TIMEOUT_S = 90
Shared = Callable[[str, Callable[[Path], None]], Path]
"""``shared(name, make)``: a folder that is made once per test run (fixture ``shared``)."""

QWEN, MIXTRAL = "qwen3-30b-a3b", "mixtral-8x7b"
Row = tuple[str, str, int, str, str, str, str]
"""Kind, axis, group size, dtype, phase, role and module of a ledger entry."""


def ask(
    folder: Path,
    name: str,
    shape: str = QWEN,
    variant: str = "cpu",
    geometry: dict[str, Any] | None = None,
    world: int = 2,
    ep: int = 2,
    **changes: Any,
) -> Path:
    """Write a request for a shape's variant, with numbers of its geometry replaced, and return its file."""
    chosen = load_shape(shape).variant(variant)
    document = {
        "request": name,
        "workload": shape,
        "variant": variant,
        "record": str(folder / f"{name}.rank{{rank}}.json"),
        "root": str(folder),
        "geometry": chosen.geometry.model_dump() | (geometry or {}),
        "world": world,
        "ep": ep,
        "mlp": chosen.mlp,
        "routing": chosen.routing,
        "dtype": chosen.dtype,
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document | changes), encoding="utf-8")
    return path


def make_request(**changes: Any) -> Request:
    """Return the request for a step of the full Mixtral on 8 ranks, as the guest loads it."""
    geometry = Geometry(**load_shape(MIXTRAL).variant("full").geometry.model_dump())
    return replace(Request("x", "mixtral-8x7b@1/ep", "full", "raw.json", "checkout", geometry, 8, 8), **changes)


def answer(folder: Path, name: str, rank: int = 0) -> dict[str, Any]:
    """Return the record of a request."""
    record: dict[str, Any] = json.loads((folder / f"{name}.rank{rank}.json").read_text(encoding="utf-8"))
    return record


def run_guest(request: Path, ranks: int = 0, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the guest as one process or as the ranks of torchrun. Does not raise if it fails; see the exit code."""
    return _run([str(GUEST), str(request)], ranks, environment)


def run_together(requests: Iterable[Path]) -> "subprocess.CompletedProcess[str]":
    """Run several requests in one guest process."""
    return _run([str(GUEST), *map(str, requests)], 0, {})


def run_script(script: str, *arguments: object, ranks: int = 0) -> str:
    """Run a script of ``tests/gloo`` with the guest importable. Return its standard output; fail with its errors."""
    done = _run([str(SCRIPTS / script), *map(str, arguments)], ranks, {"PYTHONPATH": str(GUEST)})
    assert done.returncode == 0, f"{script}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_all(requests: Iterable[Path], ranks: int = 0) -> None:
    """Run several requests in sequence in the same processes."""
    run_script("answer.py", *requests, ranks=ranks)


def _run(command: list[str], ranks: int, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
    full = [sys.executable, *launcher, *command]
    started = subprocess.Popen(
        full,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with started:
        try:
            out, errors = started.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(
                started.pid, signal.SIGTERM
            )  # asks the launcher to end its ranks, which lead sessions of their own
            out, errors = started.communicate()
            errors += f"\nended after {TIMEOUT_S} s"
    return subprocess.CompletedProcess(full, started.returncode, out, errors)


def once(base: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The folder ``name``, filled by ``make`` once for all workers of a test run.

    ``base`` is the worker's own temporary folder; its parent is shared where pytest-xdist runs the tests.
    """
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / name
    with FileLock(shared / f"{name}.lock"):
        if not (folder / "made").exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            (folder / "made").touch()
    return folder


def rows(record: dict[str, Any]) -> dict[Row, tuple[int, int]]:
    """Count and bytes of every ledger entry, by all that tells entries apart but the backend."""
    assert "refusal" not in record, record["refusal"]
    return {
        (e["kind"], e["axis"], e["group_size"], e["dtype"], e["phase"], e["role"], e["where"]): (e["count"], e["bytes"])
        for e in record["ledger"]["entries"]
    }


def counts(record: dict[str, Any], *fields: str) -> dict[Any, int]:
    """Collectives of the step by ``fields`` of the ledger entries, by kind where none is given."""
    assert "refusal" not in record, record["refusal"]
    found: Counter[Any] = Counter()
    for entry in record["ledger"]["entries"]:
        key = tuple(entry[field] for field in fields) if fields else entry["kind"]
        found[key if len(fields) != 1 else key[0]] += entry["count"]
    return dict(found)
