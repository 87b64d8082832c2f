"""Which crashes of head are the pull request's fault."""

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

ADVICE = (
    "A trace has no GPU, so it cannot tell whether head passed a wrong value; run head on real ranks to see whether it "
    "crashes there too"
)


def judge_crash(
    *frames: CrashFrame, keys: tuple[str, ...] = (), changed_files: tuple[str, ...] | None = ("pkg/moe.py",)
) -> Validity:
    """Return the validity where head crashed with these frames in both attempts, and base ran."""
    crash = Crash(frames=list(frames), keys=list(keys))
    attempts = [smoke_run(HEAD, None, "crashed", attempt=attempt, reason="boom", crash=crash) for attempt in (1, 2)]
    session = smoke_session(smoke_run(BASE, A2A), *attempts)
    files = None if changed_files is None else list(changed_files)
    header = session.header.model_copy(update={"changed_files": files})
    (workload,) = judge(session.model_copy(update={"header": header}), Config()).workloads
    return workload.validity


def doubt(*frames: CrashFrame, **changes: tuple[str, ...] | None) -> str:
    """Return why the crash is INVALID, without what follows about the run."""
    validity = judge_crash(*frames, **changes)  # type: ignore[arg-type]
    assert validity.status == "INVALID"
    reason, separator, _ = validity.reasons[0].partition(". Base ran, but head crashed: boom")
    assert separator
    return reason


def test_an_error_that_a_changed_file_raises_fails() -> None:
    assert judge_crash(OWN).status == "FAIL"
    assert judge_crash(frame("checkout", "train.py"), OWN).status == "FAIL"


def test_an_error_that_passed_through_code_of_regbot_is_invalid_and_names_it() -> None:
    place = (
        "regbot does not support this revision: the error passed through code of regbot, regbot_guest/paper/cuda.py:7"
    )
    for frames in [(OWN, OURS), (OWN, OURS, TORCH), (OWN, OURS, OWN)]:
        assert doubt(*frames) == f"{place} in forward, called from pkg/moe.py:7 in forward"
    assert doubt(OURS) == f"{place} in forward, before any code of the checkout"


def test_an_error_that_names_a_key_of_regbot_is_invalid_and_names_it() -> None:
    assert doubt(OWN, keys=("training.seed",)) == (
        "regbot does not support this revision: the error names training.seed, which regbot sets"
    )


def test_an_error_that_was_raised_outside_of_the_checkout_is_invalid() -> None:
    assert doubt(OWN, TORCH) == (
        f"the error was raised in torch/nn/functional.py:7 in forward, called from pkg/moe.py:7 in forward. {ADVICE}"
    )


def test_an_error_that_an_unchanged_file_raises_is_invalid() -> None:
    reason = f"head does not change pkg/moe.py, whose code raised the error. {ADVICE}"
    assert doubt(OWN, changed_files=("README.md",)) == reason
    assert doubt(OWN, changed_files=()) == reason


def test_without_a_list_of_changed_files_a_crash_is_invalid() -> None:
    assert doubt(OWN, changed_files=None).startswith("the list of files that differ between base and head is not known")


def test_a_process_without_a_traceback_is_invalid() -> None:
    assert doubt() == "the process left no traceback, so nothing shows whose fault this is"


def test_one_doubtful_attempt_of_two_is_invalid() -> None:
    attempts = [
        smoke_run(HEAD, None, "crashed", attempt=attempt, crash=Crash(frames=frames))
        for attempt, frames in enumerate(([OWN, OURS], [OWN]), 1)
    ]
    session = smoke_session(smoke_run(BASE, A2A), *attempts)
    header = session.header.model_copy(update={"changed_files": ["pkg/moe.py"]})
    assert judge(session.model_copy(update={"header": header}), Config()).verdict == "INVALID"
