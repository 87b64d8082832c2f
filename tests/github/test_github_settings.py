"""The table [github] of regbot.toml, annotations and labels."""

from pathlib import Path

import pytest

from github_fake import FakeGitHub
from github_fake.fixtures import hub as hub
from regbot.github.annotations import collect_annotations
from regbot.github.base_branch import load_github_settings
from regbot.github.labels import set_label
from regbot.judge import judge
from regbot.records.config import GitHub, parse_config
from regbot.records.config.globs import matches_glob
from regbot.records.hang import Frame, Hang, RankHang
from regbot.records.run import Run
from regbot.records.session import Session
from support.forge_cases import Bench
from support.timed_builder import session_of

DOCS = Path(__file__).parents[1].parent / "docs" / "configuration.md"


def test_one_verdict_label_is_set_and_the_others_are_removed(hub: FakeGitHub, tmp_path: Path) -> None:
    bench = Bench.make(hub, tmp_path)
    number = bench.pull()
    names = {"FAIL": "perf: worse", "PASS": "perf: same"}
    bench.repo.label(number, "ann", "bug")
    for status, expected in (("FAIL", "perf: worse"), ("PASS", "perf: same"), ("REVIEW", None), (None, None)):
        set_label(bench.forge, number, status, names)  # type: ignore[arg-type]
        assert bench.repo.labels(number) == ["bug", *([expected] if expected else [])]
    request_count = len(hub.requests)
    set_label(bench.forge, number, "FAIL", {})
    assert len(hub.requests) == request_count


def hung(session: Session, *places: tuple[str, int], arm: str = "head") -> Session:
    ranks = [
        RankHang(rank=n, answered=True, code_frame=Frame(file=file, line=line, function="dispatch\x1b[31m"))
        for n, (file, line) in enumerate(places)
    ]

    def change(run: Run) -> Run:
        if run.arm.name != arm:
            return run
        return run.model_copy(update={"outcome": "hung", "hang": Hang(ranks=ranks, text="rank 1 is missing")})

    return session.model_copy(update={"runs": [change(run) for run in session.runs]})


def noted(session: Session) -> list[tuple[str, int, str]]:
    annotations = collect_annotations(judge(session, parse_config("version = 1", "x")), session)
    return [(annotation.path, annotation.line, annotation.message) for annotation in annotations]


def test_a_hung_head_is_annotated_where_its_ranks_stopped() -> None:
    annotations = noted(hung(session_of([]), ("src/moe.py", 17), ("src/moe.py", 17), ("src/router.py", 4)))
    assert [(path, line) for path, line, _ in annotations] == [("src/moe.py", 17), ("src/router.py", 4)]
    assert annotations[0][2].startswith("2 ranks stopped in dispatch, as the ranks themselves report")


@pytest.mark.parametrize(
    "path", ["/etc/passwd.py", "../x.py", "a/../../x.py", "./x.py", "a\n.py", "x.sh", "", "a\u202e.py"]
)
def test_a_path_outside_the_repository_is_not_annotated(path: str) -> None:
    assert noted(hung(session_of([]), (path, 3))) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "patterns"),
    [("./vendor/regbot", ["vendor/regbot/**"]), (".", []), ("regbot @ git+https://h.example/a/b@c", [])],
)
def test_what_the_workflows_install_regbot_from_is_protected(
    hub: FakeGitHub, tmp_path: Path, source: str, patterns: list[str]
) -> None:
    bench = Bench.make(hub, tmp_path)
    text = (DOCS.parents[1] / "workflows" / "regbot-post.yml").read_text(encoding="utf-8")
    bench.repo.commit({".github/workflows/regbot-post.yml": text.replace("/set/by/regbot-init", source)})
    bench.update()
    assert load_github_settings(bench.checkout).protected == [*GitHub().protected, *patterns]
    bench.repo.commit({"regbot.toml": None})
    bench.update()
    assert load_github_settings(bench.checkout).protected == [*GitHub().protected, *patterns]


def test_a_changed_wheel_of_regbot_is_a_protected_file() -> None:
    wheel = "vendor/regbot-1-py3-none-any.whl"
    assert matches_glob(f"{wheel}/**", wheel)
    assert matches_glob("vendor/regbot/**", "vendor/regbot/regbot/cli/app.py")
    assert not matches_glob("vendor/regbot/**", "vendor/regbot-other/cli.py")
