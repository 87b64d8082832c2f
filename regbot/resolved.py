"""``regbot preflight``: a resolved configuration, of a file or of a workload as its files stand, against the rules."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from regbot.config import ConfigError
from regbot.node import this_node
from regbot.preflight import Advice, Conflict, Dump, advice, conflicts, facts_of, read_dump, unknown_hardware
from regbot.progress import Watcher
from regbot.records.preflight import AdviceFound, ConflictFound, Preflight
from regbot.text import printable
from regbot.tracing import Choice, trace_here


@dataclass(frozen=True)
class Examined:
    """What applies to one configuration."""

    workload: str
    conflicts: Sequence[Conflict]
    advice: Sequence[Advice]
    unknown: str = ""
    """What rules could not be asked about, in words."""

    @property
    def invalid(self) -> bool:
        """Whether a run would not measure what was asked for."""
        return any(conflict.rule.severity == "invalid" for conflict in self.conflicts)

    def record(self) -> Preflight:
        """The same as a record."""
        return Preflight(
            workload=printable(self.workload)[:500],
            conflicts=[
                ConflictFound(
                    rule=each.rule.id,
                    severity=each.rule.severity,
                    effect=each.rule.effect,
                    what=each.rule.what,
                    here=each.values,
                    fix=each.rule.fix,
                    source=each.rule.source,
                )
                for each in self.conflicts
            ],
            advice=[
                AdviceFound(
                    advice=each.entry.id,
                    text=each.entry.text,
                    source=each.entry.source,
                    command=printable(each.command)[:4000],
                )
                for each in self.advice
            ],
        )


def examine_configuration(what: str, folder: Path, cache: Path, watch: Watcher = lambda _: None) -> Examined:
    """The rules and the advice that apply to a file, or to a workload of the ``regbot.toml`` in ``folder``.

    GPUs and variables of this machine are taken for those of the run where the file does not tell its own. Raises
    ConfigError, RecordError, ShapeError, EngineError.
    """
    dump = read_dump(folder / what) if (folder / what).is_file() else _traced(what, folder, cache, watch)
    facts, gpus = dump.facts, this_node().gpus
    if facts.gpu is None and gpus:
        facts = replace(facts, gpu=gpus[0], environment=dict(os.environ))
    return Examined(
        dump.workload or what,
        conflicts(dump.config, facts),
        advice(facts, dump.config, dump.workload or "WORKLOAD"),
        unknown_hardware(facts),
    )


def _traced(workload: str, folder: Path, cache: Path, watch: Watcher) -> Dump:
    run = trace_here(Choice(workload), folder, cache, watch)
    if run.ledger is None:
        raise ConfigError(f"{workload}: its configuration could not be resolved: {run.reason}")
    return Dump(run.ledger.config, facts_of(run), run.workload)
