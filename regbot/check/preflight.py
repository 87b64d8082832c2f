"""``regbot preflight``: check a resolved configuration, from a file or from a trace, against the rules."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from regbot.check.static_trace import TraceOptions, trace_working_tree
from regbot.engines.health.machine import this_node
from regbot.judge.preflight.facts import Dump, facts_of_run, read_dump, unknown_hardware
from regbot.judge.preflight.rules import find_advice, find_conflicts
from regbot.records.config import ConfigError
from regbot.records.preflight import Preflight, PreflightAdvice, PreflightConflict
from regbot.records.text.clip import clip_label
from regbot.records.text.printable import printable
from regbot.records.text.progress import Watcher


@dataclass(frozen=True)
class PreflightResult:
    """Conflicts and advice that apply to one configuration."""

    workload: str
    """Name of the workload; the given file or workload if the configuration names none."""
    conflicts: Sequence[PreflightConflict]
    advice: Sequence[PreflightAdvice]
    unknown: str = ""
    """Sentence that says why rules about hardware did not apply; '' if the GPU is known."""

    @property
    def invalid(self) -> bool:
        """Whether a run with this configuration would not measure the requested program."""
        return any(conflict.severity == "invalid" for conflict in self.conflicts)

    def record(self) -> Preflight:
        workload = clip_label(printable(self.workload))
        return Preflight(workload=workload, conflicts=[*self.conflicts], advice=[*self.advice])


def examine_configuration(target: str, folder: Path, cache: Path, watch: Watcher = lambda _: None) -> PreflightResult:
    """Return the conflicts and advice for ``target``: a file, or a workload of the ``regbot.toml`` in ``folder``.

    If it names no GPU, that of this machine is used. Raises ConfigError, RecordError, ShapeError, EngineError.
    """
    file = folder / target
    # A dump is a resolved configuration with facts about the run, such as its GPU and environment variables.
    if file.is_file():
        dump = read_dump(file)
    else:
        run = trace_working_tree(TraceOptions(target), folder, cache, watch)
        if run.ledger is None:
            raise ConfigError(f"{target}: its configuration could not be resolved: {run.reason}")
        dump = Dump(run.ledger.config, facts_of_run(run), run.workload)
    facts, machine_gpus = dump.facts, this_node().gpus
    if facts.gpu is None and machine_gpus:
        facts = replace(facts, gpu=machine_gpus[0])
    # The advice has commands. WORKLOAD stands in them for a workload that the file does not name.
    return PreflightResult(
        dump.workload or target,
        find_conflicts(dump.config, facts),
        find_advice(facts, dump.config, dump.workload or "WORKLOAD"),
        unknown_hardware(facts),
    )
