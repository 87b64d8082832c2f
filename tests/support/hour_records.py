"""Folders as stages of ``benchmarks/first_hour.py`` leave them, made of a few numbers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_hour.launcher import read_geometry, write_json
from gpu_hour.records import StageRecords

SHAPE = "mixtral-8x7b"
SETTINGS = {"size": "smoke", "device": "cuda", "cores": 16, "gpu_names": ["NVIDIA H200"], "driver": "575.57.08"}
STARTED_NS = 1_790_000_000_000_000_000
ENVIRONMENT = {"python": "3.12.3", "torch": "2.13.0+cu130", "platform": "linux x86_64", "packages": "e" * 64}
STEPS, WARMUP = 20, 5


def write_stage(folder: Path, launches: Sequence[Mapping[str, Any]] = ()) -> StageRecords:
    """Write the settings and the launches of a stage."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "settings.json", SETTINGS)
    write_json(folder / "launches.json", list(launches))
    return StageRecords(folder)


def write_timed_launch(stage: Path, name: str, step_s: float, shape: str = SHAPE) -> dict[str, Any]:
    """Write the record of a launch whose steps all took ``step_s`` seconds, and return its entry of the stage."""
    folder = stage / name
    (folder / "record").mkdir(parents=True)
    claims = {"request": f"nonce {name}", "workload": f"{shape}@1/ep", "variant": "smoke"}
    request = {**claims, "world": 1, "ep": 1, "steps": STEPS, "warmup": WARMUP, "root": str(folder)}
    write_json(folder / "request.json", {**request, "geometry": read_geometry(shape, "smoke")})
    (folder / "output.log").write_text("", encoding="utf-8")
    times = [step_s * (1 + 0.001 * (number % 3)) for number in range(STEPS)]
    record = {
        "schema": "regbot/raw-run@1",
        **claims,
        "rank": 0,
        "environment": ENVIRONMENT,
        "steps": {
            "step_s": times,
            "cpu_s": times,
            "wait_s": [0.0] * STEPS,
            "memory_bytes": [10**9] * STEPS,
            "peak_bytes": 2 * 10**9,
        },
        "clock": "cuda_events",
        "loss": [7.0 - 0.01 * number for number in range(STEPS)],
        "code": {"watched": {}, "foreign": {}, "files": {"__main__.py": "c" * 64}},
    }
    write_json(folder / "record" / "raw.0.json", record)
    marks = {"steps.begun": 0.0, "steps.steady": sum(times[:WARMUP]), "steps.ended": sum(times)}
    for mark in marks:
        (folder / "record" / mark).touch()
    return {
        "name": name,
        "ranks": 1,
        "code": 0,
        "wall_s": sum(times) + 20,
        "timed_out": False,
        "started_unix_s": STARTED_NS / 1e9,
        "marks_ns": {mark: STARTED_NS + int(1e9 * seconds) for mark, seconds in marks.items()},
    }


def change_json(path: Path, **changes: Any) -> None:
    """Replace keys of the JSON document in a file."""
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
