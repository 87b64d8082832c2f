"""The warning about a build that changes tracked files: escaped, and never displaced by other warnings."""

from pathlib import Path

import pytest

from regbot.check.sessions.worktrees import with_build_changes
from regbot.engines.availability import unavailable_reason
from regbot.judge import judge
from regbot.records.config import Config, SandboxSettings
from regbot.records.run import Run
from regbot.report.comment import comment
from regbot.workloads.checkout.building import Build
from regbot.workloads.checkout.worktrees import Worktree, check_out
from support.git_repos import Repository
from support.required import needed
from support.timed_builder import noisy, play, session_of

NAME = "<img src=x>@octocat`|.py"
LOUD = [f"{number} {'loud ' * 70}" for number in range(40)]


@pytest.mark.parametrize("tier", ["static", "timed"])
def test_the_comment_names_changed_files_even_among_many_other_warnings(tmp_path: Path, tier: str) -> None:
    tree = Worktree(tmp_path, True, "key", (NAME,), {})

    def mark(run: Run) -> Run:
        loud = run.model_copy(update={"warnings": LOUD}) if run.arm.name == "head" else run
        return with_build_changes(loud, tree) if run.arm.name == "head" and run.tier == tier else loud

    session = session_of(play(noisy(1.0, 0.002)))
    session = session.model_copy(update={"runs": [mark(run) for run in session.runs]})
    text = comment(judge(session, Config()), session)
    assert "the build changed tracked files: " in text.replace("&#58;", ":")
    assert "octocat" in text
    assert "@octocat" not in text
    assert "<img" not in text
    assert "more warnings, see the report" in text


@needed("SANDBOX", unavailable_reason())
def test_a_build_can_change_neither_the_other_arm_nor_the_records(tmp_path: Path) -> None:
    """The build knows the paths of both."""
    repo = Repository.create(tmp_path / "repo")
    base = repo.commit("base", {"moe.py": "x = 1\n"})
    head = repo.commit("head", {"moe.py": "x = 2\n"})
    cache = tmp_path / "cache"
    sandbox = SandboxSettings()
    ours = check_out(repo.path, base, cache, Build([], "python3", 60.0, sandbox=sandbox), hosts=())
    evil = (
        f"echo 'x = 9' > moe.py; for f in {ours.path}/moe.py {cache}/worktrees/*.json {cache}/repos/*/config; do "
        'echo evil > "$f" || true; done'
    )
    theirs = check_out(repo.path, head, cache, Build([evil], "python3", 60.0, sandbox=sandbox), hosts=())
    assert theirs.changed == ("moe.py",)
    assert (ours.path / "moe.py").read_text() == "x = 1\n"
    assert not check_out(repo.path, base, cache, Build([], "python3", 60.0, sandbox=sandbox), hosts=()).built
    written = [*cache.glob("worktrees/*.json"), *cache.glob("repos/*/config")]
    assert len(written) == 3
    assert all("evil" not in path.read_text() for path in written)
