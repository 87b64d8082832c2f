"""Runs whose steps are profiled, on two real gloo ranks: the ledger, and faults of the profiled steps.

Every run has all its step times, whatever happens after the timed steps.
"""

from collections import Counter
from pathlib import Path

import pytest

from regbot.records.files import read_record
from regbot.records.ledger import Ledger
from regbot.records.run import Run
from support.guest_runs import Shared
from support.layers import GOOD_LAYER, STEPS, compiled_layer, genuine_runs, launch

pytestmark = pytest.mark.slow

FORCED = "the steps of head are profiled: a test"
FORWARD = "    def forward(self, x):\n"


def totals(ledger: Ledger | None) -> dict[tuple[str, int, str, str], tuple[int, int]]:
    """Count and bytes by what a profile of gloo knows: kind, group size, dtype and role."""
    assert ledger is not None
    count: Counter[tuple[str, int, str, str]] = Counter()
    size: Counter[tuple[str, int, str, str]] = Counter()
    for entry in ledger.entries:
        key = (entry.kind, entry.group_size, entry.dtype, entry.role)
        count[key] += entry.count
        size[key] += entry.bytes
    return {key: (count[key], size[key]) for key in count}


def failing(fault: str, rank: int) -> str:
    """The good layer, in which one rank does ``fault`` in its second profiled step."""
    condition = f"self.calls > {STEPS} + 1 and os.environ['RANK'] == '{rank}'"
    return "import os, time\n" + GOOD_LAYER.replace(
        FORWARD,
        f"{FORWARD}        self.calls = getattr(self, 'calls', 0) + 1\n        if {condition}:\n            {fault}\n",
    )


def assert_timed(run: Run) -> None:
    assert (run.outcome, run.reason) == ("ok", "")
    assert run.timing is not None
    assert len(run.timing.step_s) == STEPS


def problem_of(run: Run) -> str:
    """Why the profile of a run, which has its times, gave no ledger."""
    assert_timed(run)
    assert run.ledger is None
    assert run.profile is not None
    return run.profile.problem


@pytest.fixture
def counted(shared: Shared) -> Ledger:
    """The ledger of the good layer, counted by dispatch mode in a timed run."""
    ledger = read_record(shared("genuine runs", genuine_runs) / "run.json", Run).ledger
    assert ledger is not None
    return ledger


@pytest.mark.parametrize(
    ("layer", "forced"),
    [(GOOD_LAYER, FORCED), (compiled_layer("eager"), ""), (compiled_layer("aot_eager"), "")],
    ids=["plain", "eager", "aot_eager"],
)
def test_three_profiled_steps_give_the_counted_ledger(tmp_path: Path, counted: Ledger, layer: str, forced: str) -> None:
    run = launch(tmp_path, layer, profile=forced)
    assert_timed(run)
    ledger = run.ledger
    assert ledger is not None
    assert totals(ledger) == totals(counted)
    assert (ledger.source, ledger.scope, ledger.steps) == ("kineto:dispatcher", "step", 3)
    assert ledger.axes.keys() >= counted.axes.keys()
    assert {entry.axis for entry in ledger.entries} == {"ep|dp"}  # gloo records no group, and both have these ranks
    assert {entry.phase for entry in ledger.entries} == {"backward", "unknown"}
    assert ledger.config == counted.config
    assert ledger.liveness is not None
    assert ledger.liveness.proven
    assert ledger.liveness.sequence_advance == 3 * sum(entry.count for entry in ledger.entries)
    assert run.profile is not None
    assert (run.profile.problem, "torch.compile compiled" in run.profile.reason) == ("", not forced)


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_in_a_profiled_step_keeps_the_times(tmp_path: Path, rank: int) -> None:
    run = launch(tmp_path, failing("raise MemoryError('no room for the profiler')", rank), profile=FORCED)
    problem = problem_of(run)
    assert problem.startswith("the profiled steps failed: ")
    assert ("no room for the profiler" in problem) == (rank == 0)
