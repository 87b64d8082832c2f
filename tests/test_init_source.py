"""``regbot init``: where the workflows install regbot from, which is never a name."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from git_repos import Repository
from init_cases import ALL, MODULE, SOURCE, UNSAID, actions, command, init, installed, repository, workflow
from init_cases import _installed_from_nowhere as _installed_from_nowhere
from init_cases import _no_cluster as _no_cluster
from regbot.config import ConfigError
from regbot.init import flow, source, templates

# ---- where regbot is from


def every_source(at: Repository) -> dict[str, str]:
    return {name: each for name in ALL for each in templates.sources(workflow(at, name).read_text())}


@pytest.mark.parametrize(
    "word", ["regbot", "regbot==1", "regbot[smoke]>=0.1", "Regbot", "torch", " regbot ; python_version>'3'"]
)
def test_a_name_that_an_index_would_be_asked_for_is_refused(word: str, tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    with pytest.raises(ConfigError, match="somebody else's"):
        init(at, source=word)
    assert installed(at) == {}


@pytest.mark.parametrize(
    "word",
    [
        f"regbot @ git+https://ann:key@host.example/us/regbot@{'a' * 40}",
        "regbot @ git+https://host.example/us/regbot@main",
        f"regbot @ git+http://host.example/us/regbot@{'a' * 40}",
        f"other @ git+https://host.example/us/regbot@{'a' * 40}",
        "regbot @ https://host.example/regbot-1-py3-none-any.whl",
        f"{SOURCE}\nX: y",
        "regbot @ ${{ vars.X }}",
        "/srv/regbot",
        "../regbot",
        "./vendor/regbot",
        "./vendor/other-1-py3-none-any.whl",
        "./vendor/regbot.whl",
        "./src",
        "-r x",
    ],
)
def test_a_source_that_says_not_exactly_what_is_meant_is_refused(word: str, tmp_path: Path) -> None:
    wheels = {"vendor/other-1-py3-none-any.whl": "", "vendor/regbot.whl": ""}
    at = repository(tmp_path / "r", {**MODULE, **wheels})
    with pytest.raises(ConfigError, match="--source"):
        init(at, source=word)
    assert installed(at) == {}


def test_a_path_is_written_as_each_job_sees_it(tmp_path: Path) -> None:
    at = repository(tmp_path / "r", {**MODULE, "vendor/regbot-1-py3-none-any.whl": ""})
    found = init(at, source="vendor/regbot-1-py3-none-any.whl")
    written = every_source(at)
    assert written.pop("regbot-static") == "./code/vendor/regbot-1-py3-none-any.whl"
    assert set(written.values()) == {"./vendor/regbot-1-py3-none-any.whl"}
    assert not any("--source" in step.command for step in found.next_steps)
    assert set(actions(init(at)).values()) == {"kept", "unchanged"}


def test_without_a_source_nothing_can_be_installed_and_the_first_step_says_what_to_type(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    found = init(at)
    assert set(every_source(at).values()) == {source.UNSET}
    assert found.next_steps[0].command == UNSAID
    step = UNSAID.replace("HOST/OWNER/NAME@COMMIT", f"host.example/us/regbot@{'b' * 40}")
    assert command(at.path, *shlex.split(step)[2:]).returncode == 0
    assert set(every_source(at).values()) == {f"regbot @ git+https://host.example/us/regbot@{'b' * 40}"}
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", source.UNSET]
    ended = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "File" in ended.stderr
    assert "does not exist" in ended.stderr


@pytest.mark.parametrize("value", ["regbot==0.1.0", '"regbot==0.1.0"', "regbot", "regbot>=0 # ours"])
def test_an_installed_name_counts_as_nothing_and_is_warned_of(value: str, tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at)
    workflow(at, "regbot-post").write_text(workflow(at, "regbot-post").read_text().replace(source.UNSET, value))
    found = init(at)
    assert actions(found)["regbot-post"] == "outdated"
    assert any("regbot-post.yml installs" in each and "somebody else's package" in each for each in found.warnings)
    init(at, upgrade=True)
    assert set(every_source(at).values()) == {source.UNSET}


def test_what_regbot_is_from_is_the_default_and_follows_it_while_another_choice_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = repository(tmp_path / "r")
    monkeypatch.setattr(flow, "own_source", lambda: SOURCE)
    init(at)
    assert set(every_source(at).values()) == {SOURCE}
    newer = SOURCE.replace("a" * 40, "b" * 40)
    monkeypatch.setattr(flow, "own_source", lambda: newer)
    assert actions(init(at))["regbot-gate"] == "outdated"
    other = f"regbot @ git+https://host.example/them/regbot@{'c' * 40}"
    init(at, source=other, upgrade=True)
    assert set(actions(init(at)).values()) == {"kept", "unchanged"}
    monkeypatch.setattr(flow, "own_source", lambda: None)
    workflow(at, "regbot-bisect").unlink()
    init(at)
    assert set(every_source(at).values()) == {other}


SAID = {"url": "https://host.example/us/regbot.git", "vcs_info": {"vcs": "git", "commit_id": "a" * 40}}
DIRECT: list[tuple[object, str | None]] = [
    (SAID, SOURCE),
    ({**SAID, "url": "https://ann:key@host.example/us/regbot.git"}, SOURCE),
    ({**SAID, "subdirectory": "bot"}, f"{SOURCE}#subdirectory=bot"),
    ({**SAID, "url": "file:///srv/regbot"}, None),
    ({**SAID, "url": "https://host.example/us/regbot.git?key=1"}, None),
    ({**SAID, "vcs_info": {"vcs": "git", "commit_id": "main"}}, None),
    ({"url": "file:///srv/regbot", "dir_info": {"editable": True}}, None),
    ([], None),
    (None, None),
]


@pytest.mark.parametrize(("said", "expected"), DIRECT)
def test_what_pip_wrote_down_is_read_and_no_credentials_are(
    said: object, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Distribution:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if said is None else json.dumps(said)

    monkeypatch.setattr(source, "distribution", lambda name: Distribution())
    assert source.own_source() == expected
