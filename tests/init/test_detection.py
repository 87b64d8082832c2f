"""``regbot init``: detection of code, runners and branches, also in hostile repositories."""

import json
import os
import re
from pathlib import Path

import pytest

from regbot.checkout.git import CheckoutError
from regbot.config import PLACEHOLDER_ENTRY, ConfigError
from regbot.init import page, templates
from regbot.init.flow import InitReport
from regbot.init.runners import Runner, choose_runner, find_self_hosted
from support.git_repos import Repository
from support.init_cases import FRAMEWORKS, LAYER, MODULE, actions, config, init, installed, repository, workflow
from support.init_cases import _installed_from_nowhere as _installed_from_nowhere
from support.init_cases import _no_cluster as _no_cluster

# ---- code


@pytest.mark.parametrize("case", FRAMEWORKS)
def test_every_framework_gets_its_workload(case: str, tmp_path: Path) -> None:
    files, name, expected = FRAMEWORKS[case]
    repo = repository(tmp_path / "r", files)
    init(repo)
    workloads = config(repo).workloads
    assert list(workloads) == [name]
    report = workloads[name].model_dump()
    assert {key: report[key] for key in expected} == expected


def test_a_frameworks_own_source_precedes_included_and_required_frameworks(tmp_path: Path) -> None:
    files = {
        "megatron/core/__init__.py": "",
        "src/maxtext/configs/base.yml": "",
        "pyproject.toml": '[project]\ndependencies = ["torchtitan"]\n',
    }
    report = init(repository(tmp_path / "r", files))
    (framework,) = [fact for fact in report.facts if fact.what == "framework"]
    assert framework.value == "maxtext"
    assert [warning.split(" (")[0] for warning in report.warnings] == ["also found: megatron", "also found: torchtitan"]


def test_similar_folder_names_are_no_framework(tmp_path: Path) -> None:
    files = {"nottorchtitan/train.py": "", "my_megatron/core/__init__.py": "", "README.txt": "torchtitan is great\n"}
    repo = repository(tmp_path / "r", files)
    init(repo)
    assert config(repo).workloads["moe"].entry == PLACEHOLDER_ENTRY


def test_maxtext_of_the_older_layout_is_named(tmp_path: Path) -> None:
    report = init(repository(tmp_path / "r", {"MaxText/configs/base.yml": ""}))
    assert "older layout" in report.warnings[0]


