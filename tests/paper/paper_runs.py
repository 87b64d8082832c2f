"""Running programs on the paper GPU: a process each, because the device is loaded before torch."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from guest_runs import GUEST

PROGRAMS = Path(__file__).parent / "programs"
TIMEOUT_S = 600


def run_program(
    library: Path, program: "str | Path", *arguments: object, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run a program of ``programs/``, or any other file, with ``cuda`` a paper GPU. Never raises."""
    command = [sys.executable, str(PROGRAMS / "start.py"), str(library), str(PROGRAMS / program)]
    return subprocess.run(
        [*command, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(GUEST), **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def read_answer(library: Path, program: "str | Path", *arguments: object, **environment: str) -> Any:
    """The JSON on the last line that the program prints. Fails with its errors."""
    done = run_program(library, program, *arguments, **environment)
    assert done.returncode == 0, f"{program}: exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.splitlines()[-1])
