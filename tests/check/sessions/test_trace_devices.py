"""What a trace on a paper GPU that fails leads to."""

from pathlib import Path

import pytest

from regbot.check.sessions.trace_devices import TraceDevices
from regbot.records.config import Workload
from regbot.records.crash import Crash, CrashFrame, Owner
from regbot.records.run import Run
from regbot.workloads.guest import Checkout
from regbot.workloads.paper.build import PaperLibrary
from regbot.workloads.shapes import load_shape
from regbot.workloads.task import single_task
from support.layers import ARM
from support.ledger_builder import smoke_ledger, smoke_run

TASK = single_task("moe", Workload(adapter="smoke", shapes=["mixtral-8x7b"]), load_shape("mixtral-8x7b"), "ep")
OK = smoke_run(ARM, smoke_ledger(), "ok")
REFUSED = OK.model_copy(update={"outcome": "refused", "reason": "the values are unknown", "ledger": None})


class _Libraries:
    def library(self, python: str, root: Path, private: Path) -> PaperLibrary:
        return PaperLibrary(Path("/paper.so"))


def crashed(reason: str, *owners: Owner) -> Run:
    frames = [CrashFrame(file="moe.py", line=1, function="forward", owner=owner) for owner in owners]
    return REFUSED.model_copy(update={"outcome": "crashed", "reason": reason, "crash": Crash(frames=frames)})


NO_KERNELS = crashed("ImportError: build my_kernels first", "checkout")
REGBOT_CALLED = crashed("TypeError: no such argument", "checkout", "regbot", "checkout")
IN_TORCH = crashed("RuntimeError: no such backend", "checkout", "torch")
BAD_CPU = crashed("ValueError: no path for CPUs", "checkout")


@pytest.mark.parametrize(
    ("on_paper", "on_cpu", "launches", "told"),
    [
        (NO_KERNELS, OK, 1, ["ImportError: build my_kernels first"]),
        (REFUSED, BAD_CPU, 2, ["the values are unknown (paper GPU)", "as a CPU program: ValueError: no path for CPUs"]),
        (IN_TORCH, BAD_CPU, 2, ["no such backend (paper GPU)", "as a CPU program: ValueError: no path for CPUs"]),
        (REGBOT_CALLED, OK, 2, ["traced as a CPU program, not on a paper GPU", "TypeError: no such argument"]),
    ],
)
def test_every_error_is_told_in_order_and_an_error_of_the_checkout_is_final(
    tmp_path: Path, on_paper: Run, on_cpu: Run, launches: int, told: list[str]
) -> None:
    devices = TraceDevices([TASK], [], _Libraries())  # type: ignore[arg-type]
    libraries: list[Path | None] = []

    def launch(library: Path | None) -> Run:
        libraries.append(library)
        return on_cpu if library is None else on_paper

    run = devices.trace(TASK, Checkout(ARM, tmp_path), tmp_path, launch, at_once=True)
    assert run is not None
    assert len(libraries) == launches
    assert run.outcome == ("ok" if run.ledger is not None else on_paper.outcome)
    text = "\n".join([run.reason, *run.warnings])
    places = [text.index(part) for part in told]
    assert places == sorted(places)


@pytest.mark.parametrize("runs", [(NO_KERNELS, REFUSED), (REFUSED, NO_KERNELS)])
def test_after_an_error_of_the_checkout_no_trace_of_the_workload_is_on_another_device(runs: tuple[Run, Run]) -> None:
    devices = TraceDevices([TASK], [], _Libraries())  # type: ignore[arg-type]
    for run in runs:
        devices.accepts(TASK, run)
    devices.drop_rejected()
    assert devices.is_on_paper(TASK)
