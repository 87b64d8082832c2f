"""Compare this repository with its own baselines: trace every stored shape again. The exit code is 1 after a change.

An intended change is stored with ``regbot baseline refresh`` in the same pull request.
"""

import sys
from pathlib import Path

from regbot.baselines import Store
from regbot.baselines.query import read_workload
from regbot.check.static_trace import TraceOptions, trace_working_tree
from regbot.cli.options import cache_folder
from regbot.judge import judge_ledgers
from regbot.records.config import Config, load_config
from regbot.workloads.task import plan

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Print one line for each shape and mesh. Return the exit code."""
    store, changed = Store(ROOT / "baselines"), 0
    for task in plan(load_config(ROOT / "regbot.toml")):
        sessions = read_workload(store, task.entry, task.variant.name)
        stored = next((session.ledger for session in reversed(sessions) if session.ledger is not None), None)
        trace_options = TraceOptions(f"{task.shape.name}/{task.parallelism.name}", device=task.workload.device)
        run = trace_working_tree(trace_options, ROOT / "baselines", cache_folder())
        if stored is None or run.ledger is None:
            print(f"{task.entry}: {'no ledger is stored' if stored is None else run.reason}")
            changed += 1
            continue
        sharding = judge_ledgers(store.ledger(stored), run.ledger, Config())
        same = not sharding.findings
        changed += not same
        counts = ", ".join(
            f"{kind.replace('_', '-')} {roles.payload + roles.control}" for kind, roles in sharding.head.items()
        )
        print(f"{task.entry}: {'as stored' if same else sharding.status}: {counts}")
        for finding in sharding.findings:
            print(f"  {finding.pattern}: {finding.text}")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
