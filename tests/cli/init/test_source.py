"""``regbot init``: the source from which the workflows install regbot. It is never a bare name."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from regbot.cli.init import flow
from regbot.github import source, templates
from regbot.records.config import ConfigError
from support.git_repos import Repository
from support.init_cases import (
    ALL,
    MODULE,
    SOURCE,
    SOURCE_COMMAND,
    actions,
    command,
    init,
    installed,
    repository,
    workflow,
)
from support.init_cases import _installed_from_nowhere as _installed_from_nowhere


def every_source(repo: Repository) -> dict[str, str]:
    return {
        name: installed_source
        for name in ALL
        for installed_source in templates.install_sources(workflow(repo, name).read_text())
    }


@pytest.mark.parametrize(
    "word", ["regbot", "regbot==1", "regbot[smoke]>=0.1", "Regbot", "torch", " regbot ; python_version>'3'"]
)
def test_a_bare_name_is_refused_as_a_source(word: str, tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    with pytest.raises(ConfigError, match="somebody else's"):
        init(repo, source=word)
    assert installed(repo) == {}


@pytest.mark.parametrize(
    "word",
    [
        f"regbot-moe @ git+https://ann:key@host.example/us/regbot@{'a' * 40}",
        "regbot-moe @ git+https://host.example/us/regbot@main",
        f"regbot-moe @ git+http://host.example/us/regbot@{'a' * 40}",
        f"other @ git+https://host.example/us/regbot@{'a' * 40}",
        "regbot-moe @ https://host.example/regbot-1-py3-none-any.whl",
        f"{SOURCE}\nX: y",
        "regbot-moe @ ${{ vars.X }}",
        "/srv/regbot",
        "../regbot",
        "./vendor/regbot",
        "./src",
        "-r x",
    ],
)
def test_an_inexact_source_is_refused(word: str, tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", MODULE)
    with pytest.raises(ConfigError, match="--source"):
        init(repo, source=word)
    assert installed(repo) == {}


def test_a_path_is_written_relative_to_the_folder_of_the_job(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", {**MODULE, "vendor/regbot_moe-1-py3-none-any.whl": ""})
    report = init(repo, source="vendor/regbot_moe-1-py3-none-any.whl")
    written = every_source(repo)
    assert written.pop("regbot-static") == "./code/vendor/regbot_moe-1-py3-none-any.whl"
    assert set(written.values()) == {"./vendor/regbot_moe-1-py3-none-any.whl"}
    assert not any("--source" in step.command for step in report.next_steps)
    assert set(actions(init(repo)).values()) == {"kept", "unchanged"}


@pytest.mark.slow
def test_without_a_source_installation_fails_and_the_first_step_sets_the_source(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    report = init(repo)
    assert set(every_source(repo).values()) == {source.UNSET}
    assert report.next_steps[0].command == SOURCE_COMMAND
    step = SOURCE_COMMAND.replace("HOST/OWNER/NAME@COMMIT", f"host.example/us/regbot@{'b' * 40}")
    assert command(repo.path, *shlex.split(step)[2:]).returncode == 0
    assert set(every_source(repo).values()) == {f"regbot-moe @ git+https://host.example/us/regbot@{'b' * 40}"}
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", source.UNSET]
    process = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert process.returncode != 0
    assert "File" in process.stderr
    assert "does not exist" in process.stderr


@pytest.mark.parametrize("value", ["regbot==0.1.0", '"regbot==0.1.0"', "regbot", "regbot>=0 # ours"])
def test_an_installed_bare_name_is_replaced(value: str, tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo)
    workflow(repo, "regbot-post").write_text(workflow(repo, "regbot-post").read_text().replace(source.UNSET, value))
    assert actions(init(repo))["regbot-post"] == "upgraded"
    assert set(every_source(repo).values()) == {source.UNSET}


def test_the_default_source_follows_this_regbot_and_another_choice_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = repository(tmp_path / "r")
    monkeypatch.setattr(flow, "own_source", lambda: SOURCE)
    init(repo)
    assert set(every_source(repo).values()) == {SOURCE}
    newer = SOURCE.replace("a" * 40, "b" * 40)
    monkeypatch.setattr(flow, "own_source", lambda: newer)
    assert actions(init(repo))["regbot-gate"] == "upgraded"
    other = f"regbot-moe @ git+https://host.example/them/regbot@{'c' * 40}"
    init(repo, source=other)
    assert set(actions(init(repo)).values()) == {"kept", "unchanged"}
    monkeypatch.setattr(flow, "own_source", lambda: None)
    workflow(repo, "regbot-bisect").unlink()
    init(repo)
    assert set(every_source(repo).values()) == {other}


DIRECT_URL = {"url": "https://host.example/us/regbot.git", "vcs_info": {"vcs": "git", "commit_id": "a" * 40}}
DIRECT_URL_CASES: list[tuple[object, str | None]] = [
    (DIRECT_URL, SOURCE),
    ({**DIRECT_URL, "url": "https://ann:key@host.example/us/regbot.git"}, SOURCE),
    ({**DIRECT_URL, "subdirectory": "bot"}, f"{SOURCE}#subdirectory=bot"),
    ({**DIRECT_URL, "url": "file:///srv/regbot"}, None),
    ({**DIRECT_URL, "url": "https://host.example/us/regbot.git?key=1"}, None),
    ({**DIRECT_URL, "vcs_info": {"vcs": "git", "commit_id": "main"}}, None),
    ({"url": "file:///srv/regbot", "dir_info": {"editable": True}}, None),
    ([], None),
    (None, None),
]


@pytest.mark.parametrize(("direct_url", "expected"), DIRECT_URL_CASES)
def test_own_source_reads_pips_record_without_credentials(
    direct_url: object, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Distribution:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if direct_url is None else json.dumps(direct_url)

    monkeypatch.setattr(source, "distribution", lambda name: Distribution())
    assert source.own_source() == expected
