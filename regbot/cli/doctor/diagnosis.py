"""``regbot doctor``: test which capabilities this machine has, and say how to get the missing ones."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from regbot.engines import Engine, EngineError, Launch, LocalEngine, NoSeatError, clean_environment
from regbot.engines.availability import try_escapes, unavailable_reason
from regbot.engines.confinement import PIDS
from regbot.engines.escape import PROCESSES
from regbot.engines.guest import guest_folder
from regbot.engines.health.machine import CONTAINER, image_digest, this_node
from regbot.engines.health.nvml import GpuDevice, NoNvmlError, snapshot_gpus
from regbot.engines.sandbox import bubblewrap_version, unbounded
from regbot.engines.slurm.commands import Slurm, find_partition
from regbot.records.base import Record
from regbot.records.config import SandboxSettings
from regbot.records.files import RecordError, parse_json
from regbot.records.health import GpuSnapshot
from regbot.records.text.clip import clip, clip_label
from regbot.records.text.printable import printable
from regbot.workloads.framework_needs import TESTED_TORCH

TIMEOUT_S = 120.0
"""Time limit in seconds of the interpreter that runs guest code."""
CONTROLLER_S = 5.0
"""Seconds to wait for an answer of the Slurm controller."""

NOT_YET_RUN = "not yet run on a GPU: checked only against its published interface"
"""Remark on a dispatcher of which this repository has no record of a run on a GPU."""


EMPTY_GPU_TABLES = ("capabilities", "smoke", "paper", "gloo", "faults", "profiles", "noise", "overhead", "multi")
"""Stages of ``benchmarks/first_hour.py`` of which this repository has no table from a GPU (docs/operator.md)."""


class Capability(Record):
    """One capability. ``ok`` says whether the machine has it, and ``detail`` what was seen.

    ``fix`` says how to get the capability; '' if the machine has it or nothing can be done.
    """

    name: str
    ok: bool
    detail: str
    fix: str = ""


class Diagnosis(Record):
    """All capabilities of this machine and of the interpreter that runs guest code, or what one workload needs.

    ``install`` has the commands that make a fresh environment for the workload; [] without a workload.
    """

    schema_id: Literal["regbot/doctor@1"] = Field(default="regbot/doctor@1", alias="schema")
    checks: list[Capability]
    install: list[str] = Field(default=[])


def examine(python: str = sys.executable, engine: Engine | None = None) -> Diagnosis:
    """Test all capabilities. For this, start ``python``, the interpreter for guest code, once with a time limit."""
    guest = query_interpreter(python, ["--capabilities"], {}, engine or LocalEngine())
    machine = [check_gpu_health(), *check_image(os.environ.get(CONTAINER, "")), _gpu_tables()]
    return Diagnosis(checks=[_git(), *guest_checks(guest, python), *machine, *_engines()])


def guest_checks(guest: dict[str, Any], python: str) -> list[Capability]:
    """Return the capabilities of the interpreter ``python``. This machine need not have the interpreter.

    ``guest`` is the document that the guest code printed in this interpreter.
    """
    return [*_torch_checks(guest, python), _gpus(guest), *check_dispatchers(guest)]


def query_interpreter(
    python: str, arguments: Sequence[str], variables: Mapping[str, str], engine: Engine
) -> dict[str, Any]:
    """Start the guest code in ``python`` with ``arguments``, and return the JSON document that it prints.

    The document is the last line of the output that is JSON and has the key ``python``. If there is none, return
    ``{"why": REASON}``. ``variables`` are added to a clean environment.
    """
    with tempfile.TemporaryDirectory(prefix="regbot-") as temporary_folder:
        folder = Path(temporary_folder)
        try:
            process_result = engine.run(
                Launch(
                    command=(python, str(guest_folder()), *arguments),
                    cwd=folder,
                    env=clean_environment({**variables, "PYTHONDONTWRITEBYTECODE": "1"}),
                    log=folder / "output.log",
                    record_dir=folder / "record",
                    timeout_s=TIMEOUT_S,
                )
            )
        except EngineError as error:
            return {"why": str(error)}
        if process_result.timed_out:
            return {"why": f"did not answer within {TIMEOUT_S:.0f} s"}
        lines = (folder / "output.log").read_bytes().splitlines()
    for line in reversed(lines):
        try:
            document = parse_json(line, "capabilities")
        except RecordError:
            continue
        if isinstance(document, dict) and "python" in document:
            return document
    return {"why": f"exited with {process_result.exit_code}: {process_result.log_tail[-300:]}"}


def _git() -> Capability:
    """Check whether git is installed, and report its version."""
    git = shutil.which("git")
    if git is None:
        return Capability(name="git", ok=False, detail="not found", fix="install git; check and demo need it")
    version = subprocess.run([git, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout.strip()
    return Capability(name="git", ok=True, detail=version)


def _torch_checks(guest: dict[str, Any], python: str) -> list[Capability]:
    """Return what torch can do in the interpreter ``python``: static traces, grouped GEMMs, and backends.

    ``guest`` is the document that the guest code printed. If the guest code printed none, its only key is ``why``."""
    install = f"{python} -m pip install '.[smoke]' in a checkout of regbot"
    if guest.get("torch") is None:
        reason = str(guest.get("why", "not installed"))
        return [
            Capability(name="torch", ok=False, detail=f"{python}: {reason}", fix=install),
            Capability(name="static ledger", ok=False, detail="needs torch", fix=install),
        ]
    cuda = f"CUDA {guest['cuda']}" if guest.get("cuda") else "CPU build"
    checks = [Capability(name="torch", ok=True, detail=f"{guest['torch']}, {cuda}, Python {guest['python']}")]
    trace_failure = guest.get("static")  # why a collective of fake ranks could not be counted; None if it was
    oldest_torch, newest_torch = TESTED_TORCH
    checks.append(
        Capability(
            name="static ledger",
            ok=trace_failure is None,
            detail=str(trace_failure) if trace_failure else "a collective of a fake world was counted",
            fix=f"use a torch from {oldest_torch} to {newest_torch}" if trace_failure else "",
        )
    )
    for dtype, grouped_gemm in guest.get("grouped_mm", {}).items():
        if grouped_gemm["runs"]:  # ``path`` is the implementation that torch uses
            detail = f"runs, forward and backward: {grouped_gemm['path']}"
        else:
            detail = grouped_gemm.get("why") or "does not run here; experts are computed one by one"
        checks.append(Capability(name=f"grouped GEMM {dtype}", ok=grouped_gemm["runs"], detail=detail))
    for backend, available_here in guest.get("backends", {}).items():
        checks.append(
            Capability(
                name=f"backend {backend}",
                ok=available_here,
                detail="built into torch" if available_here else "not in this torch",
            )
        )
    return checks


def _gpus(guest: dict[str, Any]) -> Capability:
    """Return which GPUs torch sees. ``guest`` is the document that the guest code printed."""
    gpus = guest.get("gpus") or []
    detail = ", ".join(gpus) if gpus else "none visible to torch"
    fix = "" if gpus else "not needed for the sharding verdict; timing full shapes needs a GPU node"
    return Capability(name="GPUs", ok=bool(gpus), detail=detail, fix=fix)


def _gpu_tables() -> Capability:
    """Say which parts of regbot's GPU path have no measurements on a GPU in this repository."""
    detail = f"no table yet of {', '.join(EMPTY_GPU_TABLES)}" if EMPTY_GPU_TABLES else "all tables are there"
    fix = "run benchmarks/first_hour.py on a GPU (docs/operator.md)" if EMPTY_GPU_TABLES else ""
    return Capability(name="measured on a GPU", ok=not EMPTY_GPU_TABLES, detail=detail, fix=fix)


