"""The stages of the first hour: what each launches. This module needs the standard library only."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpu_hour.launcher import GUEST, PROGRAMS, ROOT, Launcher, Settings, write_json

SHAPES = ("qwen3-30b-a3b", "mixtral-8x7b")
NOISE_SHAPE = "mixtral-8x7b"
"""Shape whose launches show the noise of a pair. It is built faster than the other."""
PLANTED_PCT = 5.0
BLOCKS: tuple[Literal["ABBA", "BAAB"], ...] = ("ABBA", "BAAB")
"""Order of the runs of each session of the stage ``noise``. A is base, B is head."""
STEPS, WARMUP = 30, 10
NOISE_STEPS, NOISE_WARMUP = 20, 5
SMALL = {"layers": 2}
"""Dimensions of launches that share a GPU or write a profile."""
HANG_LIMIT_S = 45.0
GEMM = {"cuda": 8192, "cpu": 256}
NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=index,name,driver_version,memory.total,clocks.sm,clocks.max.sm,power.draw,temperature.gpu",
    "--format=csv",
)


@dataclass(frozen=True)
class Stage:
    """One stage: a title, and the function that makes its launches."""

    title: str
    launch: Callable[[Launcher], None]


def run_stage(name: str, settings: Settings) -> None:
    """Make the launches of the stage ``name``. A launch that fails does not stop the others."""
    STAGES[name].launch(Launcher(name, settings))


def capabilities(launcher: Launcher) -> None:
    """What torch, the GPU and the libraries can do, and the speed of the node's fixed operations."""
    python, folder = launcher.settings.python, launcher.folder
    answer = subprocess.run(
        [python, str(GUEST), "--capabilities"], capture_output=True, text=True, timeout=120, check=False
    )
    (folder / "capabilities.json").write_text(answer.stdout.strip().rpartition("\n")[2], encoding="utf-8")
    (folder / "gpus.csv").write_text(_query_gpus(), encoding="utf-8")
    on_gpu = launcher.settings.device == "cuda"
    probe = folder / "probe"
    (probe / "record").mkdir(parents=True, exist_ok=True)
    sizes = {"gemm": GEMM[launcher.settings.device], "dtype": "bfloat16" if on_gpu else "float32"}
    document = {
        "request": "probe",
        "record": str(probe / "record" / "node.{rank}.json"),
        "ranks": 1,
        "ranks_per_host": 1,
        "gpus": int(on_gpu),
        "sizes": {**sizes, "all_to_all_bytes": 2**22, "copy_bytes": 2**30 if on_gpu else 2**22},
        "seconds": {"gemm": 2.0, "all_to_all": 1.0, "copy": 0.5},
    }
    request = write_json(probe / "request.json", document)
    launcher.run(request, GUEST, "--reference", request)


def _query_gpus() -> str:
    """Return what the driver says about the GPUs, or why it says nothing."""
    try:
        return subprocess.run(NVIDIA_SMI, capture_output=True, text=True, timeout=30, check=False).stdout
    except OSError as error:
        return f"nvidia-smi: {error}\n"


def smoke(launcher: Launcher) -> None:
    """Both shapes on one GPU, timed as ``regbot run`` does it."""
    for shape in SHAPES:
        request = launcher.request(shape, shape, 1, steps=STEPS, warmup=WARMUP, limit_s=170.0)
        launcher.run(request, limit_s=170.0)


def paper(launcher: Launcher) -> None:
    """One step of both shapes on one GPU: operators and peak memory. The report traces the same step on paper."""
    for shape in SHAPES:
        _count_step(launcher, launcher.request(shape, shape, 1))


def gloo(launcher: Launcher) -> None:
    """One step on two ranks that share the GPU: collectives, operators and peak memory."""
    for shape in SHAPES:
        _count_step(launcher, launcher.request(shape, shape, 2, SMALL), ranks=2)


