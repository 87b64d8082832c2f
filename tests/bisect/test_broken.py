"""Ranges with points that cannot be measured: a block of them is jumped over, and a common reason stops the search."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from regbot.bisect.broken import MAX_SAME_FAILURES, explain_common_failure, find_common_failure, success_chances
from regbot.bisect.exact import ValueStep, changes_on_line, max_measurements, next_on_line
from regbot.bisect.exact_search import ExactSpan
from regbot.bisect.flow import bisect
from regbot.bisect.noisy import MeasurementRequest
from regbot.bisect.options import BisectionOptions
from regbot.config import parse_config
from regbot.records.bisection import Bisection, Observation
from regbot.report.bisection_text import bisection_page
from regbot.text.progress import Progress
from regbot.workloads import plan
from support.bisect_cases import SD, Runs, Values, log2_up, number_of, search, span, step, trace
from support.bisect_cases import line as points_on_line
from support.costs import Bisecting
from support.git_repos import Repository

COMMITS, BLOCK = 130, range(36, 96)
"""Commits after good, and the 60 of them that cannot be measured."""
MAX_MORE_MEASUREMENTS = 12
"""The block may cost this many more measurements than the same range without it."""


# ---- chances


def test_without_failures_every_point_can_be_measured() -> None:
    assert success_chances(5, [0, 4], []).tolist() == [1.0] * 5


def test_a_failure_makes_its_neighbours_doubtful_up_to_the_measured_points() -> None:
    chances = success_chances(13, [0, 4, 12], [8])
    assert chances[:5].tolist() == [1.0] * 5
    assert (chances[8], chances[12]) == (0.0, 1.0)
    assert 0 < chances[7] < chances[6] < chances[5] < 1
    assert 0 < chances[9] < chances[10] < chances[11] < 1


def test_every_failure_makes_the_points_between_failures_more_doubtful() -> None:
    between = [success_chances(21, [0, 20], failures)[10] for failures in ([5, 15], [5, 14, 15], [5, 6, 14, 15])]
    assert between == [1 / 4, 1 / 8, 1 / 16]


# ---- the exact search


def count_exact(culprit: int, broken: range) -> tuple[list[ValueStep], int, int]:
    """The changes that an exact search names, and how often it measured and failed."""
    numbers = list(range(COMMITS + 1))
    states: dict[int, str] = {}
    failed: set[int] = set()
    while chosen := next_on_line(numbers, [1.0] * (COMMITS + 1), states, failed, [], 1):
        if chosen[0] in broken:
            failed.add(chosen[0])
        else:
            states[chosen[0]] = str(chosen[0] >= culprit)
    return changes_on_line(numbers, states, failed), len(states) + len(failed), len(failed)


@pytest.mark.parametrize("first", [1, 11, 36, 51, 61, 70])
def test_a_block_of_sixty_costs_at_most_twelve_more_measurements(first: int) -> None:
    block = range(first, first + 60)
    for culprit in range(1, COMMITS + 1):
        if block[0] <= culprit <= block[-1] + 1:
            continue  # all of the block must fail before it is known that no commit of it can be measured
        changes, measured, _ = count_exact(culprit, block)
        assert changes == [ValueStep(culprit - 1, (culprit,))]
        assert measured <= count_exact(culprit, range(0))[1] + MAX_MORE_MEASUREMENTS


def test_the_same_points_fail_in_a_search_that_is_made_again() -> None:
    found = [trace_block(20) for _ in range(2)]
    assert found[0] == found[1]


def trace_block(culprit: int) -> list[int]:
    values = Values(lambda number, _: None if number in BLOCK else number >= culprit)
    return [number_of(observation.point) for observation in trace(ExactSpan(tuple(points_on_line(COMMITS))), values)]


# ---- the noisy search


@pytest.mark.parametrize("culprit", [9, 30, 101, 125])
def test_a_noisy_search_jumps_over_a_block_too(culprit: int) -> None:
    result = search(span(COMMITS), Runs(step(culprit, 5 * SD), broken=BLOCK))
    assert result.culprits == [culprit]
    assert sum(not observation.usable for observation in result.observations) <= MAX_SAME_FAILURES


def test_a_noisy_search_without_a_culprit_does_not_creep_through_a_block() -> None:
    result = search(span(COMMITS), Runs(lambda _: 0.0, broken=BLOCK))
    assert result.root.status == "none"
    assert sum(not observation.usable for observation in result.observations) <= MAX_SAME_FAILURES


def test_before_none_the_points_beside_a_block_are_run_and_the_rest_is_reported() -> None:
    result = search(span(COMMITS), Runs(lambda _: 0.0, broken=range(30, 101)))
    between = {number_of(run.point) for run in result.observations if run.usable} - {0, COMMITS}
    assert any(COMMITS / 8 <= number < 30 for number in between)
    assert any(100 < number <= COMMITS * 7 / 8 for number in between)
    assert (result.root.status, result.root.unmeasured_shares) == ("none", (0.5,))
    assert sum(not observation.usable for observation in result.observations) <= MAX_SAME_FAILURES


# ---- real commits


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """131 commits. ``step.py`` prints a higher number from the commit on whose number it is given. Those of the block
    import a module that is not there.
    """
    repository = Repository.create(tmp_path_factory.mktemp("history") / "repository")
    for number in range(COMMITS + 1):
        fault = "import fused_combine\n" if number in BLOCK else ""
        repository.commit(
            str(number), {"step.py": f"import sys\n{fault}print(100 + 20 * ({number} >= int(sys.argv[1])))\n"}
        )
    return repository


@pytest.fixture(scope="module")
def worktrees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def case(tmp_path: Path, history: Repository, worktrees: Path) -> Bisecting:
    return Bisecting(tmp_path, history, worktrees)


def bisect_commits(case: Bisecting, culprit: int, texts: list[str] | None = None, **options: object) -> Bisection:
    good = case.repository.git("rev-list", "--max-parents=0", "HEAD")
    command = f"PYTHONPATH={case.home / 'installed'} python3 -S step.py {culprit}"
    asked = BisectionOptions(
        case.repository.path,
        case.cache,
        case.out,
        good,
        "HEAD",
        command=command,
        exact=True,
        **options,  # type: ignore[arg-type]
    )
    said = texts if texts is not None else []

    def watch(progress: Progress) -> None:
        said.append(progress.text)

    return bisect(asked, watch)


def failures(observations: Sequence[Observation]) -> list[Observation]:
    return [observation for observation in observations if not (observation.usable or observation.void)]


@pytest.mark.parametrize("culprit", [20, 110])
def test_sixty_broken_commits_of_a_repository_are_jumped_over_and_reported(case: Bisecting, culprit: int) -> None:
    texts: list[str] = []
    result = bisect_commits(case, culprit, texts)
    assert result.changes[0].candidates[0].point.subject == str(culprit)
    assert result.search_runs <= max_measurements(COMMITS) + MAX_MORE_MEASUREMENTS
    assert {int(candidate.point.subject) for candidate in result.unmeasurable} <= set(BLOCK)
    assert all("fused_combine" in candidate.reason for candidate in result.unmeasurable)
    count = len(failures(result.observations))
    assert count > 1
    shown = [text for text in texts if f"{count} points cannot be measured, last reason: " in text]
    assert shown
    assert "No module named 'fused_combine'" in shown[-1]


@pytest.mark.slow
def test_a_culprit_in_the_block_stops_the_search_until_the_missing_module_is_there(case: Bisecting) -> None:
    result = bisect_commits(case, 65)
    assert (result.outcome, result.culprit) == ("undecided", None)
    assert len(failures(result.observations)) == MAX_SAME_FAILURES
    assert result.search_runs <= max_measurements(COMMITS) + MAX_MORE_MEASUREMENTS
    assert "8 points cannot be measured for one reason" in result.reasons[0]
    assert "the Python module fused_combine is missing" in result.reasons[0]
    assert "--resume" in result.reasons[0]
    assert any("8 of them could not be measured" in reason for reason in result.reasons)

    again = bisect_commits(case, 65, resume=True)
    assert again.reasons[0] == result.reasons[0]
    assert len(failures(again.observations)) == MAX_SAME_FAILURES
    assert again.search_runs == result.search_runs + MAX_SAME_FAILURES

    (case.home / "installed").mkdir()
    (case.home / "installed" / "fused_combine.py").touch()
    mended = bisect_commits(case, 65, resume=True)
    assert (mended.outcome, mended.changes[0].candidates[0].point.subject) == ("culprit", "65")
    assert mended.unmeasurable == []


@pytest.mark.slow
@pytest.mark.parametrize("culprit", [1, 65, 130])
def test_without_failures_no_more_commits_are_built_than_halving_needs(case: Bisecting, culprit: int) -> None:
    (case.home / "installed").mkdir()
    (case.home / "installed" / "fused_combine.py").touch()
    case.cache = case.home / "own cache"
    result = bisect_commits(case, culprit)
    assert result.changes[0].candidates[0].point.subject == str(culprit)
    assert 0 < result.builds <= log2_up(COMMITS) + 2
    assert result.builds == result.search_runs


@pytest.mark.slow
def test_a_resumed_search_can_leave_the_block_out(case: Bisecting) -> None:
    stopped = bisect_commits(case, 65)
    result = bisect_commits(case, 65, resume=True, anyway=True)
    assert result.outcome == "culprit"
    assert [int(candidate.point.subject) for candidate in result.candidates if not candidate.measurable] == list(BLOCK)
    assert len(failures(result.observations)) == len(BLOCK)
    first = [observation.point for observation in stopped.observations]
    assert [observation.point for observation in result.observations][: len(first)] == first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "broken"),
    [("import fused_combine", MAX_SAME_FAILURES), ("exit(125)", MAX_SAME_FAILURES + 2)],
    ids=["all are measured", "skipped on purpose"],
)
def test_a_search_is_not_stopped_at_its_end_or_by_skipped_commits(tmp_path: Path, fault: str, broken: int) -> None:
    repository = Repository.create(tmp_path / "repository")
    for number in range(broken + 2):
        is_end = number in (0, broken + 1)
        repository.commit(str(number), {"step.py": f"print({number})\n" if is_end else f"{fault}  # {number}\n"})
    good = repository.git("rev-list", "--max-parents=0", "HEAD")
    result = Bisecting(tmp_path, repository).found(good, "HEAD", "python3 step.py", exact=True)
    assert (result.outcome, len(result.candidates)) == ("culprit", broken + 1)
    assert result.reasons == []


def test_a_commit_that_was_left_out_is_not_named_as_a_parent_without_the_change(tmp_path: Path) -> None:
    """Commit 1 makes the change, but it touches no file of --path."""
    repository = Repository.create(tmp_path / "repository")
    for number in range(3):
        step = f"print(open('other').read())  # {number // 2}\n"
        repository.commit(str(number), {"other": str(min(number, 1)), "step.py": step})
    case = Bisecting(tmp_path, repository)
    good, _, bad = repository.git("rev-list", "--reverse", "HEAD").split()
    result = case.found(good, bad, "python3 -S step.py", exact=True, paths=["step.py"])
    (change,) = result.changes
    assert (change.candidates[0].point.commit, change.parent, change.left_out) == (bad, good, 1)
    words = " ".join(bisection_page(result, None).split())
    assert f"{good[:12]} does not; {good[:12]} is not its parent in git: 1 commit between them" in words
    assert "not in its parent" not in words


@pytest.mark.parametrize("full", [False, True])
def test_a_parent_with_the_code_of_a_measured_point_is_named(tmp_path: Path, full: bool) -> None:
    """Commit 1 is empty, so good is measured instead of it."""
    repository = Repository.create(tmp_path / "repository")
    for number in range(3):
        repository.commit(str(number), {"step.py": f"print({number // 2})\n"})
    case = Bisecting(tmp_path, repository)
    good, parent, culprit = repository.git("rev-list", "--reverse", "HEAD").split()
    (change,) = case.found(good, culprit, "python3 -S step.py", exact=True, full=full).changes
    assert (change.candidates[0].point.commit, change.parent, change.left_out) == (culprit, parent, None)


def test_a_noisy_culprit_is_not_said_to_be_compared_with_a_parent_that_was_left_out(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "repository")
    for number in range(3):
        repository.commit(str(number), {"other": str(min(number, 1)), "step.py": str(number // 2)})
    case = Bisecting(tmp_path, repository)
    good, _, bad = repository.git("rev-list", "--reverse", "HEAD").split()
    command = case.costing({bad: 120.0}, noise=0.01)
    (change,) = case.found(good, bad, command, noise_pct=1.0, paths=["step.py"]).changes
    assert (change.parent, change.left_out, change.confirmed) == (good, 1, "yes")


def test_a_missing_module_of_a_workload_is_named_with_its_interpreter(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "repository")
    config = 'version = 1\n[workloads.moe]\nadapter = "smoke"\nshapes = ["mixtral-8x7b"]\nmeshes = ["ep"]\n'
    for number in range(11):
        repository.commit(str(number), {"regbot.toml": config, "step.py": f"print({number})\n"})

    class Traces(Values):
        def measure(self, wanted: MeasurementRequest, slot: int) -> Observation:
            at_end = wanted.point.subject in ("0", "10")
            reason = f"crashed: /tmp/{wanted.point.tree}/a.py: ModuleNotFoundError: No module named 'apex'"
            return Observation(
                point=wanted.point.key,
                entry=wanted.entry,
                purpose=wanted.purpose,
                usable=at_end,
                state=wanted.point.subject if at_end else "",
                reason="" if at_end else reason,
            )

    good = repository.git("rev-list", "--max-parents=0", "HEAD")
    asked = BisectionOptions(repository.path, tmp_path / "cache", tmp_path / "out", good, "HEAD")
    result = bisect(asked, measurer=Traces(lambda *_: None))
    reason = result.reasons[0]
    assert "the Python module apex is missing for the interpreter /" in reason
    assert "the keys python and build of [workloads.moe]" in reason

    timed = [failure.model_copy(update={"entry": ""}) for failure in failures(result.observations)]
    common = find_common_failure(timed)
    assert common is not None
    tasks = {task.entry: task for task in plan(parse_config(config, "regbot.toml"))}
    assert explain_common_failure(common, tasks) == reason, "a timed run names no workload"