def check_gpu_health() -> Capability:
    """Report the current state of the GPUs, such as a reduced clock. Times from a throttled GPU are not usable."""
    name = "GPU health (nvidia-ml-py)"
    try:
        gpu_states = snapshot_gpus()
    except NoNvmlError as error:
        fix = "" if find_spec("pynvml") else "pip install nvidia-ml-py on GPU nodes"
        return Capability(name=name, ok=False, detail=printable(error.message), fix=fix)
    descriptions = [_describe_gpu(gpu, snapshot) for gpu, snapshot in gpu_states]
    detail = "; ".join([f"driver {this_node().driver}", *descriptions])
    return Capability(name=name, ok=bool(gpu_states), detail=clip_label(detail))


def _describe_gpu(gpu: GpuDevice, snapshot: GpuSnapshot) -> str:
    """Return a text such as ``GPU 0: 345 of 1980 MHz, 34 C``.

    The text also has the number of processes on the GPU, and the first reason for a reduced clock, if there are any."""
    clock = "clock unknown" if snapshot.sm_mhz is None else f"{snapshot.sm_mhz:.0f} of {gpu.sm_max_mhz} MHz"
    temperature = "" if snapshot.temperature_c is None else f", {snapshot.temperature_c} C"
    process_count = len(snapshot.processes)
    noun = "process" if process_count == 1 else "processes"
    processes = f", {process_count} {noun} on it" if process_count else ""
    # An idle GPU reduces its clock too. This does not slow a run down.
    reasons = [reason for reason in snapshot.reasons if reason != "idle"]
    throttling = f", held back by {reasons[0]}" if reasons else ""
    return f"GPU {gpu.index}: {clock}{temperature}{processes}{throttling}"


