"""Device for the traces of each workload: a paper GPU, or CPU programs if one fails on a paper GPU.

This is the only place that chooses: for a check, for a bisection, and for a trace of the working tree.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from regbot.records.run import Run
from regbot.records.text.clip import clip_message
from regbot.workloads.guest import Checkout, bare_run, interpreter
from regbot.workloads.paper import Libraries, NoPaperGpuError
from regbot.workloads.task import Task

Launch = Callable[[Path | None], Run]
"""Traces one task: on a paper GPU with this library, or as a CPU program if it is None."""


class TraceDevices:
    """Chooses one device for all traces of a workload, because ledgers of different devices are never compared.

    If a trace fails on a paper GPU, the workload is *rejected* and later traced as a CPU program, if it has one.
    """

    def __init__(self, tasks: Iterable[Task], known: Sequence[Run], libraries: Libraries) -> None:
        """``known`` has the runs of an earlier start. ``libraries`` builds the paper GPU."""
        self._libraries = libraries
        self._rejected: dict[str, str] = {}  # workload name -> why the workload cannot be traced on a paper GPU
        self._on_paper: set[str] = set()  # names of the workloads that are traced on a paper GPU
        self._kept: set[str] = set()  # names of the workloads whose device does not change any more
        traced_devices = {run.workload: run.ledger.device for run in known if run.ledger is not None}
        for task in tasks:
            if not task.wants_paper_gpu:
                continue
            self._on_paper.add(task.workload_name)
            if not task.has_cpu_program:
                self.keep(task)
            # A paper GPU is a device "cuda". A workload that has not been traced yet counts as traced on it.
            if traced_devices.get(task.entry, "cuda") != "cuda":
                self._rejected.setdefault(
                    task.workload_name, "it was traced as a CPU program before the command was resumed"
                )
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

    def trace(
        self, task: Task, checkout: Checkout, private: Path, launch: Launch, *, attempt: int = 1, at_once: bool = False
    ) -> Run | None:
        """Trace ``task`` in ``checkout`` by ``launch``, on the device of its workload. ``private`` is that of
        ``library``.

        Return None if the workload was rejected here, so that the caller must trace all arms again. With ``at_once``,
        only this trace is launched again, and there is always a run.
        """
        if self.is_on_paper(task):
            library = self.library(task, checkout.root, private)
            is_kept = task.workload_name in self._kept
            if isinstance(library, Path):
                run = launch(library)
                if run.outcome == "ok" or is_kept:
                    return run
                self._rejected.setdefault(task.workload_name, f"{task.entry} at {checkout.arm.name}: {run.reason}")
            elif is_kept:
                reason = f"its program runs on a paper GPU only: {library}"
                return bare_run(task, checkout.arm, "refused", reason, attempt)
            if not at_once:
                return None
            self.drop_rejected()
        run = launch(None)
        if rejection := self._rejected.get(task.workload_name):
            warning = clip_message(f"traced as a CPU program, not on a paper GPU: {rejection}")
            run = run.model_copy(update={"warnings": [*run.warnings, warning]})
        return run

    def drop_rejected(self) -> set[str]:
        """Switch rejected workloads to CPU programs, if they have one. Return the names of these workloads."""
        dropped_workloads = self._on_paper & self._rejected.keys() - self._kept
        self._on_paper -= dropped_workloads
        return dropped_workloads
