"""What users, commands and machines do to a bisection: each is told in a sentence, or does no harm."""

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from regbot.bisect.costs import parse_cost
from support.costs import Bisecting, line, state_of
from support.git_repos import Repository

CULPRIT = 5


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repository, list[str]]:
    """Nine commits, and one beside them. The file ``step.txt`` has the number of each."""
    repository, commits = line(tmp_path_factory.mktemp("history") / "repository", 8)
    repository.git("checkout", "--quiet", "-b", "other", commits[3])
    repository.commit("Beside the line")
    repository.git("checkout", "--quiet", "--orphan", "stranger")
    repository.commit("Of another origin")
    repository.git("checkout", "--quiet", "main")
    hook = repository.path / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho it ran >> hook.txt\n")
    hook.chmod(hook.stat().st_mode | stat.S_IXUSR)
    (repository.path / "step.txt").write_text("stashed\n")
    repository.git("stash", "push", "--quiet")
    return repository, commits


@pytest.fixture(scope="module")
def worktrees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def untouched(history: tuple[Repository, list[str]]) -> Iterator[None]:
    before = state_of(history[0])
    yield
    assert state_of(history[0]) == before


@pytest.fixture
def commits(history: tuple[Repository, list[str]]) -> list[str]:
    return history[1]


@pytest.fixture
def case(tmp_path: Path, history: tuple[Repository, list[str]], worktrees: Path) -> Bisecting:
    """Where the command does no harm to the checkouts."""
    return Bisecting(tmp_path, history[0], worktrees)


@pytest.fixture
def alone(tmp_path: Path, history: tuple[Repository, list[str]]) -> Bisecting:
    """With a cache of its own."""
    return Bisecting(tmp_path, history[0])


STEP = f"n=$(cat step.txt); test $n -lt {CULPRIT} && cost=100 || cost=120"
"""Sets the cost of a commit."""


# ---- which commits


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("main", "main~4", "good and bad seem to be swapped: BAD 'main~4' is an ancestor of GOOD 'main'"),
        ("main", "main", "no commit lies between GOOD 'main' and BAD 'main': both are commit"),
        ("nowhere", "main", "GOOD 'nowhere' names no commit here; check its spelling, or fetch it first"),
        ("main~1", "nowhere", "BAD 'nowhere' names no commit here"),
        ("other", "main", "GOOD 'other' is not an ancestor of BAD 'main'"),
        ("stranger", "main", "GOOD 'stranger' is not an ancestor of BAD 'main'"),
        ("--output=x", "main", "No such option"),
    ],
)
def test_ends_that_are_no_range_are_refused_before_anything_is_made(
    alone: Bisecting, good: str, bad: str, message: str
) -> None:
    result = alone.typed(good, bad, "--command", "echo 1", "--exact")
    assert result.exit_code == 2, result.stdout
    assert message in result.stderr
    assert result.stdout == ""
    assert list(alone.home.iterdir()) == []


# ---- which options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--command", ""), "--command is empty"),
        (("--on", "command"), "--on command needs --command CMD"),
        (("--on", "ledger", "--command", "echo 1"), "--command cannot be combined with --on ledger"),
        (("--on", "time", "--exact"), "step times are never exact"),
        (("--command", "echo 1", "--workload", "moe"), "--command measures no workload"),
        (("--command", "echo 1", "--check", "regbot-out"), "--check: the runs of a check are step times"),
        (("--command", "echo 1", "--exact", "--noise", "3"), "exact values have no noise"),
        (("--command", "echo 1", "--exact", "--effect", "3"), "exact values have no noise"),
        (("--command", "echo 1", "--untrusted"), "run outside the sandbox"),
        (("--build", "true"), "--build needs --command"),
        (("--command", "echo 1", "--engine", "cloud"), "there is no such engine"),
        (("--command", "echo 1", "--runs", "1"), "--runs"),
        (("--exact",), "has a regbot.toml"),
    ],
)
def test_options_that_do_not_go_together_are_a_sentence_and_exit_code_2(
    alone: Bisecting, commits: list[str], options: tuple[str, ...], message: str
) -> None:
    result = alone.typed(commits[0], commits[-1], *options)
    assert result.exit_code == 2, result.stdout
    assert message in result.stderr
    assert result.stdout == ""
    assert list(alone.home.iterdir()) == []


# ---- what the command prints


@pytest.mark.parametrize(
    ("printed", "exact", "number"),
    [
        ("5\n", True, 5.0),
        ("warming up\n5\n\n\n  \n", True, 5.0),
        ("  5.25e-3  \n", False, 0.00525),
        ("-3\n", True, -3.0),
        ("0\n", True, 0.0),
    ],
)
def test_a_number_is_read_from_the_last_line(printed: str, exact: bool, number: float) -> None:
    assert parse_cost(printed, exact) == (number, "")


