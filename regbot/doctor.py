"""``regbot doctor``: what this machine can do, and what is missing for the rest. Nothing is assumed, all is tried."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from regbot.engines import Engine, Launch, LocalEngine, NoSeatError, clean_environment
from regbot.engines.availability import available
from regbot.engines.escape import PROCESSES
from regbot.engines.proof import prove
from regbot.engines.sandbox import Sandbox, unbounded, version
from regbot.engines.slurm.commands import Slurm
from regbot.engines.slurm.limits import partition_of
from regbot.health import Gpu, NoNvmlError, gpus_now
from regbot.node import CONTAINER, container, this_node
from regbot.records.base import Record
from regbot.records.files import RecordError, parse_json
from regbot.records.health import GpuMoment
from regbot.text import printable
from regbot.workloads import guest_folder

TIMEOUT_S = 120.0
CONTROLLER_S = 5.0

NOT_YET_RUN = "not yet run: checked against its published interface only, regbot has no run of it on a GPU on record"
"""Said of a dispatcher until such a run is kept in this repository."""


class Check(Record):
    """One capability. ``fix`` says what would give it; '' where it is there or nothing can be done."""

    name: str
    ok: bool
    detail: str
    fix: str = ""


class Diagnosis(Record):
    """All capabilities of this machine, and of the interpreter that guests would run under."""

    schema_id: Literal["regbot/doctor@1"] = Field(default="regbot/doctor@1", alias="schema")
    checks: list[Check]


def examine(python: str = sys.executable, engine: Engine | None = None) -> Diagnosis:
    """Try everything. Runs the guest's interpreter once, with a time limit."""
    guest = _guest(python, engine or LocalEngine())
    return Diagnosis(
        checks=[_git(), *_torch_checks(guest, python), *_gpu_checks(guest), *_dispatchers(guest), *_engines()]
    )


def _guest(python: str, engine: Engine) -> dict[str, Any]:
    """What the guest's interpreter says of itself; ``{"why": ...}`` where it says nothing."""
    with tempfile.TemporaryDirectory(prefix="regbot-") as name:
        folder = Path(name)
        ended = engine.run(
            Launch(
                command=(python, str(guest_folder()), "--capabilities"),
                cwd=folder,
                env=clean_environment({"PYTHONDONTWRITEBYTECODE": "1"}),
                log=folder / "output.log",
                record_dir=folder / "record",
                timeout_s=TIMEOUT_S,
                max_output_bytes=2**20,
                max_dir_bytes=2**20,
            )
        )
        if ended.timed_out:
            return {"why": f"did not answer within {TIMEOUT_S:.0f} s"}
        lines = (folder / "output.log").read_bytes().splitlines()
    for line in reversed(lines):
        try:
            answer = parse_json(line, "capabilities")
        except RecordError:
            continue
        if isinstance(answer, dict) and "python" in answer:
            return answer
    return {"why": f"exited with {ended.exit_code}: {ended.log_tail[-300:]}"}


