"""``regbot init``: what it writes, where it cannot, and its command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from init_cases import (
    ALL,
    FRAMEWORKS,
    HOSTED,
    LAYER,
    MODULE,
    ROOT,
    SOURCE,
    actions,
    command,
    config,
    init,
    installed,
    repository,
    workflow,
)
from init_cases import _installed_from_nowhere as _installed_from_nowhere
from init_cases import _no_cluster as _no_cluster
from regbot.checkout.git import CheckoutError
from regbot.cli import app
from regbot.config import ConfigError, load_config
from regbot.init import page, source, templates


def test_a_dry_run_writes_nothing_and_says_what_it_would(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    before = at.fingerprint()
    found = init(at, dry_run=True)
    assert at.fingerprint() == before
    assert set(actions(found).values()) == {"created"}
    assert "would be created  regbot.toml" in page(found)
    assert not (at.path / ".github").exists()


# ---- where it cannot be written


def test_outside_of_a_repository_it_says_what_to_do(tmp_path: Path) -> None:
    found = command(tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert "is not in a git repository; run 'git init' first, or give --repo DIR" in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_bare_repository_and_git_itself_have_no_files_to_install(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    at.git("clone", "--quiet", "--bare", ".", str(tmp_path / "bare"))
    for folder in (tmp_path / "bare", at.path / ".git"):
        with pytest.raises(CheckoutError, match="nothing can be installed there"):
            init(folder)
    with pytest.raises(CheckoutError, match="is not a folder"):
        init(tmp_path / "missing")


def test_from_a_folder_inside_it_installs_at_the_top(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    found = init(at.path / "src" / "mypkg")
    assert found.root == str(at.path)
    assert workflow(at, "regbot-static").exists()


@pytest.mark.parametrize("name", ["regbot.toml", ".github", ".github/workflows", ".github/workflows/regbot-post.yml"])
@pytest.mark.parametrize("kind", ["link", "dangling", "folder or file"])
def test_nothing_is_written_through_a_link_or_over_a_folder(name: str, kind: str, tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    outside = tmp_path / "outside"
    outside.mkdir()
    (at.path / name).parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder or file" and "." in name.lstrip("."):
        (at.path / name).mkdir()
    elif kind == "folder or file":
        (at.path / name).write_text("")
    else:
        (at.path / name).symlink_to(outside if kind == "link" else tmp_path / "gone")
    with pytest.raises(ConfigError, match="nothing was written") as caught:
        init(at, force=True)
    assert str(caught.value).startswith(name)
    assert list(outside.iterdir()) == []
    assert not (tmp_path / "gone").exists()
    assert not (at.path / "regbot.toml").is_file()


def test_a_workflow_that_is_no_text_is_left_and_replaced_by_force(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at)
    workflow(at, "regbot-post").write_bytes(b"\xff\xfe")
    post = next(file for file in init(at).files if "post" in file.path)
    assert (post.action, post.why, post.diff) == ("edited", "cannot be read as text", "")
    assert workflow(at, "regbot-post").read_bytes() == b"\xff\xfe"
    init(at, force=True)
    assert set(actions(init(at)).values()) == {"kept", "unchanged"}


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = repository(tmp_path / "r")
    init(at, version="0.0.9")
    before = installed(at)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("regbot.records.files.os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            init(at, upgrade=True, source=SOURCE)
    assert installed(at) == before
    assert not [path for path in at.path.rglob(".regbot*") if path.is_file()]


# ---- what is written


def linted(program: str, *arguments: str, at: Path) -> subprocess.CompletedProcess[str]:
    path = Path(sys.executable).parent / program
    if not path.exists():
        pytest.skip(f"there is no {program} beside {sys.executable}; it comes with regbot's extra dev")
    return subprocess.run([str(path), *arguments], cwd=at, capture_output=True, text=True, check=False)


RUNNERS = {
    "default": ({}, ["regbot"]),
    "labels": ({"labels": ["self-hosted", "gpu-h100", "on"]}, ["gpu-h100", "on"]),
    "group": ({}, []),
}


@pytest.mark.parametrize("case", RUNNERS)
def test_linters_find_nothing_in_what_is_written(case: str, tmp_path: Path) -> None:
    options, labels = RUNNERS[case]
    group = {".github/workflows/x.yaml": "    runs-on:\n      group: gpu nodes\n      labels: [self-hosted, x64]\n"}
    titan = {"torchtitan/trainer.py": "", "requirements.txt": "tyro\n", **(group if case == "group" else {})}
    at = repository(tmp_path / "r", titan)
    init(at, **options)
    assert '"numpy>=1.26" -r code/requirements.txt\n' in workflow(at, "regbot-static").read_text()
    (at.path / ".github" / "actionlint.yaml").write_text(f"self-hosted-runner:\n  labels: {json.dumps(labels)}\n")
    files = [str(workflow(at, name)) for name in sorted(ALL)]
    for program, arguments in (
        ("actionlint", ["-shellcheck=", "-pyflakes="]),
        ("check-jsonschema", ["--builtin-schema", "vendor.github-workflows"]),
        ("zizmor", ["--offline", "--no-progress", "--persona", "auditor"]),
    ):
        found = linted(program, *arguments, *files, at=at.path)
        assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("name", sorted(ALL))
def test_what_is_written_is_what_is_shipped_but_for_its_slots(name: str, tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at, labels=["gpu"], version="9.9", source=SOURCE)
    shipped = (ROOT / "workflows" / f"{name}.yml").read_text()
    _, _, written = workflow(at, name).read_text().partition("\n")
    expected = shipped.replace("[self-hosted, regbot]", "[gpu]").replace(source.UNSET, SOURCE)
    assert written == expected
    assert ("[gpu]" in written) == (name not in HOSTED)
    assert (SOURCE in written) == (name != "regbot-measure")


def test_every_workflow_that_is_shipped_is_installed() -> None:
    assert {path.stem for path in (ROOT / "workflows").glob("*.yml")} == ALL
    assert {*templates.HOSTED, *templates.NODES} == ALL


def test_a_second_file_of_one_workflow_is_pointed_out(tmp_path: Path) -> None:
    at = repository(tmp_path / "r", {**MODULE, ".github/workflows/regbot-gate.yaml": "on: push\n"})
    for only_static in (False, True):
        (warning,) = init(at, only_static=only_static).warnings
        assert warning.startswith(".github/workflows/regbot-gate.yaml: GitHub runs it beside regbot-gate.yml")
    assert installed(at)["regbot-gate.yml"]
    (at.path / ".github/workflows/regbot-gate.yaml").unlink()
    assert init(at).warnings == []


def test_a_branch_is_shown_without_characters_that_a_terminal_obeys(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    at.git("checkout", "-q", "-b", "x\u009b31m\u202eevil")
    at.git("branch", "-D", "main")
    shown = page(init(at))
    assert not {"\u009b", "\u202e"} & set(shown)
    assert "Bring it to x31mevil:" in shown


def test_shadow_mode_is_switched_on_or_suggested(tmp_path: Path) -> None:
    on, off = repository(tmp_path / "on"), repository(tmp_path / "off")
    assert not any("shadow" in step.text for step in init(on, shadow=True).next_steps)
    assert any("shadow = true" in step.text for step in init(off).next_steps)
    assert (config(on).github.shadow, config(off).github.shadow) == (True, False)
    suggested = installed(off)["regbot.toml"]
    assert "# [github]\n# shadow = true" in suggested


def test_what_is_suggested_in_comments_is_valid_too(tmp_path: Path) -> None:
    for case, (files, _, _) in FRAMEWORKS.items():
        at = repository(tmp_path / case, {**files, "run.slurm": ""})
        init(at)
        lines = installed(at)["regbot.toml"].splitlines()
        tables = [number for number, line in enumerate(lines) if line.startswith("# [")]
        assert tables
        for number in tables:
            end = next((i for i in range(number, len(lines)) if not lines[i].startswith("# ")), len(lines))
            lines[number:end] = [line.removeprefix("# ") for line in lines[number:end]]
        (at.path / "regbot.toml").write_text("\n".join(lines))
        load_config(at.path / "regbot.toml")


def test_packages_that_the_hosted_job_would_lack_are_named(tmp_path: Path) -> None:
    wanted = '[project]\nname = "x"\ndependencies = ["torch>=2.8", "einops", "Numpy", "tiktoken", "einops>1"]\n'
    found = init(repository(tmp_path / "r", {**MODULE, "pyproject.toml": wanted}))
    assert any("(einops, tiktoken)" in step.text for step in found.next_steps)
    titan = {"torchtitan/trainer.py": "", "requirements.txt": "tyro\n"}
    found = init(repository(tmp_path / "t", titan))
    assert not any("tyro" in step.text for step in found.next_steps)


# ---- the command


def test_json_is_one_document_and_exit_codes_tell_what_waits(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    found = command(at.path, "--json", "--label", "gpu")
    assert (found.returncode, found.stderr) == (0, "")
    document = json.loads(found.stdout)
    assert document["schema"] == "regbot/init@1"
    assert document["next_steps"][-4]["command"] == "regbot ledger trace moe:mixtral-8x7b"
    assert command(at.path).returncode == 0
    workflow(at, "regbot-post").write_text("on: push\n")
    assert command(at.path, "--json").returncode == 1
    assert command(at.path, "--dry-run", "--force").returncode == 0


def test_every_option_reaches_the_flow(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    words = ["init", "--repo", str(at.path), "--only-static", "--shadow", "--branch", "trunk", "--dry-run"]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    assert "would be created  .github/workflows/regbot-gate.yml" in found.stdout
    assert "measure" not in found.stdout
    assert "trunk" in found.stdout
    assert "'trunk' here yet" in found.stdout
    found = CliRunner().invoke(app, ["init", "--repo", str(at.path), "--only-static", "--label", "x"])
    assert found.exit_code == 2


def test_files_that_are_made_to_be_slow_or_to_crash_a_parser_do_not(tmp_path: Path) -> None:
    texts = ["\n" * 900_000, "class " + "MoE" * 300_000 + "!", "def build_layer(" + " " * 900_000]
    texts += [f"{LAYER}x = {'-' * 300_000}1\n", f"{LAYER}x = a{'.b' * 200_000}\n", f"{LAYER}x = {'[' * 100_000}\n"]
    at = repository(tmp_path / "r", {f"f{number}.py": text for number, text in enumerate(texts)})
    at.commit(
        "more",
        {".github/workflows/a.yml": "runs-on: " + "[ #" * 200_000, "requirements.txt": "git+x://" + "/a" * 300_000},
    )
    init(at)
    assert config(at).workloads["moe"].adapter == "module"


def test_too_much_code_is_looked_at_in_part_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regbot.init.entries.MOST_PYTHON_BYTES", 10)
    found = init(repository(tmp_path / "r", {"a.py": LAYER, "b/c.py": LAYER}))
    assert found.warnings == ["2 Python files: only the first 1 were looked at"]
