"""Which crashes of head are the pull request's fault."""

from collections.abc import Sequence

import pytest

from regbot.judge import judge
from regbot.records.config import Config
from regbot.records.crash import Crash, CrashFrame, Owner
from regbot.records.verdict import Validity
from support.judge_cases import A2A, BASE, HEAD
from support.ledger_builder import smoke_run, smoke_session


def frame(owner: Owner, file: str = "pkg/moe.py") -> CrashFrame:
    return CrashFrame(file=file, line=7, function="forward", owner=owner)


OWN, OURS = frame("checkout"), frame("regbot", "regbot_guest/paper/cuda.py")
TORCH = frame("torch", "torch/nn/functional.py")
CHANGED = ["pkg/moe.py"]
UNSUPPORTED = "regbot does not support this revision"
PLACE = f"{UNSUPPORTED}: the error passed through code of regbot, regbot_guest/paper/cuda.py:7 in forward"
CALLED = "called from pkg/moe.py:7 in forward"
ADVICE = (
    "A trace has no GPU, so it cannot tell whether head passed a wrong value; run head on real ranks to see whether it "
    "crashes there too"
)


def judge_crashes(*crashes: Crash, changed_files: list[str] | None) -> Validity:
    """Return the validity where head crashed in this way in each attempt, and base ran."""
    attempts = [
        smoke_run(HEAD, None, "crashed", attempt=attempt, reason="boom", crash=crash)
        for attempt, crash in enumerate(crashes, 1)
    ]
    session = smoke_session(smoke_run(BASE, A2A), *attempts)
    header = session.header.model_copy(update={"changed_files": changed_files})
    (workload,) = judge(session.model_copy(update={"header": header}), Config()).workloads
    return workload.validity


@pytest.mark.parametrize(
    ("frames", "keys", "changed_files", "doubt"),
    [
        ([OWN], [], CHANGED, ""),
        ([frame("checkout", "train.py"), OWN], [], CHANGED, ""),
        ([OWN, OURS], [], CHANGED, f"{PLACE}, {CALLED}"),
        ([OWN, OURS, TORCH], [], CHANGED, f"{PLACE}, {CALLED}"),
        ([OWN, OURS, OWN], [], CHANGED, f"{PLACE}, {CALLED}"),
        ([OURS], [], CHANGED, f"{PLACE}, before any code of the checkout"),
        ([OWN], ["training.seed"], CHANGED, f"{UNSUPPORTED}: the error names training.seed, which regbot sets"),
        ([OWN, TORCH], [], CHANGED, f"the error was raised in torch/nn/functional.py:7 in forward, {CALLED}. {ADVICE}"),
        ([OWN], [], ["README.md"], f"head does not change pkg/moe.py, whose code raised the error. {ADVICE}"),
        ([OWN], [], [], f"head does not change pkg/moe.py, whose code raised the error. {ADVICE}"),
        ([OWN], [], None, "the list of files that differ between base and head is not known"),
        ([], [], CHANGED, "the process left no traceback, so nothing shows whose fault this is"),
    ],
)
def test_a_crash_fails_only_if_a_changed_file_of_the_checkout_raised_it(
    frames: Sequence[CrashFrame], keys: Sequence[str], changed_files: list[str] | None, doubt: str
) -> None:
    crash = Crash(frames=list(frames), keys=list(keys))
    validity = judge_crashes(crash, crash, changed_files=changed_files)
    assert validity.status == ("INVALID" if doubt else "FAIL")
    assert validity.reasons[0].startswith(doubt)
    assert (". Base ran, but head crashed: boom" in validity.reasons[0]) == bool(doubt)


def test_one_doubtful_attempt_of_two_is_invalid() -> None:
    crashes = [Crash(frames=frames) for frames in ([OWN, OURS], [OWN])]
    assert judge_crashes(*crashes, changed_files=CHANGED).status == "INVALID"