def test_the_configuration_says_that_an_installed_framework_is_not_the_repositorys_code(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", {"requirements.txt": "torchtitan\n"})
    init(repo)
    assert "regbot traces the installed package, not code of this repository" in installed(repo)["regbot.toml"]


def test_the_comment_on_shapes_matches_the_defaults_of_a_workload(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", MODULE)
    init(repo)
    (shapes_line,) = [line for line in installed(repo)["regbot.toml"].splitlines() if line.startswith("shapes")]
    assert shapes_line.endswith("  # full size on two meshes each, unless variant or meshes is set")
    moe = config(repo).workloads["moe"]
    assert (moe.variant, len(moe.meshes)) == ("full", 2)


PLACES = {
    "top": ("moe.py", {}, "moe:build_layer", "."),
    "package": ("pkg/moe.py", {"pkg/__init__.py": ""}, "pkg.moe:build_layer", "."),
    "package-file": ("pkg/__init__.py", {}, "pkg:build_layer", "."),
    "namespace": ("moe/layer.py", {}, "moe.layer:build_layer", "."),
    "src": ("src/pkg/a/moe.py", {"pyproject.toml": ""}, "pkg.a.moe:build_layer", "src"),
    "src-is-a-package": ("src/moe.py", {"src/__init__.py": ""}, "src.moe:build_layer", "."),
    "declared": (
        "python/pkg/moe.py",
        {"pyproject.toml": '[tool.setuptools.packages.find]\nwhere = ["python"]\n'},
        "pkg.moe:build_layer",
        "python",
    ),
    "package-dir": (
        "code/pkg/moe.py",
        {"pyproject.toml": '[tool.setuptools.package-dir]\n"" = "code"\n'},
        "pkg.moe:build_layer",
        "code",
    ),
    "poetry": (
        "lib/pkg/moe.py",
        {"pyproject.toml": '[[tool.poetry.packages]]\ninclude = "pkg"\nfrom = "lib"\n'},
        "pkg.moe:build_layer",
        "lib",
    ),
    "monorepo": (
        "projects/train/src/pkg/moe.py",
        {"projects/train/pyproject.toml": "", "projects/train/src/pkg/__init__.py": ""},
        "pkg.moe:build_layer",
        "projects/train/src",
    ),
    "monorepo-without-src": (
        "projects/train/moe.py",
        {"projects/train/setup.py": ""},
        "moe:build_layer",
        "projects/train",
    ),
    "broken-metadata": ("src/pkg/moe.py", {"pyproject.toml": "= nonsense"}, "pkg.moe:build_layer", "src"),
}


@pytest.mark.parametrize("case", PLACES)
def test_the_module_name_is_relative_to_the_source_root(case: str, tmp_path: Path) -> None:
    name, others, entry, root = PLACES[case]
    repo = repository(tmp_path / "r", {name: LAYER, **others})
    init(repo)
    workload = config(repo).workloads["moe"]
    assert (workload.entry, workload.source_roots) == (entry, [root])


@pytest.mark.parametrize(
    "text",
    [
        "def build_layer(config, mesh): ...\n",
        "def build_layer(config, mesh, device, dtype, more): ...\n",
        "def build_layer(config, mesh, device, dtype, *, more): ...\n",
        "async def build_layer(config, mesh, device, dtype): ...\n",
        "class A:\n    def build_layer(config, mesh, device, dtype): ...\n",
        "def build_layer(config, mesh, device, dtype): ...\ndef broken(:\n",
        "def build_layer(" + "(" * 5000,
        "# def build_layer(config, mesh, device, dtype)\n",
        "def build(config, mesh, device): ...\n",
    ],
)
def test_a_function_that_does_not_accept_the_contracts_arguments_is_no_entry(text: str, tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", {"pkg.py": text})
    init(repo)
    assert config(repo).workloads["moe"].entry == PLACEHOLDER_ENTRY


def test_other_parameter_names_and_defaults_are_accepted_if_four_arguments_fit(tmp_path: Path) -> None:
    repo = repository(tmp_path / "a", {"pkg.py": "def build_layer(c, m, dev, dt=None, seed=0, *, x=1): ...\n"})
    init(repo)
    assert config(repo).workloads["moe"].entry == "pkg:build_layer"
    repo = repository(
        tmp_path / "b", {"pkg.py": "def make_moe(\n    config: dict,\n    mesh,\n    device,\n    dtype\n): ...\n"}
    )
    init(repo)
    assert config(repo).workloads["moe"].entry == "pkg:make_moe"


def test_training_code_precedes_tests_and_examples_which_are_listed(tmp_path: Path) -> None:
    files = {"tests/layers.py": LAYER, "examples/a.py": LAYER, "deep/er/than/b.py": LAYER}
    repo = repository(tmp_path / "r", files)
    init(repo)
    assert config(repo).workloads["moe"].entry == "deep.er.than.b:build_layer"
    assert "# also found: examples.a:build_layer in examples/a.py\n" in installed(repo)["regbot.toml"]


def test_a_frameworks_own_build_layer_is_ignored(tmp_path: Path) -> None:
    files = {"torchtitan/trainer.py": "", "torchtitan/models/m.py": "def build_layer(args, index, norm, bias): ...\n"}
    repo = repository(tmp_path / "r", files)
    init(repo)
    assert list(config(repo).workloads) == ["titan"]


def test_without_a_layer_or_framework_moe_classes_are_suggested(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", {"net/moe.py": "class SparseMoE(nn.Module):\n    pass\n"})
    report = init(repo)
    assert "# It could return SparseMoE of net/moe.py.\n" in installed(repo)["regbot.toml"]
    assert "Write build_layer" in report.next_steps[1].text


def test_ignored_files_are_not_read(tmp_path: Path) -> None:
    files = {".gitignore": ".venv/\n", ".venv/lib/torchtitan/trainer.py": "", ".venv/lib/x.py": LAYER}
    repo = repository(tmp_path / "r", files)
    init(repo)
    assert config(repo).workloads["moe"].entry == PLACEHOLDER_ENTRY


def test_a_copy_of_regbot_in_the_repository_is_ignored(tmp_path: Path) -> None:
    files = {
        "vendor/regbot/pyproject.toml": '[project]\nname = "regbot"\ndependencies = ["torchtitan"]\n',
        "vendor/regbot/regbot/layer.py": LAYER,
    }
    text = page(init(repository(tmp_path / "r", files)))
    assert re.search(r"^layer +none ", text, re.MULTILINE)
    assert "vendor" not in text
    assert "torchtitan" not in text


def test_uncommitted_files_are_read(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", {"README.md": ""})
    (repo.path / "moe.py").write_text(LAYER)
    init(repo)
    assert config(repo).workloads["moe"].entry == "moe:build_layer"


def test_init_works_in_an_empty_repository_without_a_commit(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "r")
    report = init(repo)
    assert set(actions(report).values()) == {"created"}
    assert config(repo).workloads["moe"].entry == PLACEHOLDER_ENTRY


# ---- unreadable and hostile


def test_unreadable_files_are_skipped(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", {**MODULE, "swapped/secret.py": ""})
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.py").write_text(LAYER)
    (repo.path / "swapped" / "secret.py").unlink()
    (repo.path / "swapped").rmdir()
    (repo.path / "swapped").symlink_to(outside)
    (repo.path / "latin.py").write_bytes(b"# \xff\n" + LAYER.encode())
    (repo.path / "huge.py").write_text(LAYER + "#" * 1_000_001)
    (repo.path / "link.py").symlink_to(outside / "secret.py")
    (repo.path / "folder").symlink_to(outside)
    (repo.path / "gone.py").symlink_to(outside / "gone.py")
    (repo.path / "null.py").write_text(LAYER + "\0")
    os.mkfifo(repo.path / "pipe.py")
    init(repo)
    assert config(repo).workloads["moe"].entry == "mypkg.moe:build_layer"
    assert "also found" not in installed(repo)["regbot.toml"]


HOSTILE = [
    'a"]\nentry = "evil',
    "a\n[sandbox]\nuntrusted = false\n",
    "\x1b]0;evil\x07",
    "${{ github.token }}",
    "$(touch CANARY)",
    "\u202eevil",
    "'; touch CANARY; '",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_reach_no_file_and_no_terminal(name: str, tmp_path: Path) -> None:
    name = name.replace("/", "_")
    files = {
        f"{name}/moe.py": LAYER,
        f"{name}/torchtitan/trainer.py": "",
        f"{name}.py": LAYER,
        "net.py": "class MoE(A): ...\n",
    }
    repo = repository(tmp_path / "r", files)
    report = init(repo)
    assert not config(repo).sandbox.untrusted
    assert all("\x1b" not in text and "\u202e" not in text for text in (*installed(repo).values(), page(report)))
    for label in ("regbot-static", "regbot-measure"):
        assert workflow(repo, label).read_text().count(name) == templates.read_template(label).count(name)
    (workload,) = config(repo).workloads.values()
    assert workload.adapter in ("torchtitan", "module")


def test_a_file_name_that_is_not_utf_8_is_skipped_and_counted(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", MODULE)
    (Path(os.fsdecode(os.fsencode(repo.path) + b"/\xff.py"))).write_text(LAYER)
    report = init(repo)
    assert report.warnings == ["not read, because their names cannot be printed: 1 files"]
    json.loads(report.to_json())


# ---- runners


RUNS_ON = {
    "runs-on: ubuntu-latest": [],
    "runs-on: [ubuntu-24.04]": [],
    "runs-on: ${{ matrix.os }}": [],
    "runs-on: [self-hosted, '${{ matrix.gpu }}']": [],
    "runs-on:": [],
    "runs-on: self-hosted": [Runner(("self-hosted",))],
    "runs-on: linux.aws.h100.8 # eight of them": [Runner(("linux.aws.h100.8",))],
    'runs-on: [self-hosted, linux, "gpu"] # node': [Runner(("self-hosted", "linux", "gpu"))],
    "runs-on:\n      - self-hosted\n      # GPUs\n      - 'a100'\n    steps: []": [Runner(("self-hosted", "a100"))],
    "runs-on:\n    - self-hosted\n    - b200": [Runner(("self-hosted", "b200"))],
    "runs-on:\n      group: gpu nodes\n      labels: [self-hosted, x64]\n    env:": [
        Runner(("self-hosted", "x64"), "gpu nodes")
    ],
    "runs-on:\n      labels:\n        - gpu\n      group: nodes": [Runner(("gpu",), "nodes")],
    "runs-on: {group: nodes, labels: [a, b]}": [Runner(("a", "b"), "nodes")],
    "runs-on: { group: 'nodes' }": [Runner((), "nodes")],
}


@pytest.mark.parametrize("text", RUNS_ON)
def test_labels_of_self_hosted_runners_are_read(text: str) -> None:
    assert find_self_hosted(f"jobs:\n  a:\n    {text}\n") == RUNS_ON[text]


def test_gpu_runners_precede_self_hosted_ones_which_precede_others() -> None:
    gpu, plain, other = Runner(("self-hosted", "H100")), Runner(("self-hosted", "linux")), Runner(("big",))
    assert choose_runner([other, plain, gpu, plain]) == gpu
    assert choose_runner([other, other, plain]) == plain
    assert choose_runner([]) is None
    assert not Runner(("self-hosted", "b2000", "magpie")).gpu


def test_runners_of_other_workflows_are_used(tmp_path: Path) -> None:
    files = {**MODULE, ".github/workflows/train.yaml": "jobs:\n  a:\n    runs-on: [self-hosted, gpu-h100]\n"}
    repo = repository(tmp_path / "r", files)
    report = init(repo)
    for name in ("regbot-measure", "regbot-bisect", "regbot-refresh"):
        assert "    runs-on: [self-hosted, gpu-h100] # zizmor" in workflow(repo, name).read_text()
    (runner,) = [fact for fact in report.facts if fact.what == "runner"]
    assert (runner.value, runner.why) == ("self-hosted, gpu-h100", "other workflows; its name suggests a GPU")
    assert "runs-on: ubuntu-latest" in workflow(repo, "regbot-post").read_text()


def test_given_labels_are_used_and_kept_by_the_next_run(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo, labels=["self-hosted", "pool=a/b:c", "on"])
    assert '    runs-on: [self-hosted, "pool=a/b:c", "on"] # zizmor' in workflow(repo, "regbot-measure").read_text()
    again = init(repo)
    assert set(actions(again).values()) == {"kept", "unchanged"}
    (runner,) = [fact for fact in again.facts if fact.what == "runner"]
    assert (runner.value, runner.why) == ("self-hosted, pool=a/b:c, on", "regbot-measure.yml")


@pytest.mark.parametrize("label", ["", "two words", "a]", "${{ x }}", "a\nb", "a,b", '"', "#", "-x", "a" * 200])
def test_an_invalid_label_is_refused_before_anything_is_written(label: str, tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    with pytest.raises(ConfigError, match="--label"):
        init(repo, labels=[label])
    assert installed(repo) == {}


def test_a_runner_group_is_written_as_a_mapping(tmp_path: Path) -> None:
    files = {**MODULE, ".github/workflows/a.yml": "    runs-on:\n      group: gpu nodes\n      labels: [self-hosted]\n"}
    repo = repository(tmp_path / "r", files)
    init(repo)
    assert (
        'runs-on: { group: "gpu nodes", labels: [self-hosted] } # zizmor'
        in workflow(repo, "regbot-measure").read_text()
    )


def test_slurm_is_detected_and_suggested(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", {**MODULE, "jobs/train.sbatch": "#SBATCH --nodes=2\n"})
    report = init(repo)
    assert "# [slurm]\n# partition" in installed(repo)["regbot.toml"]
    assert any("REGBOT_ENGINE" in step.text for step in report.next_steps)


# ---- the default branch


def branch(report: InitReport) -> tuple[str, str]:
    (branch_fact,) = [fact for fact in report.facts if fact.what == "default branch"]
    return branch_fact.value, branch_fact.why


def test_the_default_branch_is_origins_whatever_is_checked_out(tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    origin.git("branch", "--move", "main", "develop/v2")
    clone = origin.clone_to(tmp_path / "clone")
    clone.git("checkout", "--quiet", "-b", "topic")
    report = init(clone)
    assert branch(report) == ("develop/v2", "origin/HEAD")
    assert any("develop/v2" in step.text for step in report.next_steps)


def test_without_origin_a_local_main_counts_and_else_the_current_branch(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    repo.git("checkout", "--quiet", "-b", "topic")
    assert branch(init(repo, dry_run=True)) == ("main", "a local branch")
    repo.git("branch", "--delete", "main")
    assert branch(init(repo, dry_run=True)) == ("topic", "the current branch")
    repo.git("checkout", "--quiet", "--detach")
    repo.git("branch", "--delete", "--force", "topic")
    with pytest.raises(CheckoutError, match="--branch NAME"):
        init(repo, dry_run=True)
    assert branch(init(repo, branch="trunk")) == ("trunk", "--branch")


@pytest.mark.parametrize("name", ["a b", "-x", "a..b", "a\nb", "~"])
def test_an_invalid_branch_name_is_refused(name: str, tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    with pytest.raises(CheckoutError, match="--branch"):
        init(repo, branch=name)
    assert installed(repo) == {}
