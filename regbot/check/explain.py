"""``regbot explain``: where the step of one workload spends its time and memory, or two steps side by side."""

import tempfile
from pathlib import Path

from regbot.check.flow import check
from regbot.check.plan import CheckOptions
from regbot.check.static_trace import TraceOptions, read_ledger, trace_working_tree
from regbot.judge import judge_ledgers
from regbot.ledgers.explanation import explain
from regbot.records.config import Config
from regbot.records.explanation import ExplainedChange, ExplainedPair, Explanation
from regbot.records.ledger import Ledger
from regbot.records.run import Run
from regbot.records.text.clip import clip_message
from regbot.records.text.progress import Watcher


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
        return ExplainedChange(pairs=[_explain_pair(read_ledger(Path(a)), read_ledger(Path(b)))])
    with tempfile.TemporaryDirectory() as folder:
        options = CheckOptions(
            Path.cwd(), cache, Path(folder), base=a, head=b, workloads=workloads, timing=False, exact=True, join=False
        )
        session = check(options, watch).session
    ledgers: dict[str, dict[str, Ledger]] = {}
    untraced = []
    for run in session.runs:
        if run.ledger is not None:
            ledgers.setdefault(run.workload, {})[run.arm.name] = run.ledger
        else:
            untraced.append(clip_message(f"{run.workload} in {run.arm.name}: {run.reason}"))
    pairs = [_explain_pair(arms["base"], arms["head"]) for arms in ledgers.values() if len(arms) == 2]
    return ExplainedChange(pairs=pairs, untraced=untraced)


def _explain_pair(base: Ledger, head: Ledger) -> ExplainedPair:
    findings = judge_ledgers(base, head, Config()).findings
    return ExplainedPair(
        base=explain(base, Config().wire),
        head=explain(head, Config().wire),
        changes=[clip_message(f"{finding.pattern}: {finding.text}") for finding in findings],
    )
