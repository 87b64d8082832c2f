"""Timed runs of code that misbehaves: each has its outcome and a reason, and none is believed.

Every fault is planted in a real layer on two real ranks. What a forger would write into the records is planted in a
guest that leaves the records of a real run once more, spoilt: that costs a second, and starting torch costs ten.
"""

import contextlib
from pathlib import Path

import pytest

from regbot.records.files import read_record
from regbot.records.run import Run
from regbot.workloads.shapes.model_code import model_hash
from support.guest_runs import Shared
from support.layers import GOOD_LAYER, STEPS, genuine_runs, launch, replay

FORWARD = "    def forward(self, x):\n"


def run_of(tmp_path: Path, layer: str = GOOD_LAYER, timeout_min: float = 2.0, python: str = "") -> Run:
    """One timed run of ``layer`` on two ranks. Nothing of it may be left when it has ended."""
    found = launch(tmp_path, layer, timeout_min, python)
    assert naming(tmp_path / "scratch") == [], "a process of the guest is left"
    return found


def spoilt(fault: str, step: int = 3, rank: int | None = None) -> str:
    """The good layer, which does ``fault`` when step ``step`` begins: on one rank, or on all."""
    there = "" if rank is None else f" and os.environ['RANK'] == '{rank}'"
    return "import os, time\n" + GOOD_LAYER.replace(
        FORWARD,
        f"{FORWARD}        self.calls = getattr(self, 'calls', 0) + 1\n"
        f"        if self.calls == {step}{there}:\n            {fault}\n",
    )


def naming(folder: Path) -> list[str]:
    """Command lines of living processes that name ``folder``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in words:
                found.append(words)
    return found


@pytest.fixture
def genuine(shared: Shared) -> Path:
    """See ``genuine_runs``."""
    return shared("genuine runs", genuine_runs)


# ---- the good run


def test_a_good_layer_is_timed_and_then_counted(genuine: Path) -> None:
    run = read_record(genuine / "run.json", Run)
    assert (run.outcome, run.reason) == ("ok", "")
    assert run.timing is not None
    assert (run.timing.requested_steps, run.timing.cut, len(run.timing.step_s), len(run.timing.steady_s)) == (
        6,
        1,
        6,
        5,
    )
    assert run.timing.step_s == [max(pair) for pair in zip(*(r.step_s for r in run.timing.ranks.values()), strict=True)]
    assert run.timing.harness_s == pytest.approx(sum(run.timing.step_s), abs=0.25)
    assert all(0 < sum(rank.wait_s) < sum(rank.step_s) for rank in run.timing.ranks.values())
    assert run.ledger is not None
    assert sum(entry.count for entry in run.ledger.entries if entry.kind == "all_to_all") == 2 * 4
    assert len([loss for loss in run.loss if loss is not None]) == STEPS
    assert run.code is not None
    assert run.code.foreign == {}
    assert run.environment is not None
    assert run.environment.model == model_hash("module")


# ---- runs that do not end well


@pytest.mark.slow
def test_a_crash_of_one_rank_is_reported_from_that_rank_and_not_from_its_peers(tmp_path: Path) -> None:
    run = run_of(tmp_path, spoilt("raise RuntimeError('no such kernel')", rank=1))
    assert run.outcome == "crashed"
    assert "RuntimeError: no such kernel (userpkg/moe.py:" in run.reason
    assert "in forward" in run.reason
    assert run.timing is None


@pytest.mark.slow
def test_a_real_run_whose_layer_loads_a_paper_gpu_cannot_be_measured(tmp_path: Path, paper_library: Path) -> None:
    run = run_of(tmp_path, f"import ctypes\nctypes.CDLL({str(paper_library)!r})\n{GOOD_LAYER}")
    assert run.outcome == "refused", run
    assert f"its process has loaded a paper GPU ({paper_library})" in run.reason


# ---- steps that are none


@pytest.mark.slow
def test_a_loss_that_is_not_a_number_is_no_training(tmp_path: Path) -> None:
    run = run_of(tmp_path, spoilt("return x * float('nan')", step=4))
    assert run.outcome == "diverged"
    assert "its loss is not finite in 3 of 6 steps, first in step 4" in run.reason
    assert run.loss[3:] == [None, None, None]


@pytest.mark.slow
def test_a_step_that_the_optimizer_skips_is_no_training(tmp_path: Path) -> None:
    skip = (
        "import torch\n"
        "_step, _calls = torch.optim.AdamW.step, [0]\n"
        "def _skipping(self, *args, **kwargs):\n"
        "    _calls[0] += 1\n"
        "    return None if _calls[0] % 3 == 0 else _step(self, *args, **kwargs)\n"
        "torch.optim.AdamW.step = _skipping\n"
    )
    run = run_of(tmp_path, skip + GOOD_LAYER)
    assert run.outcome == "diverged"
    assert "the optimizer skipped 2 of 6 steps" in run.reason


# ---- lies about time


# ---- records that are forged

FORGERIES = [
    ("records[1]['steps']['step_s'][2] = 0.0", "bad_record", "rank 1 has a step that took no time"),
    ("records[0]['steps']['step_s'][2] = float('nan')", "bad_record", "NaN is not a number"),
    ("records[0]['loss'][2] = None", "diverged", "its loss is not finite in 1 of 6 steps, first in step 3"),
    ("[shorten(each, 4) for each in records]; seconds = total()", "short", "without an error after 4 of 6 steps"),
    ("shorten(records[0], 1); shorten(records[1], 1); seconds += 1.0", "bad_record", "by the system's clock they took"),
    ("longer(records[0]); longer(records[1])", "bad_record", "the ranks claim 7 steps, but 6 were requested"),
    ("shorten(records[1], 4)", "bad_record", "the ranks' step times are inconsistent"),
    ("scale(records[0], 10); scale(records[1], 10)", "bad_record", "by the system's clock they took"),
    ("scale(records[1], 10)", "bad_record", "rank 1 claims"),
    ("del records[0]['steps'], records[1]['steps']", "bad_record", "the ranks' step times are inconsistent"),
    ("marks = []", "bad_record", "a mark of the first or the last step is missing"),
    ("records.pop(1)", "no_record", "ended rank 1 with exit code 0"),
    ("records[1]['rank'] = 0", "bad_record", "claims to be of rank 0"),
    ("records[0]['request'] = 'old'", "bad_record", "answers another request"),
    ("records[0]['skipped_steps'] = 2", "diverged", "the optimizer skipped 2 of 6 steps"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("forgery", "outcome", "reason"), FORGERIES, ids=[forgery for forgery, _, _ in FORGERIES])
def test_a_forged_record_is_not_used(tmp_path: Path, genuine: Path, forgery: str, outcome: str, reason: str) -> None:
    run = run_of(tmp_path, python=str(replay(tmp_path / "python", genuine, forgery)))
    assert (run.outcome, reason in run.reason) == (outcome, True), run.reason
    assert run.ledger is None


def test_the_records_of_a_real_run_left_once_more_are_as_good_as_the_first_time(tmp_path: Path, genuine: Path) -> None:
    """Or the forgeries above would prove nothing."""
    run = run_of(tmp_path, python=str(replay(tmp_path / "python", genuine)))
    first = read_record(genuine / "run.json", Run)
    assert (run.outcome, run.reason, run.loss, run.ledger) == ("ok", "", first.loss, first.ledger)
    assert run.timing is not None
    assert run.timing.harness_s == pytest.approx(sum(run.timing.step_s), abs=0.25)