def _git() -> Check:
    git = shutil.which("git")
    if git is None:
        return Check(name="git", ok=False, detail="not found", fix="install git; check and demo need it")
    version = subprocess.run([git, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout.strip()
    return Check(name="git", ok=True, detail=version)


def _torch_checks(guest: dict[str, Any], python: str) -> list[Check]:
    install = f"{python} -m pip install '.[smoke]' in a checkout of regbot"
    if guest.get("torch") is None:
        why = str(guest.get("why", "not installed"))
        return [
            Check(name="torch", ok=False, detail=f"{python}: {why}", fix=install),
            Check(name="static ledger", ok=False, detail="needs torch", fix=install),
        ]
    cuda = f"CUDA {guest['cuda']}" if guest.get("cuda") else "CPU build"
    checks = [Check(name="torch", ok=True, detail=f"{guest['torch']}, {cuda}, Python {guest['python']}")]
    fault = guest.get("static")
    checks.append(
        Check(
            name="static ledger",
            ok=fault is None,
            detail=str(fault) if fault else "a collective of a fake world was counted",
            fix="use a torch from 2.8 to 2.13" if fault else "",
        )
    )
    for dtype, runs in guest.get("grouped_mm", {}).items():
        detail = "runs, forward and backward" if runs else "does not run here; experts are computed one by one"
        checks.append(Check(name=f"grouped GEMM {dtype}", ok=runs, detail=detail))
    for backend, there in guest.get("backends", {}).items():
        checks.append(
            Check(name=f"backend {backend}", ok=there, detail="built into torch" if there else "not in this torch")
        )
    return checks


def _gpu_checks(guest: dict[str, Any]) -> list[Check]:
    gpus = guest.get("gpus") or []
    detail = ", ".join(gpus) if gpus else "none visible to torch"
    fix = "" if gpus else "not needed for the sharding verdict; timing full shapes needs a GPU node"
    return [
        Check(name="GPUs", ok=bool(gpus), detail=detail, fix=fix),
        _gpu_health(),
        *_image(os.environ.get(CONTAINER, "")),
    ]


def _gpu_health() -> Check:
    """What a timed run would be told of its GPUs now; slowed down by its hardware, a GPU times nothing."""
    name = "GPU health (nvidia-ml-py)"
    try:
        seen = gpus_now()
    except NoNvmlError as error:
        fix = "" if find_spec("pynvml") else "pip install nvidia-ml-py on GPU nodes"
        return Check(name=name, ok=False, detail=printable(str(error)).partition(";")[0], fix=fix)
    words = [_state(gpu, now) for gpu, now in seen]
    driver = this_node().driver
    return Check(name=name, ok=bool(seen), detail="; ".join([f"driver {driver}", *words])[:500])


def _state(gpu: Gpu, now: GpuMoment) -> str:
    """``GPU 0: 345 of 1980 MHz, 34 C``, and what is unusual."""
    clock = "clock unknown" if now.sm_mhz is None else f"{now.sm_mhz:.0f} of {gpu.sm_max_mhz} MHz"
    heat = "" if now.temperature_c is None else f", {now.temperature_c} C"
    tenants = f", {len(now.processes)} process{'es' * (len(now.processes) != 1)} on it" if now.processes else ""
    reasons = [reason for reason in now.reasons if reason != "idle"]
    return f"GPU {gpu.index}: {clock}{heat}{tenants}{f', held back by {reasons[0]}' if reasons else ''}"


def _image(given: str) -> list[Check]:
    """Whether the name of this container's image can be believed tomorrow; nothing where none is given."""
    if not given:
        return []
    digest = container(given)
    fix = "" if digest else f"set {CONTAINER} to the image's digest, sha256:...: a tag may be another image tomorrow"
    return [Check(name="container", ok=digest is not None, detail=digest or printable(given)[:200], fix=fix)]


def _dispatchers(guest: dict[str, Any]) -> list[Check]:
    torch_there = guest.get("torch") is not None
    detail = "torch.distributed collectives; run on gloo ranks by the tests" if torch_there else "needs torch"
    checks = [Check(name=f"dispatcher {name}", ok=torch_there, detail=detail) for name in ("alltoall", "allgather")]
    for name in ("deepep", "hybridep"):
        told = guest.get("dispatchers", {}).get(name) or {"importable": False, "usable": False, "why": "needs torch"}
        checks.append(Check(name=f"dispatcher {name}", ok=False, detail=_library(told), fix=_library_fix(told)))
    return checks


def _library(told: dict[str, Any]) -> str:
    """Importable? usable? proven by a run? why not, in one line."""
    importable = "no"
    if told["importable"]:
        origin = f" of {', '.join(told['distributions'])}" if told["distributions"] else ""
        importable = f"yes (deep_ep {told['version']}{origin})"
    usable = f"yes ({told['buffer']})" if told["usable"] else f"no ({told['why']})"
    return f"importable: {importable}; usable: {usable}; {NOT_YET_RUN}"


def _library_fix(told: dict[str, Any]) -> str:
    if told["usable"]:
        return ""
    return "ask for alltoall; a check that asks for this one is INVALID here (docs/dispatchers.md)"


def _engines() -> list[Check]:
    linux = platform.system() == "Linux"
    local = "supervised processes, ended with everything they started"
    if not linux:
        local = "supervised processes; off Linux, children that leave their process group are not followed"
    return [Check(name="engine local", ok=True, detail=local), _slurm(), _sandbox(Sandbox())]


def _slurm() -> Check:
    """Whether a controller answers, and what its default partition has."""
    name = "engine slurm"
    if shutil.which("sbatch") is None:
        return Check(name=name, ok=False, detail="no sbatch here")
    try:
        found = partition_of(Slurm(outage_s=CONTROLLER_S), "")
    except NoSeatError as error:
        return Check(name=name, ok=False, detail=printable(str(error))[:500], fix="see docs/slurm.md")
    gpus = f"{found.gpus} GPUs each at most" if found.gpus else "no GPUs"
    return Check(name=name, ok=True, detail=f"partition {found.name}: {len(found.nodes)} nodes, {gpus}")


def _sandbox(sandbox: Sandbox) -> Check:
    """Whether code can be confined here, proven by a program that tries to get out."""
    if why := available(sandbox):
        fix = "run untrusted code only on machines that hold no secrets (docs/sandbox.md)"
        return Check(name="sandbox", ok=False, detail=printable(why)[:1000], fix=fix)
    proof = prove(sandbox)
    if proof.fault:
        return Check(name="sandbox", ok=False, detail=f"{version()}: {printable(proof.fault)}"[:1000])
    limits = [*unbounded(replace(sandbox, memory_gb=sandbox.memory_gb or 1.0))]
    notes = f"; not limited here: {'; '.join(limits)}" if limits else ""
    missed = [deed for deed in proof.done if deed != PROCESSES or not any(why.startswith("pids") for why in limits)]
    said = f"{version()}: a program in it could not {', '.join(proof.stopped)}"
    if missed:
        said = f"{version()}: a program in it could {', '.join(missed)}, and could not {', '.join(proof.stopped)}"
    fix = "run no untrusted code here" if missed else ""
    return Check(name="sandbox", ok=not missed, detail=f"{said}{notes}", fix=fix)
