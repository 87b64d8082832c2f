"""Device for the traces of each workload: a paper GPU, or CPU programs if one fails on a paper GPU."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from regbot.records.run import Run
from regbot.records.text.clip import clip_message
from regbot.workloads import Task, interpreter
from regbot.workloads.paper import Libraries, NoPaperGpuError


class TraceDevices:
    """Chooses one device for both arms of a workload, or for all points of a bisection.

    A workload begins on a paper GPU if its configuration wants that. If an arm fails there, the workload is *rejected*
    and later traced as a CPU program, if it has one.
    """

    def __init__(self, tasks: Iterable[Task], known: Sequence[Run], libraries: Libraries) -> None:
        """``known`` has the runs of an earlier start. ``libraries`` builds the paper GPU."""
        self._libraries = libraries
        self._rejected: dict[str, str] = {}  # workload name -> why the workload cannot be traced on a paper GPU
        self._on_paper: set[str] = set()  # names of the workloads that are traced on a paper GPU
        self._without_cpu_program: set[str] = set()  # names of the workloads that can only run on a paper GPU
        traced_devices = {run.workload: run.ledger.device for run in known if run.ledger is not None}
        for task in tasks:
            if not task.wants_paper_gpu:
                continue
            self._on_paper.add(task.workload_name)
            if not task.has_cpu_program:
                self._without_cpu_program.add(task.workload_name)
            # A paper GPU is a device "cuda". A workload that has not been traced yet counts as traced on it.
            if traced_devices.get(task.entry, "cuda") != "cuda":
                self.reject(task, "it was traced as a CPU program before the command was resumed")
        self.drop_rejected()

    def is_on_paper(self, task: Task) -> bool:
        """Return whether the workload of ``task`` is traced on a paper GPU."""
        return task.workload_name in self._on_paper

    def library(self, task: Task, root: Path, private: Path) -> Path | None:
        """Return the library that implements the paper GPU, for the torch of ``task`` in the checkout ``root``. Return
        None if the workload is rejected, which also happens here if the library cannot be built.

        ``private`` is the folder for the library of a torch in the checkout.
        """
        if task.workload_name in self._rejected:
            return None
        try:
            return self._libraries.library(interpreter(task, root), root, private).path
        except NoPaperGpuError as error:
            self.reject(task, str(error))
            return None

    def reject(self, task: Task, reason: str) -> None:
        """Mark the workload of ``task`` as not traceable on a paper GPU. Only the first reason is recorded."""
        self._rejected.setdefault(task.workload_name, reason)

    def rejection(self, task: Task) -> str:
        """Return why the workload of ``task`` cannot be traced on a paper GPU; '' if it can be."""
        return self._rejected.get(task.workload_name, "")

    def drop_rejected(self) -> set[str]:
        """Switch rejected workloads to CPU programs from now on, if they have one. Return the names of the workloads
        that were switched.
        """
        rejected_with_cpu_program = self._rejected.keys() - self._without_cpu_program
        dropped_workloads = self._on_paper & rejected_with_cpu_program
        self._on_paper -= dropped_workloads
        return dropped_workloads

    def with_device_warning(self, run: Run, task: Task) -> Run:
        """Return ``run``, with a warning if its workload was rejected on a paper GPU and traced as a CPU program."""
        reason = self._rejected.get(task.workload_name)
        if reason is None:
            return run
        warning = f"traced as a CPU program, not on a paper GPU: {reason}"
        return run.model_copy(update={"warnings": [*run.warnings, clip_message(warning)]})
