"""``regbot init``: the files that it writes, its refusals, and its command."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regbot.checkout.git import CheckoutError
from regbot.cli.app import app
from regbot.config import PLACEHOLDER_ENTRY, ConfigError, load_config
from regbot.init import page, source, templates
from support.init_cases import (
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
from support.init_cases import _installed_from_nowhere as _installed_from_nowhere
from support.init_cases import _no_cluster as _no_cluster


def test_a_dry_run_writes_nothing_and_lists_the_files(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    before = repo.fingerprint()
    result = init(repo, dry_run=True)
    assert repo.fingerprint() == before
    assert set(actions(result).values()) == {"created"}
    assert "would be created  regbot.toml" in page(result)
    assert not (repo.path / ".github").exists()


# ---- refusals


def test_outside_of_a_repository_it_says_what_to_do(tmp_path: Path) -> None:
    result = command(tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert "is not in a git repository; run 'git init' first, or give --repo DIR" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_bare_repository_and_git_itself_have_no_files_to_install(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    repo.git("clone", "--quiet", "--bare", ".", str(tmp_path / "bare"))
    for folder in (tmp_path / "bare", repo.path / ".git"):
        with pytest.raises(CheckoutError, match="regbot cannot be installed there"):
            init(folder)
    with pytest.raises(CheckoutError, match="is not a folder"):
        init(tmp_path / "missing")


def test_from_a_folder_inside_it_installs_at_the_top(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    result = init(repo.path / "src" / "mypkg")
    assert result.root == str(repo.path)
    assert workflow(repo, "regbot-static").exists()


@pytest.mark.parametrize("name", ["regbot.toml", ".github", ".github/workflows", ".github/workflows/regbot-post.yml"])
@pytest.mark.parametrize("kind", ["link", "dangling", "folder or file"])
def test_nothing_is_written_through_a_link_or_over_a_folder(name: str, kind: str, tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    outside = tmp_path / "outside"
    outside.mkdir()
    (repo.path / name).parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder or file" and "." in name.lstrip("."):
        (repo.path / name).mkdir()
    elif kind == "folder or file":
        (repo.path / name).write_text("")
    else:
        (repo.path / name).symlink_to(outside if kind == "link" else tmp_path / "gone")
    with pytest.raises(ConfigError, match="nothing was written") as caught:
        init(repo, force=True)
    assert str(caught.value).startswith(name)
    assert list(outside.iterdir()) == []
    assert not (tmp_path / "gone").exists()
    assert not (repo.path / "regbot.toml").is_file()


def test_a_workflow_that_is_not_text_is_kept_and_replaced_by_force(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo)
    workflow(repo, "regbot-post").write_bytes(b"\xff\xfe")
    post = next(file for file in init(repo).files if "post" in file.path)
    assert (post.action, post.why, post.diff) == ("edited", "cannot be read as text", "")
    assert workflow(repo, "regbot-post").read_bytes() == b"\xff\xfe"
    init(repo, force=True)
    assert set(actions(init(repo)).values()) == {"kept", "unchanged"}


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository(tmp_path / "r")
    init(repo, version="0.0.9")
    before = installed(repo)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("regbot.records.files.os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            init(repo, upgrade=True, source=SOURCE)
    assert installed(repo) == before
    assert not [path for path in repo.path.rglob(".regbot*") if path.is_file()]


# ---- written files


def linted(program: str, *arguments: str, repo: Path) -> subprocess.CompletedProcess[str]:
    path = Path(sys.executable).parent / program
    if not path.exists():
        pytest.skip(f"there is no {program} beside {sys.executable}; it comes with regbot's extra dev")
    return subprocess.run([str(path), *arguments], cwd=repo, capture_output=True, text=True, check=False)


RUNNERS = {
    "default": ({}, ["regbot"]),
    "labels": ({"labels": ["self-hosted", "gpu-h100", "on"]}, ["gpu-h100", "on"]),
    "group": ({}, []),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", RUNNERS)
def test_linters_accept_the_written_workflows(case: str, tmp_path: Path) -> None:
    options, labels = RUNNERS[case]
    group = {".github/workflows/x.yaml": "    runs-on:\n      group: gpu nodes\n      labels: [self-hosted, x64]\n"}
    titan = {"torchtitan/trainer.py": "", "requirements.txt": "tyro\n", **(group if case == "group" else {})}
    repo = repository(tmp_path / "r", titan)
    init(repo, **options)
    assert '"numpy>=1.26" -r code/requirements.txt torchdata ' in workflow(repo, "regbot-static").read_text()
    (repo.path / ".github" / "actionlint.yaml").write_text(f"self-hosted-runner:\n  labels: {json.dumps(labels)}\n")
    files = [str(workflow(repo, name)) for name in sorted(ALL)]
    for program, arguments in (
        ("actionlint", ["-shellcheck=", "-pyflakes="]),
        ("check-jsonschema", ["--builtin-schema", "vendor.github-workflows"]),
        ("zizmor", ["--offline", "--no-progress", "--persona", "auditor"]),
    ):
        result = linted(program, *arguments, *files, repo=repo.path)
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_written_workflow_differs_from_the_shipped_one_only_in_its_slots(name: str, tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo, labels=["gpu"], version="9.9", source=SOURCE)
    shipped = (ROOT / "workflows" / f"{name}.yml").read_text()
    _, _, written = workflow(repo, name).read_text().partition("\n")
    expected = shipped.replace("[self-hosted, regbot]", "[gpu]").replace(source.UNSET, SOURCE)
    assert written == expected
    assert ("[gpu]" in written) == (name not in HOSTED)
    assert (SOURCE in written) == (name != "regbot-measure")


def test_every_shipped_workflow_is_installed() -> None:
    assert {path.stem for path in (ROOT / "workflows").glob("*.yml")} == ALL
    assert {*templates.HOSTED_WORKFLOWS, *templates.NODE_WORKFLOWS} == ALL


def test_a_yaml_copy_of_a_workflow_gives_a_warning(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", {**MODULE, ".github/workflows/regbot-gate.yaml": "on: push\n"})
    for only_static in (False, True):
        (warning,) = init(repo, only_static=only_static).warnings
        assert warning.startswith(".github/workflows/regbot-gate.yaml: GitHub runs this file and also regbot-gate.yml")
    assert installed(repo)["regbot-gate.yml"]
    (repo.path / ".github/workflows/regbot-gate.yaml").unlink()
    assert init(repo).warnings == []


def test_a_branch_name_is_printed_without_control_characters(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    repo.git("checkout", "-q", "-b", "x\u009b31m\u202eevil")
    repo.git("branch", "-D", "main")
    text = page(init(repo))
    assert not {"\u009b", "\u202e"} & set(text)
    assert "Merge the files into x31mevil;" in text


def test_shadow_mode_is_switched_on_or_suggested(tmp_path: Path) -> None:
    on, off = repository(tmp_path / "on"), repository(tmp_path / "off")
    assert not any("shadow" in step.text for step in init(on, shadow=True).next_steps)
    assert any("shadow = true" in step.text for step in init(off).next_steps)
    assert (config(on).github.shadow, config(off).github.shadow) == (True, False)
    suggested = installed(off)["regbot.toml"]
    assert "# [github]\n# shadow = true" in suggested


def test_an_app_for_the_check_run_is_recommended_before_the_check_is_required(tmp_path: Path) -> None:
    report = init(repository(tmp_path / "r"))
    (step,) = [step for step in report.next_steps if "GitHub App" in step.text]
    assert "Before you require the check 'regbot'" in step.text
    assert "(docs/security.md, step 6)" in step.text
    assert "### 6. An App for the check\n" in (ROOT / "docs" / "security.md").read_text()
    assert "docs/... are pages of regbot" in page(report)


def test_every_run_warns_while_the_placeholder_is_in_the_configuration(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", {"README.md": "A repository.\n"})
    for options in ({"dry_run": True}, {}, {"source": SOURCE, "upgrade": True}, {}):
        report = init(repo, **options)
        (warning,) = report.warnings
        words = f"the workload moe still has the placeholder {PLACEHOLDER_ENTRY}, and every"
        place = re.match(r"regbot\.toml:(\d+): ", warning)
        assert place is not None
        assert warning[place.end() :].startswith(words)
        if not options.get("dry_run"):
            assert PLACEHOLDER_ENTRY in installed(repo)["regbot.toml"].splitlines()[int(place[1]) - 1]
        assert "docs/... are pages of regbot" in page(report)
    assert report.next_steps == []
    text = installed(repo)["regbot.toml"]
    (repo.path / "regbot.toml").write_text(text.replace(PLACEHOLDER_ENTRY, "ours.moe:build_layer"))
    assert init(repo).warnings == []


def test_suggestions_in_comments_are_valid_configuration(tmp_path: Path) -> None:
    for case, (files, _, _) in FRAMEWORKS.items():
        repo = repository(tmp_path / case, {**files, "run.slurm": ""})
        init(repo)
        lines = installed(repo)["regbot.toml"].splitlines()
        tables = [number for number, line in enumerate(lines) if line.startswith("# [")]
        assert tables
        for number in tables:
            end = next((i for i in range(number, len(lines)) if not lines[i].startswith("# ")), len(lines))
            lines[number:end] = [line.removeprefix("# ") for line in lines[number:end]]
        (repo.path / "regbot.toml").write_text("\n".join(lines))
        load_config(repo.path / "regbot.toml")


def test_packages_that_the_hosted_job_lacks_are_listed(tmp_path: Path) -> None:
    wanted = '[project]\nname = "x"\ndependencies = ["torch>=2.8", "einops", "Numpy", "tiktoken", "einops>1"]\n'
    result = init(repository(tmp_path / "r", {**MODULE, "pyproject.toml": wanted}))
    assert any("(einops, tiktoken)" in step.text for step in result.next_steps)
    titan = {"torchtitan/trainer.py": "", "requirements.txt": "tyro\n"}
    result = init(repository(tmp_path / "t", titan))
    assert not any("tyro" in step.text for step in result.next_steps)


# ---- the command


@pytest.mark.slow
def test_json_is_one_document_and_exit_code_1_means_a_newer_version(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    result = command(repo.path, "--json", "--label", "gpu")
    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert document["schema"] == "regbot/init@1"
    assert "regbot ledger trace moe:mixtral-8x7b" in [step["command"] for step in document["next_steps"]]
    assert command(repo.path).returncode == 0
    workflow(repo, "regbot-post").write_text("on: push\n")
    assert command(repo.path, "--json").returncode == 1
    assert command(repo.path, "--dry-run", "--force").returncode == 0


def test_every_option_reaches_the_flow(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    words = ["init", "--repo", str(repo.path), "--only-static", "--shadow", "--branch", "trunk", "--dry-run"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "would be created  .github/workflows/regbot-gate.yml" in result.stdout
    assert "measure" not in result.stdout
    assert "trunk" in result.stdout
    assert "'trunk' here yet" in result.stdout
    result = CliRunner().invoke(app, ["init", "--repo", str(repo.path), "--only-static", "--label", "x"])
    assert result.exit_code == 2


def test_files_built_to_slow_down_or_crash_a_parser_are_harmless(tmp_path: Path) -> None:
    texts = ["\n" * 900_000, "class " + "MoE" * 300_000 + "!", "def build_layer(" + " " * 900_000]
    texts += [f"{LAYER}x = {'-' * 300_000}1\n", f"{LAYER}x = a{'.b' * 200_000}\n", f"{LAYER}x = {'[' * 100_000}\n"]
    repo = repository(tmp_path / "r", {f"f{number}.py": text for number, text in enumerate(texts)})
    repo.commit(
        "more",
        {".github/workflows/a.yml": "runs-on: " + "[ #" * 200_000, "requirements.txt": "git+x://" + "/a" * 300_000},
    )
    init(repo)
    assert config(repo).workloads["moe"].adapter == "module"


def test_only_part_of_too_much_code_is_read_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regbot.init.entries.MAX_PYTHON_BYTES", 10)
    result = init(repository(tmp_path / "r", {"a.py": LAYER, "b/c.py": LAYER}))
    assert result.warnings == ["2 Python files: only the first 1 were read"]
