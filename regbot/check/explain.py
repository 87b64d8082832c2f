"""``regbot explain``: where the step of one workload spends its time and memory, or two steps side by side."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from regbot.check.flow import check
from regbot.check.plan import CheckOptions
from regbot.check.static_trace import TraceOptions, read_ledger, trace_working_tree
from regbot.judge import judge_ledgers
from regbot.judge.program import judge_program
from regbot.ledgers.explanation import explain
from regbot.records.config import Config
from regbot.records.explanation import ExplainedChange, ExplainedPair, Explanation
from regbot.records.ledger import Ledger
from regbot.records.run import Run
from regbot.records.text.clip import clip_message
from regbot.records.text.progress import Watcher
from regbot.records.verdict import Finding


def explain_workload(options: TraceOptions, cache: Path, watch: Watcher) -> tuple[Run | None, Explanation | None]:
    """Explain the workload of ``options`` in the working tree, or the ledger in the file of that name. Return the trace
    too, and None in place of its explanation if there is none.
    """
    file = Path(options.workload)
    if file.is_file():
        return None, explain(read_ledger(file), Config().wire)
    run = trace_working_tree(options, Path.cwd(), cache, watch)
    return run, explain(run.ledger, Config().wire) if run.ledger is not None else None


def explain_change(a: str, b: str, workloads: list[str], cache: Path, watch: Watcher) -> ExplainedChange:
    """Explain two ledger files, or two revisions of the repository in the working directory."""
    if Path(a).is_file() and Path(b).is_file():
        base, head = read_ledger(Path(a)), read_ledger(Path(b))
        program = judge_program(base, head, Config())
        findings = [*judge_ledgers(base, head, Config()).findings, *(program.findings if program else ())]
        return ExplainedChange(pairs=[_explain_pair(base, head, findings)])
    with tempfile.TemporaryDirectory() as folder:
        options = CheckOptions(
            Path.cwd(), cache, Path(folder), base=a, head=b, workloads=workloads, timing=False, exact=True, join=False
        )
        result = check(options, watch)
    session, pairs, untraced = result.session, [], []
    for workload in result.verdict.workloads:
        runs = [run for run in session.runs if run.workload == workload.name]
        ledgers = {run.arm.name: run.ledger for run in runs if run.ledger is not None}
        if len(ledgers) == 2:
            pairs.append(_explain_pair(ledgers["base"], ledgers["head"], workload.findings))
        untraced += [f"{run.workload} in {run.arm.name}: {run.reason}" for run in runs if run.ledger is None]
    return ExplainedChange(pairs=pairs, untraced=[clip_message(text) for text in untraced])


def _explain_pair(base: Ledger, head: Ledger, findings: Sequence[Finding]) -> ExplainedPair:
    return ExplainedPair(
        base=explain(base, Config().wire),
        head=explain(head, Config().wire),
        changes=[clip_message(f"{finding.pattern}: {finding.text}") for finding in findings],
    )