def _count_step(launcher: Launcher, request: Path, ranks: int = 1) -> None:
    launcher.run(request, PROGRAMS / "step.py", request, ranks=ranks, limit_s=150.0)


def faults(launcher: Launcher, ranks: int = 2, share_gpu: bool | None = None) -> None:
    """One rank crashes, and one rank hangs: the reason, the seconds until the end, and the hang report."""
    shared = launcher.settings.device == "cuda" if share_gpu is None else share_gpu
    for fault in ("crash", "hang"):
        request = launcher.request(
            fault,
            NOISE_SHAPE,
            ranks,
            SMALL,
            adapter="module",
            root=str(PROGRAMS),
            source_roots=["."],
            entry=f"faults:build_{fault}",
            steps=6,
            warmup=2,
            limit_s=HANG_LIMIT_S,
            share_gpu=shared,
        )
        launcher.run(request, ranks=ranks, limit_s=HANG_LIMIT_S, env=FLIGHT_RECORDER)


FLIGHT_RECORDER = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
"""Variables with which NCCL's process groups keep their latest collectives, in newer and in older versions of torch."""


def profiles(launcher: Launcher, ranks: int = 1) -> None:
    """Profiles of an eager and of a compiled step: kernels and their times, and one step's trace."""
    for mode in ("eager", "compiled"):
        request = launcher.request(mode, NOISE_SHAPE, ranks, SMALL, share_gpu=False)
        limit_s = 80.0 if mode == "eager" else 220.0  # a node that has compiled nothing yet compiles for minutes
        launcher.run(request, PROGRAMS / "profile_step.py", request, mode, ranks=ranks, limit_s=limit_s)


def noise(launcher: Launcher) -> None:
    """Pairs of launches of the same code, and pairs whose second arm is planted to be 5% slower."""
    _launch_noise(launcher, "warm-0-A", 0.0)
    for session, planted_pct in (("placebo", 0.0), ("planted", PLANTED_PCT)):
        for block, order in enumerate(BLOCKS, 1):
            for slot, arm in enumerate(order):
                _launch_noise(launcher, f"{session}-{block}-{slot}-{arm}", planted_pct if arm == "B" else 0.0)


def _launch_noise(launcher: Launcher, name: str, slowdown_pct: float) -> None:
    request = launcher.request(
        name, NOISE_SHAPE, 1, steps=NOISE_STEPS, warmup=NOISE_WARMUP, slowdown_pct=slowdown_pct, limit_s=90.0
    )
    launcher.run(request, limit_s=90.0)


def overhead(launcher: Launcher) -> None:
    """The same steps with and without the probe, in turns in one process."""
    program = ROOT / "benchmarks" / "probe_overhead.py"
    request = launcher.request(NOISE_SHAPE, NOISE_SHAPE, 1, steps=5)
    launcher.run(request, program, limit_s=200.0, env={"REQUEST": str(request), "BLOCKS": "6"})


def multi(launcher: Launcher) -> None:
    """All GPUs of a node with NCCL: timed steps, one counted step, profiles, and both faults."""
    ranks = launcher.settings.gpus
    for shape in SHAPES:
        request = launcher.request(
            f"timed-{shape}", shape, ranks, steps=STEPS, warmup=WARMUP, limit_s=100.0, share_gpu=False
        )
        launcher.run(request, ranks=ranks, limit_s=100.0)
    for shape in SHAPES:
        _count_step(launcher, launcher.request(shape, shape, ranks, SMALL, share_gpu=False), ranks)
    profiles(launcher, ranks)
    faults(launcher, ranks, share_gpu=False)


STAGES = {
    function.__name__: Stage((function.__doc__ or "").rstrip("."), function)
    for function in (capabilities, smoke, paper, gloo, faults, profiles, noise, overhead, multi)
}
ONE_GPU = [name for name in STAGES if name != "multi"]
"""Stages that need one GPU, in their order."""
