"""Which device a bisection's traces run on, and which traces count."""

from pathlib import Path

import pytest

from regbot.bisect.driver import MeasurementRequest
from regbot.bisect.history import list_commits
from regbot.bisect.measure import PointCheckouts, arm_of
from regbot.bisect.traces import TraceMeasurer
from regbot.check.sessions.worktrees import Worktrees
from regbot.engines import LocalEngine
from regbot.records.bisection import Point
from regbot.records.config import Workload
from regbot.records.run import Run
from regbot.workloads.guest import Limits
from regbot.workloads.paper.build import PaperLibrary
from regbot.workloads.shapes import load_shape
from regbot.workloads.task import Task, single_task
from support.git_repos import Repository
from support.ledger_builder import smoke_ledger, smoke_run

TASK = single_task("moe", Workload(adapter="smoke", shapes=["mixtral-8x7b"]), load_shape("mixtral-8x7b"), "ep")


class _Libraries:
    """Stands in for the builds of paper GPUs."""

    def library(self, python: str, root: Path, private: Path) -> PaperLibrary:
        return PaperLibrary(Path("/paper.so"))


class Scene:
    """A repository of two commits, whose traces end as ``outcomes`` says: by device and commit, else well."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, outcomes: dict[tuple[str, str], str]) -> None:
        self.home, self.outcomes = home, outcomes
        self.repository = Repository.create(home / "repository")
        for number in range(2):
            self.repository.commit(str(number), {"step.py": f"print({number})\n"})
        self.points = list_commits(self.repository.path, "HEAD~1", "HEAD").points
        self.traced: list[tuple[str, str]] = []
        monkeypatch.setattr("regbot.bisect.traces.trace", self.trace)

    def trace(self, task: Task, checkout: object, *_: object, paper: Path | None = None) -> Run:
        arm = checkout.arm  # type: ignore[attr-defined]
        device = "cuda" if paper is not None else "cpu"
        self.traced.append((device, arm.subject))
        mesh = f"{arm.subject}/{task.parallelism.name}"
        outcome = self.outcomes.get((device, arm.subject)) or self.outcomes.get((device, mesh), "ok")
        ledger = smoke_ledger().model_copy(update={"device": device})
        run = smoke_run(arm, ledger, "ok")
        return run if outcome == "ok" else run.model_copy(update={"outcome": outcome, "ledger": None})

    def measurer(self, *tasks: Task, known: dict[str, Run] | None = None) -> TraceMeasurer:
        trees = Worktrees(self.repository.path, self.home / "cache", lambda _: None)
        return TraceMeasurer(
            {task.entry: task for task in tasks or (TASK,)},
            PointCheckouts(trees, lambda _: None),
            LocalEngine(),
            self.home / "out",
            Limits(),
            libraries=_Libraries(),  # type: ignore[arg-type]
            known=known or {},
        )


def _request(point: Point) -> MeasurementRequest:
    return MeasurementRequest(point, "search", entry=TASK.entry)


@pytest.mark.parametrize(
    ("outcomes", "traced", "usable"),
    [
        ({}, [("cuda", "0"), ("cuda", "1")], [True, True]),
        ({("cuda", "0"): "crashed"}, [("cuda", "0"), ("cpu", "0"), ("cpu", "1")], [True, True]),
        # The device is settled by the first commit. A later failure is that commit's own.
        ({("cuda", "1"): "crashed"}, [("cuda", "0"), ("cuda", "1")], [True, False]),
    ],
)
def test_a_trace_runs_where_a_check_would_run_it_and_all_points_on_one_device(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcomes: dict[tuple[str, str], str],
    traced: list[tuple[str, str]],
    usable: list[bool],
) -> None:
    scene = Scene(tmp_path, monkeypatch, outcomes)
    measurer = scene.measurer()
    assert [measurer.measure(_request(point)).usable for point in scene.points] == usable
    assert scene.traced == traced


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_resumed_bisection_keeps_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    scene = Scene(tmp_path, monkeypatch, {("cuda", "1"): "crashed"})
    ledger = smoke_ledger().model_copy(update={"device": device})
    known = smoke_run(arm_of(scene.points[0]), ledger, "ok").model_copy(update={"workload": TASK.entry})
    scene.measurer(known={TASK.entry: known}).measure(_request(scene.points[1]))
    assert scene.traced == [(device, "1")]


def test_a_trace_that_a_check_would_not_believe_is_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, monkeypatch, {})
    believed = smoke_run(arm_of(scene.points[0]), smoke_ledger(), "ok")
    assert believed.code is not None
    stray = believed.model_copy(update={"code": believed.code.model_copy(update={"foreign": {"moe": "/opt/moe"}})})
    blind = believed.model_copy(update={"ledger": smoke_ledger().model_copy(update={"liveness": None})})
    for run, words in ((believed, ""), (stray, "imported moe from /opt/moe"), (blind, "the counter was not tested")):
        monkeypatch.setattr("regbot.bisect.traces.trace", lambda *_, run=run, **__: run)
        observation = scene.measurer().measure(_request(scene.points[0]))
        assert observation.usable == (words == "")
        assert words in observation.reason
