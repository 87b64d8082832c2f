"""The table [github] of regbot.toml, and labels."""

from pathlib import Path

import pytest

from github_fake import FakeGitHub
from github_fake.fixtures import hub as hub
from regbot.github.base_branch import load_github_settings
from regbot.github.publication import set_label
from regbot.records.config import GitHub
from regbot.records.config.globs import matches_glob
from support.forge_cases import Bench

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
