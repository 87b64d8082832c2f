"""Start the processes of a stage and write down how they ended. This module needs the standard library only."""

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parents[2]
GUEST = ROOT / "regbot" / "guest"
PROGRAMS = Path(__file__).resolve().parent / "programs"
STAGE_S = 360.0
"""Seconds of one stage. Launches that would begin later are left out and listed."""
LOG_BYTES = 20_000
"""Number of bytes that are kept of a launch's output: its end."""
END_S = 10.0
"""Seconds between SIGTERM and SIGKILL. torch's launcher needs them to end its ranks."""
MARKS = ("steps.begun", "steps.steady", "steps.ended")


@dataclass(frozen=True)
class Settings:
    """Options of all stages. ``size`` is the size of the shapes. ``gpus`` is the number of GPUs for ``multi``."""

    out: Path
    python: str
    size: str = "smoke"
    device: str = "cuda"
    gpus: int = 8


class Launcher:
    """Runs the launches of one stage, and writes them to ``launches.json`` in the stage's folder."""

    def __init__(self, stage: str, settings: Settings) -> None:
        self.settings = settings
        self.folder = settings.out / stage
        self.folder.mkdir(parents=True, exist_ok=True)
        gpu_names, driver = list_gpus()
        options = {"size": settings.size, "device": settings.device, "cores": os.cpu_count() or 1}
        write_json(self.folder / "settings.json", {**options, "gpu_names": gpu_names, "driver": driver})
        self._deadline = time.monotonic() + STAGE_S
        self._launches: list[dict[str, Any]] = []

    def request(
        self, name: str, shape: str, ranks: int, geometry: dict[str, Any] | None = None, **changes: Any
    ) -> Path:
        """Write the guest's request for ``ranks`` ranks of regbot's smoke model and return its file.

        ``geometry`` and ``changes`` replace dimensions and settings.
        """
        folder = self.folder / name
        (folder / "record").mkdir(parents=True, exist_ok=True)
        document = {
            "request": secrets.token_hex(16),
            "workload": f"{shape}@1/ep",
            "variant": self.settings.size,
            "record": str(folder / "record" / "raw.{rank}.json"),
            "root": str(GUEST),
            "source_roots": [],
            "adapter": "smoke",
            "geometry": read_geometry(shape, self.settings.size) | (geometry or {}),
            "world": ranks,
            "ep": ranks,
            "dtype": "float32" if self.settings.size == "cpu" else "bfloat16",
            "dispatcher": "alltoall",
            "mode": "timed",
            "device": self.settings.device,
            "share_gpu": self.settings.device == "cuda" and ranks > 1,
        }
        return write_json(folder / "request.json", document | changes)

    def run(
        self, request: Path, *command: object, ranks: int = 1, limit_s: float = 120.0, env: dict[str, str] | None = None
    ) -> int | None:
        """Run ``command`` with ``ranks`` ranks of torch's launcher. Return its exit code, None if it did not end.

        The default command is the guest with ``request``. The name of the launch is that of the request's folder. A
        launch that ``limit_s`` or the time of the stage ends has no exit code.
        """
        folder = request.parent
        launched_s = self._deadline - time.monotonic()
        entry: dict[str, Any] = {"name": folder.name, "ranks": ranks, "code": None, "wall_s": 0.0, "timed_out": False}
        self._launches.append(entry)
        if launched_s < limit_s / 4:
            entry["skipped"] = True
        else:
            arguments = [*map(str, command or (GUEST, request))]
            launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
            started, start = time.monotonic(), time.time()
            entry["code"] = _run_process(
                [self.settings.python, *launcher, *arguments], folder, min(limit_s, launched_s), env or {}
            )
            entry |= {"wall_s": time.monotonic() - started, "started_unix_s": start, "timed_out": entry["code"] is None}
            entry["marks_ns"] = {
                mark: (folder / "record" / mark).stat().st_mtime_ns
                for mark in MARKS
                if (folder / "record" / mark).exists()
            }
        write_json(self.folder / "launches.json", self._launches)
        code: int | None = entry["code"]
        return code


def _run_process(command: Sequence[str], folder: Path, limit_s: float, env: dict[str, str]) -> int | None:
    """Run one process until ``limit_s``. Return its exit code, None if it had to be ended."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(GUEST), **env}
    log = folder / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=END_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    log.write_bytes(log.read_bytes()[-LOG_BYTES:])
    return code


def list_gpus() -> tuple[list[str], str | None]:
    """Return the names of the node's GPUs and the driver's version, as the driver's own tool reports them."""
    command = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return [], None
    rows = [line.split(", ") for line in done.stdout.splitlines() if done.returncode == 0]
    return [row[0] for row in rows], rows[0][1] if rows else None


def read_geometry(shape: str, size: str) -> dict[str, Any]:
    """Return the dimensions of a size of a shape, from the file that regbot reads too."""
    path = ROOT / "regbot" / "workloads" / "shapes" / "data" / f"{shape}.toml"
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    return {**document["geometry"], **document["sizes"][size]}


def write_json(path: Path, document: Any) -> Path:
    """Write ``document`` to ``path`` and return the path."""
    path.write_text(json.dumps(document), encoding="utf-8")
    return path
