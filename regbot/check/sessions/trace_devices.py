"""Device for the traces of each workload: a paper GPU, or CPU programs if one fails on a paper GPU.

This is the only place that chooses: for a check, for a bisection, and for a trace of the working tree.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from regbot.judge.crashes import involves_regbot
from regbot.records.run import Run
from regbot.records.text.clip import MESSAGE_CHARACTERS, clip_ends, clip_message
from regbot.workloads.guest import Checkout, bare_run, interpreter
from regbot.workloads.paper import Libraries, NoPaperGpuError
from regbot.workloads.task import Task

Launch = Callable[[Path | None], Run]
"""Traces one task: on a paper GPU with this library, or as a CPU program if it is None."""


class TraceDevices:
    """Chooses the device of each workload's traces, because ledgers of different devices are never compared.

    If a trace fails on a paper GPU, the workload is *rejected* and later traced as a CPU program, if it has one. An
    error that the checkout itself raises does not reject it: the CPU program would only hide this error.
    """

    def __init__(self, tasks: Iterable[Task], known: Sequence[Run], libraries: Libraries) -> None:
        """``known`` has the runs of an earlier start. ``libraries`` builds the paper GPU."""
        self._libraries = libraries
        self._rejected: dict[str, str] = {}  # workload name -> why the workload cannot be traced on a paper GPU
        self._failed: dict[str, Run] = {}  # workload name -> the run on a paper GPU that rejected it, if one did
        self._on_paper: set[str] = set()  # names of the workloads that are traced on a paper GPU
        self._kept: set[str] = set()  # names of the workloads whose device does not change any more
        on_cpu = {run.workload for run in known if run.ledger is not None and run.ledger.device == "cpu"}
        for task in tasks:
            if not task.wants_paper_gpu:
                continue
            self._on_paper.add(task.workload_name)
            if not task.has_cpu_program:
                self.keep(task)
            if task.entry in on_cpu:
                self._rejected[task.workload_name] = "it was traced as a CPU program before the command was resumed"
        self.drop_rejected()

    def is_on_paper(self, task: Task) -> bool:
        return task.workload_name in self._on_paper

    def keep(self, task: Task) -> None:
        """Trace the workload of ``task`` on its present device from now on, whatever fails there."""
        self._kept.add(task.workload_name)

    def library(self, task: Task, root: Path, private: Path) -> Path | str:
        """Return the paper GPU for the torch of ``task`` in the checkout ``root``, or why there is none: the workload
        is then rejected unless its device is kept. ``private`` is the folder for the library of a torch in the
        checkout.
        """
        if reason := self._rejected.get(task.workload_name):
            return reason
        try:
            return self._libraries.library(interpreter(task, root), root, private).path
        except NoPaperGpuError as error:
            if task.workload_name not in self._kept:
                self._rejected.setdefault(task.workload_name, str(error))
            return str(error)

    def accepts(self, task: Task, run: Run) -> bool:
        """Return whether a run on a paper GPU is the result of ``task``. If not, the workload is rejected."""
        if _is_raised_by_checkout(run):  # final, so no later trace of the workload is on another device
            self.keep(task)
            self._rejected.pop(task.workload_name, None)
        if run.outcome == "ok" or task.workload_name in self._kept:
            return True
        self._rejected.setdefault(task.workload_name, f"{task.entry} at {run.arm.name}: {run.reason}")
        self._failed.setdefault(task.workload_name, run)
        return False

    def trace(
        self, task: Task, checkout: Checkout, private: Path, launch: Launch, *, attempt: int = 1, at_once: bool = False
    ) -> Run | None:
        """Trace ``task`` in ``checkout`` by ``launch``, on the device of its workload. ``private`` is that of
        ``library``.

        Return None if the workload is rejected, so that the caller must trace it again after ``drop_rejected``. With
        ``at_once``, it is launched again at once, and there is always a run.
        """
        if self.is_on_paper(task):
            library = self.library(task, checkout.root, private)
            if isinstance(library, Path):
                run = launch(library)
                if self.accepts(task, run):
                    return run
            elif task.workload_name in self._kept:
                reason = f"its program runs on a paper GPU only: {library}"
                return bare_run(task, checkout.arm, "refused", reason, attempt)
            if not at_once:
                return None
            self.drop_rejected()
        run = launch(None)
        if (rejection := self._rejected.get(task.workload_name)) is None:
            return run
        if run.outcome == "ok":
            warning = clip_message(f"traced as a CPU program, not on a paper GPU: {rejection}")
            return run.model_copy(update={"warnings": [*run.warnings, warning]})
        # A program for GPUs may be right and fail on a CPU, so the first failure decides what this one means.
        first = self._failed.get(task.workload_name, run)
        first_error = clip_ends(rejection, MESSAGE_CHARACTERS // 2)
        second_error = f"then as a CPU program: {run.reason}"
        if first is not run and first.reason == run.reason:
            second_error = "and the same as a CPU program"
        reason = clip_message(f"{first_error} (paper GPU); {second_error}")
        return run.model_copy(update={"reason": reason, "outcome": first.outcome, "crash": first.crash})

    def drop_rejected(self) -> None:
        """Switch rejected workloads to CPU programs, if they have one."""
        self._on_paper -= self._rejected.keys() - self._kept


def _is_raised_by_checkout(run: Run) -> bool:
    crash = run.crash
    return (
        crash is not None and bool(crash.frames) and crash.frames[-1].owner == "checkout" and not involves_regbot(crash)
    )
