"""The table [github] of regbot.toml."""

from pathlib import Path

import pytest

from github_fake import FakeGitHub
from github_fake.fixtures import hub as hub
from regbot.github.base_branch import load_github_settings
from regbot.records.config import GitHub
from support.forge_cases import Bench

DOCS = Path(__file__).parents[1].parent / "docs" / "configuration.md"


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