@pytest.mark.parametrize(
    ("printed", "exact", "complaint"),
    [
        ("", True, "but there is none"),
        ("5\ndone\n", True, "one number, the cost, but 'done' is no number"),
        ("5 ms\n", True, "'5 ms' is no number"),
        ("nan\n", True, "is nan; it must be finite"),
        ("-inf\n", True, "is -inf; it must be finite"),
        ("0\n", False, "is 0; a noisy cost must be positive (or give --exact)"),
        ("9" * 5000, True, "must be finite"),
        ("x" * 5000, True, "no number"),
        ("\x1b[31mred\x1b[0m\n", True, "no number"),
    ],
)
def test_what_is_no_cost_is_told_in_a_line(printed: str, exact: bool, complaint: str) -> None:
    number, reason = parse_cost(printed, exact)
    assert number is None
    assert complaint in reason
    assert len(reason) < 400
    assert reason.isprintable()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("exit 125", "the command exited with 125, which means: not measurable"),
        ("echo 5; exit 3", "the command exited with code 3: 5"),
        ("echo 5; echo out of memory >&2; exit 1", "the command exited with code 1: out of memory"),
        ("kill -9 $$", "the command was killed by signal 9: it printed nothing"),
        ("no_such_program", "exited with code 127: bash: line 1: no_such_program: command not found"),
        ("echo 5 >&2", "must be one number, the cost, but there is none"),
        pytest.param(
            "sleep 60", "the command did not end within 0.02 min (--timeout) and was killed", marks=pytest.mark.slow
        ),
        ("yes x | head -c 40000000 >&2; echo 5", "than any record needs and was killed; its standard error"),
    ],
)
def test_a_good_commit_that_cannot_be_measured_ends_it_with_the_reason(
    case: Bisecting, commits: list[str], command: str, reason: str
) -> None:
    found = case.typed(commits[0], commits[1], "--command", command, "--exact", "--timeout", "0.02")
    assert found.exit_code == 4, found.stderr
    told = " ".join(found.stdout.split())
    assert "NOT MEASURABLE: " in told
    assert reason in told
    (first, *_) = case.recorded().observations
    assert not first.usable
    assert (case.out / first.record).is_file(), "what it printed can be looked at"


# ---- what the command does


@pytest.mark.slow
@pytest.mark.parametrize(
    "harm",
    [
        "echo left > left.txt",
        "mkdir -p build && echo left > build/left.txt && echo build > .gitignore",
        "echo 1 > step.txt",
        "echo 1 > step.txt; git add -A; git -c user.name=x -c user.email=x@example.org commit -q -m mine",
        "git checkout -q HEAD~1",
        "git checkout -q -b mine-$RANDOM$RANDOM",
        "git update-index --assume-unchanged step.txt; echo 1 > step.txt",
        "rm -rf .git",
        "git stash push -q -u; git gc -q; git branch -f main HEAD~1",
        'rm -rf "$PWD"',
        "chmod 500 .",
    ],
)
def test_what_a_command_does_to_its_checkout_is_not_seen_by_the_next(
    alone: Bisecting, commits: list[str], harm: str
) -> None:
    """Measured twice, with the same cache: the second time as if there had been no first."""
    wary = f'test -e left.txt -o -e build && exit 9; {STEP}; test -z "$(git status --porcelain)" || exit 8; {harm}'
    for _ in range(2):
        result = alone.found(commits[3], commits[-1], f"{wary}; echo $cost", exact=True)
        assert [observation.reason for observation in result.observations if not observation.usable] == []
        assert result.culprit == commits[CULPRIT]


def test_what_a_command_plants_in_the_configuration_of_git_is_not_run_by_regbot(
    alone: Bisecting, commits: list[str]
) -> None:
    hook, ran = alone.home / "hooks" / "post-checkout", alone.home / "ran"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ntouch {ran}\n")
    hook.chmod(0o755)
    plant = f"git config core.hooksPath {hook.parent}; git config core.fsmonitor {hook}; cat step.txt"
    alone.found(commits[3], commits[4], plant, exact=True)
    (configuration,) = alone.cache.glob("repositories/*/repos/*/config")
    assert str(hook) in configuration.read_text(), "or the test has shown nothing"
    result = alone.found(commits[5], commits[6], "cat step.txt", exact=True)
    assert (result.changes[0].before, result.changes[0].after) == ("5", "6")
    assert not ran.exists()


def test_a_command_that_kills_its_supervisor_spoils_its_commit_only(alone: Bisecting, commits: list[str]) -> None:
    command = f"{STEP}; test $n = 4 && kill -9 $PPID; echo $cost"
    result = alone.found(commits[0], commits[-1], command, exact=True)
    (change,) = result.changes
    assert {candidate.point.commit for candidate in change.candidates} == {commits[4], commits[CULPRIT]}
    assert alone.processes() == []


# ---- build commands


def test_a_build_that_fails_leaves_its_commit_out_and_says_why(case: Bisecting, commits: list[str]) -> None:
    build = "test $(cat step.txt) != 4 || { echo no compiler; exit 7; }; echo built > built.txt"
    result = case.found(commits[0], commits[-1], f"{STEP}; cat built.txt; echo $cost", exact=True, build=[build])
    (change,) = result.changes
    said = {commits.index(candidate.point.commit): candidate.reason for candidate in change.candidates}
    assert sorted(said) == [4, CULPRIT]
    assert "failed with exit code 7" in said[4]
    assert "no compiler" in said[4]
