"""``regbot bisect`` from options to answer on real repositories, with measurements that are made up."""

from collections.abc import Callable
from pathlib import Path

import pytest

from regbot.bisect import flow
from regbot.bisect.driver import MeasurementRequest
from regbot.bisect.options import BisectionOptions
from regbot.bisect.reuse import LEASE_GAP_S, CheckLease, load_reused_runs
from regbot.records.bisection import BisectionHeader, Observation
from regbot.records.files import RecordError, append_line
from regbot.records.run import Allocation, Run
from support.bisect_cases import line
from support.git_repos import Repository
from support.timed_builder import BASE, HEAD, HEADER, NODE, PLAN, Slot, noisy, play

CONFIG = """\
version = 1
[workloads.moe]
adapter = "smoke"
shapes = ["qwen3-30b-a3b", "mixtral-8x7b"]
meshes = ["ep"]
"""
QWEN, MIXTRAL = "qwen3-30b-a3b@1/ep", "mixtral-8x7b@1/ep"


class Told:
    """Says of every point and workload what a function says: a state, or a reason in parentheses."""

    def __init__(self, say: Callable[[str, str], str]) -> None:
        self._say = say
        self.asked: list[tuple[str, str]] = []

    def stratum(self) -> str:
        return "here"

    def measure(self, wanted: MeasurementRequest) -> Observation:
        said = self._say(wanted.point.subject, wanted.entry)
        self.asked.append((wanted.point.subject, wanted.entry))
        usable = not said.startswith("(")
        return Observation(
            point=wanted.point.key,
            entry=wanted.entry,
            purpose=wanted.purpose,
            usable=usable,
            state=said if usable else "",
            reason="" if usable else said,
        )


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Commits "0" to "9", each of them other code."""
    made = Repository.create(tmp_path / "repository")
    for number in range(10):
        made.commit(str(number), {"regbot.toml": CONFIG, "step.py": f"print({number})\n"})
    return made


def options(repository: Repository, tmp_path: Path, **more: object) -> BisectionOptions:
    first = repository.git("rev-list", "--max-parents=0", "HEAD")
    asked = {
        "repo": repository.path,
        "cache": tmp_path / "cache",
        "out": tmp_path / "out",
        "good": first,
        "bad": "HEAD",
    }
    return BisectionOptions(**{**asked, **more})  # type: ignore[arg-type]


def test_a_workload_that_cannot_be_measured_does_not_hide_the_culprit_of_another(
    repository: Repository, tmp_path: Path
) -> None:
    def say(subject: str, entry: str) -> str:
        return "(no such layer)" if entry == QWEN else str(int(subject) >= 6)

    result = flow.bisect(options(repository, tmp_path), measurer=Told(say))
    assert (result.outcome, result.changes[0].candidates[0].point.subject) == ("culprit", "6")
    assert [reason for reason in result.reasons if QWEN in reason and "no such layer" in reason]


def test_equal_ledgers_of_one_workload_say_nothing_of_another_that_bad_breaks(
    repository: Repository, tmp_path: Path
) -> None:
    def say(subject: str, entry: str) -> str:
        return "(boom)" if entry == QWEN and subject == "9" else "as ever"

    result = flow.bisect(options(repository, tmp_path), measurer=Told(say))
    assert result.outcome == "undecided"
    assert f"bad of {QWEN} cannot be measured: (boom)" in result.reasons
    assert not any("ledgers of good and bad are the same" in reason for reason in result.reasons)


@pytest.mark.parametrize(("branch", "told"), [("(does not build)", True), ("usual", False), ("odd", False)])
def test_a_merge_whose_branch_cannot_be_measured_is_named_with_that(tmp_path: Path, branch: str, told: bool) -> None:
    repository = Repository.create(tmp_path / "repository")
    repository.commit("0", {"regbot.toml": CONFIG, "step.py": "print(0)\n"})
    repository.git("switch", "--quiet", "-c", "feature")
    for number in (11, 12):
        repository.commit(str(number), {"feature.py": f"print({number})\n"})
    repository.git("switch", "--quiet", "main")
    repository.commit("1", {"step.py": "print(1)\n"})
    repository.git("merge", "--quiet", "--no-ff", "-m", "merge", "feature")
    repository.commit("2", {"step.py": "print(2)\n"})

    def say(subject: str, entry: str) -> str:
        return {"0": "usual", "1": "usual", "11": branch, "12": branch}.get(subject, "odd")

    result = flow.bisect(options(repository, tmp_path, workloads=[MIXTRAL]), measurer=Told(say))
    assert result.outcome == "culprit"
    assert result.candidates[0].point.subject == ("11" if branch == "odd" else "merge")
    said = [reason for reason in result.reasons if "merged is not known" in reason]
    assert len(said) == told
    assert all("does not build" in reason for reason in said)


# ---- reuse


def header(**changes: object) -> BisectionHeader:
    good, bad = line(1)
    asked = {
        "regbot": "0", "created": "now", "on": "time", "exact": False, "entries": [PLAN.entry], "plan": PLAN,
        "points": [good.model_copy(update={"commit": BASE.commit}), bad.model_copy(update={"commit": HEAD.commit})],
    }  # fmt: skip
    return BisectionHeader.model_validate({**asked, **changes})


@pytest.fixture
def check_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "check"
    for record in (HEADER, *play(noisy(1.2, 0.01))):
        append_line(folder / "session.jsonl", record)
    return folder


def test_the_runs_of_the_check_that_saw_it_are_used_in_a_stratum_of_their_own(check_folder: Path) -> None:
    result = load_reused_runs(check_folder, header(), NODE.node_class)
    assert result.pairs >= 4
    assert len(result.observations) == 2 * result.pairs
    assert {observation.point for observation in result.observations} == {BASE.commit, HEAD.commit}
    assert len({observation.stratum for observation in result.observations}) == 1
    assert result.effect == pytest.approx(0.18, abs=0.02)
    assert result.noise_pct is not None
    assert 0.2 < result.noise_pct < 3


@pytest.mark.parametrize(
    ("changes", "node_class", "words"),
    [
        ({}, "another machine", "was timed on"),
        ({"entries": ["other@1/ep"]}, NODE.node_class, "has not timed"),
        ({"plan": PLAN.model_copy(update={"steps": 99})}, NODE.node_class, "with another variant"),
        ({"plan": PLAN.model_copy(update={"dispatcher": "deepep"})}, NODE.node_class, "with another variant"),
        ({"plan": PLAN.model_copy(update={"world_size": 64})}, NODE.node_class, "with another variant"),
        ({"axis": "torch"}, NODE.node_class, "searches versions"),
    ],
)
def test_a_check_of_something_else_is_not_used(
    check_folder: Path, changes: dict[str, object], node_class: str, words: str
) -> None:
    with pytest.raises(RecordError, match=words):
        load_reused_runs(check_folder, header(**changes), node_class)


def test_the_session_is_continued_on_the_same_machine_within_the_limit_only() -> None:
    lease = CheckLease("local", "n1", 1000.0, "check of today")
    assert lease.continued_stratum("local", "n1", 1000.0 + LEASE_GAP_S) == "check of today"
    assert lease.continued_stratum("local", "n1", 1001.0 + LEASE_GAP_S) == ""
    assert lease.continued_stratum("local", "n1", 999.0) == "", "the clock was set back"
    assert lease.continued_stratum("local", "n2", 1001.0) == ""
    assert lease.continued_stratum("slurm", "n1", 1001.0) == ""


@pytest.mark.parametrize(("job", "has_lease"), [("", True), ("7", False)], ids=["local", "a job of a scheduler"])
def test_the_lease_of_a_check_is_that_of_its_last_run(tmp_path: Path, job: str, has_lease: bool) -> None:
    launch, start = noisy(1.2, 0.01), 1.79e9

    def launch_with_host(slot: Slot) -> Run:
        nonlocal start
        start += 60.0
        allocation = Allocation(engine="slurm" if job else "local", job=job, hosts=[NODE.name])
        return launch(slot).model_copy(update={"allocation": allocation, "started_unix_s": start, "wall_s": 30.0})

    for record in (HEADER, *play(launch_with_host)):
        append_line(tmp_path / "session.jsonl", record)
    reused = load_reused_runs(tmp_path, header(), NODE.node_class)
    expected = CheckLease("local", NODE.name, start + 30.0, reused.observations[-1].stratum)
    assert reused.lease == (expected if has_lease else None)