def check_image(image: str) -> list[Capability]:
    """Check that ``image``, the value of REGBOT_CONTAINER, names the container's image by a digest.

    Return [] if ``image`` is '', because the variable is not set.
    """
    if not image:
        return []
    digest = image_digest(image)
    fix = "" if digest else f"set {CONTAINER} to the image's digest, sha256:...: a tag may be another image tomorrow"
    return [Capability(name="container", ok=digest is not None, detail=digest or clip(printable(image), 200), fix=fix)]


def check_dispatchers(guest: dict[str, Any]) -> list[Capability]:
    """Return which dispatchers can be used. ``guest`` is the document that the guest code printed."""
    has_torch = guest.get("torch") is not None
    detail = "torch.distributed collectives; tested with gloo ranks" if has_torch else "needs torch"
    checks = [Capability(name=f"dispatcher {name}", ok=has_torch, detail=detail) for name in ("alltoall", "allgather")]
    # These are never ok, even if they are usable here: regbot has not yet run a check with them (``NOT_YET_RUN``).
    for name in ("deepep", "hybridep"):
        library = guest.get("dispatchers", {}).get(name) or {"importable": False, "usable": False, "why": "needs torch"}
        checks.append(
            Capability(
                name=f"dispatcher {name}", ok=False, detail=_describe_library(library), fix=_library_fix(library)
            )
        )
    return checks


def _describe_library(library: dict[str, Any]) -> str:
    """Return one line about a dispatcher library: whether it can be imported, and whether it can be used or why not.

    ``buffer`` is the class of the library that would exchange the tokens.
    """
    importable = "no"
    if library["importable"]:
        origin = f" of {', '.join(library['distributions'])}" if library["distributions"] else ""
        importable = f"yes (deep_ep {library['version']}{origin})"
    usable = f"yes ({library['buffer']})" if library["usable"] else f"no ({library['why']})"
    return f"importable: {importable}; usable: {usable}; {NOT_YET_RUN}"


def _library_fix(library: dict[str, Any]) -> str:
    """Return advice about a dispatcher library that can be used, or what to use instead of one that cannot."""
    if library["usable"]:
        return str(library.get("advice", ""))
    return "use alltoall; a check with this dispatcher is INVALID here (docs/frameworks.md)"


def _engines() -> list[Capability]:
    """Return which engines work on this machine, and whether a sandbox confines code here."""
    detail = "supervised processes; all their children are ended with them"
    if platform.system() != "Linux":
        detail = "supervised processes; except on Linux, children that leave their process group are not ended"
    return [Capability(name="engine local", ok=True, detail=detail), _slurm(), check_sandbox(SandboxSettings())]


def _slurm() -> Capability:
    """Check whether a Slurm controller answers. Report the cluster's default partition."""
    name = "engine slurm"
    if shutil.which("srun") is None:
        return Capability(name=name, ok=False, detail="no srun here")
    try:
        partition = find_partition(Slurm(outage_s=CONTROLLER_S), "")  # '' selects the default partition
    except NoSeatError as error:
        return Capability(name=name, ok=False, detail=clip_label(printable(str(error))), fix="see docs/operator.md")
    gpus = f"up to {partition.gpus} GPUs per node" if partition.gpus else "no GPUs"
    return Capability(
        name=name, ok=True, detail=f"partition {partition.name}: {len(partition.addresses)} nodes, {gpus}"
    )


def check_sandbox(sandbox: SandboxSettings) -> Capability:
    """Check whether the sandbox confines code on this machine. For this, run a program in it that tries to escape."""
    if reason := unavailable_reason(sandbox):
        fix = "run untrusted code only on machines without secrets (docs/operator.md)"
        return Capability(name="sandbox", ok=False, detail=clip(printable(reason), 1000), fix=fix)
    try:
        outcomes = try_escapes(sandbox)
    except EngineError as error:
        return Capability(name="sandbox", ok=False, detail=f"{bubblewrap_version()}: {printable(str(error))}"[:1000])
    # Limits that cannot be set on this machine, with the reasons. Include a memory limit, so that it is tested too.
    unlimited = unbounded(sandbox.model_copy(update={"memory_gb": sandbox.memory_gb or 1.0}))
    unlimited_text = "; ".join(f"{controller}: {reason}" for controller, reason in unlimited.items())
    notes = f"; not limited here: {unlimited_text}" if unlimited else ""
    # Where the number of processes cannot be limited, a program that starts many processes has not escaped.
    tolerated = {PROCESSES} if PIDS in unlimited else set()
    escapes = [action for action, succeeded in outcomes.items() if succeeded and action not in tolerated]
    escapes_text = f"could {', '.join(escapes)}, and " if escapes else ""
    stopped = ", ".join(action for action, succeeded in outcomes.items() if not succeeded)
    result = f"{bubblewrap_version()}: a program in it {escapes_text}could not {stopped}"
    fix = "do not run untrusted code here" if escapes else ""
    return Capability(name="sandbox", ok=not escapes, detail=f"{result}{notes}", fix=fix)
