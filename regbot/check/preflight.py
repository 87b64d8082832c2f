"""``regbot preflight``: check a resolved configuration, from a file or from a trace, against the rules."""

from dataclasses import replace
from pathlib import Path

from regbot.check.static_trace import TraceOptions, trace_working_tree
from regbot.engines.health.machine import this_node
from regbot.judge.preflight.facts import Dump, facts_of_run, read_dump, unknown_hardware
from regbot.judge.preflight.rules import find_advice, find_conflicts
from regbot.records.config import ConfigError
from regbot.records.preflight import Preflight
from regbot.records.text.clip import clip_label, clip_message
from regbot.records.text.printable import printable
from regbot.records.text.progress import Watcher


def examine_configuration(target: str, folder: Path, cache: Path, watch: Watcher = lambda _: None) -> Preflight:
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
    return Preflight(
        workload=clip_label(printable(dump.workload or target)),
        conflicts=find_conflicts(dump.config, facts),
        advice=find_advice(facts, dump.config, dump.workload or "WORKLOAD"),
        unknown=clip_message(unknown_hardware(facts)),
    )
