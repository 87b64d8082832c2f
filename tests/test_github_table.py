"""The table [github] of regbot.toml, annotations and labels."""

import re
from pathlib import Path

import pytest

from forge_cases import Bench
from github_fake import FakeGitHub
from github_fake.fixtures import hub as hub
from regbot.config import ConfigError, GitHub, parse_config
from regbot.forge import checks
from regbot.forge.annotations import MOST, annotations
from regbot.forge.approval import covers
from regbot.forge.basis import github_settings
from regbot.forge.labels import set_label
from regbot.judge import judge
from regbot.records.hang import Frame, Hang, RankHang
from regbot.records.run import Run
from regbot.records.session import Session
from timed_builder import session_of

DOCS = Path(__file__).parent.parent / "docs" / "configuration.md"


def test_every_key_is_documented_with_its_default() -> None:
    section = DOCS.read_text(encoding="utf-8").split("## [github]")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE)
    assert [name for name, _ in rows] == list(GitHub.model_fields)
    shown = dict(rows)
    assert shown["protected"] == f"`{GitHub().protected!s}`".replace("'", '"')
    assert shown["run_label"] == f'`"{GitHub().run_label}"`'
    assert shown["self_reported"] == f'`"{GitHub().self_reported}"`'
    assert shown["bot"] == f'`"{GitHub().bot}"`'
    for status, conclusion in checks.CONCLUSIONS.items():
        assert f'{status} = "{conclusion}"' in shown["conclusions"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('conclusions = {FAIL = "green"}', "github.conclusions.FAIL"),
        ('conclusions = {BAD = "failure"}', "github.conclusions"),
        ('labels = {FAIL = "a", PASS = "A"}', "two verdicts have one label"),
        ('labels = {FAIL = ""}', "github.labels.FAIL"),
        ('bot = "me; rm -rf /"', "github.bot"),
        ('shadow = "no"', "github.shadow"),
        ('self_reported = "failure"', "github.self_reported"),
        ("token = 1", "github.token"),
    ],
)
def test_a_mistake_is_told_with_its_key(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        parse_config(f"version = 1\n[github]\n{text}\n", "regbot.toml")


def test_the_table_is_read_although_something_else_of_the_file_is_wrong(hub: FakeGitHub, tmp_path: Path) -> None:
    bench = Bench.make(hub, tmp_path, "version = 1\n[workloads.x]\nadapter = 'none'\n[github]\nshadow = true\n")
    assert github_settings(bench.checkout).shadow


@pytest.mark.parametrize("text", ["github = 3\n", "[github]\nshadow = 1\n", "[github\n"])
def test_a_table_that_cannot_be_read_is_an_error(hub: FakeGitHub, tmp_path: Path, text: str) -> None:
    bench = Bench.make(hub, tmp_path, text)
    with pytest.raises(ConfigError, match="default branch"):
        github_settings(bench.checkout)


def test_without_a_configuration_there_are_defaults(hub: FakeGitHub, tmp_path: Path) -> None:
    bench = Bench.make(hub, tmp_path)
    bench.repo.commit({"regbot.toml": None})
    bench.update()
    assert github_settings(bench.checkout) == GitHub()


def test_one_label_of_a_verdict_is_set_and_the_others_go(hub: FakeGitHub, tmp_path: Path) -> None:
    bench = Bench.make(hub, tmp_path)
    number = bench.pull()
    names = {"FAIL": "perf: worse", "PASS": "perf: same"}
    bench.repo.label(number, "ann", "bug")
    for status, expected in (("FAIL", "perf: worse"), ("PASS", "perf: same"), ("REVIEW", None), (None, None)):
        set_label(bench.forge, number, status, names)  # type: ignore[arg-type]
        assert bench.repo.labels(number) == ["bug", *([expected] if expected else [])]
    asked = len(hub.requests)
    set_label(bench.forge, number, "FAIL", {})
    assert len(hub.requests) == asked


def hung(session: Session, *places: tuple[str, int], arm: str = "head") -> Session:
    ranks = [
        RankHang(rank=n, sign=True, answered=True, at=Frame(file=file, line=line, function="dispatch\x1b[31m"))
        for n, (file, line) in enumerate(places)
    ]

    def change(run: Run) -> Run:
        if run.arm.name != arm:
            return run
        return run.model_copy(update={"outcome": "hung", "hang": Hang(ranks=ranks, text="rank 1 is missing")})

    return session.model_copy(update={"runs": [change(run) for run in session.runs]})


def noted(session: Session) -> list[tuple[str, int, str]]:
    found = annotations(judge(session, parse_config("version = 1", "x")), session)
    return [(each.path, each.line, each.message) for each in found]


def test_a_head_that_hung_is_annotated_where_its_ranks_stood() -> None:
    found = noted(hung(session_of([]), ("src/moe.py", 17), ("src/moe.py", 17), ("src/router.py", 4)))
    assert [(path, line) for path, line, _ in found] == [("src/moe.py", 17), ("src/router.py", 4)]
    assert found[0][2].startswith("2 ranks stood in dispatch, as the ranks themselves told")


@pytest.mark.parametrize(
    "path", ["/etc/passwd.py", "../x.py", "a/../../x.py", "./x.py", "a\n.py", "x.sh", "", "a\u202e.py"]
)
def test_a_path_that_may_lead_elsewhere_is_no_annotation(path: str) -> None:
    assert noted(hung(session_of([]), (path, 3))) == []


def test_a_base_that_hung_and_findings_without_a_line_are_no_annotations() -> None:
    assert noted(hung(session_of([]), ("src/moe.py", 17), arm="base")) == []
    assert noted(session_of([])) == []


def test_there_are_never_more_annotations_than_github_takes_at_once() -> None:
    assert len(noted(hung(session_of([]), *((f"m{n}.py", n + 1) for n in range(200))))) == MOST


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
    assert github_settings(bench.checkout).protected == [*GitHub().protected, *patterns]
    bench.repo.commit({"regbot.toml": None})
    bench.update()
    assert github_settings(bench.checkout).protected == [*GitHub().protected, *patterns]


def test_a_changed_wheel_of_regbot_is_a_protected_file() -> None:
    wheel = "vendor/regbot-1-py3-none-any.whl"
    assert covers(f"{wheel}/**", wheel)
    assert covers("vendor/regbot/**", "vendor/regbot/regbot/cli.py")
    assert not covers("vendor/regbot/**", "vendor/regbot-other/cli.py")
