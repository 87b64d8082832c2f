"""``regbot init``: what it finds in a repository, and what it does not fall for."""

import json
import os
import re
from pathlib import Path

import pytest

from git_repos import Repository
from init_cases import FRAMEWORKS, LAYER, MODULE, actions, config, init, installed, repository, workflow
from init_cases import _installed_from_nowhere as _installed_from_nowhere
from init_cases import _no_cluster as _no_cluster
from regbot.checkout.git import CheckoutError
from regbot.config import ConfigError
from regbot.init import Initialised, page, templates
from regbot.init.configuration import PLACEHOLDER
from regbot.init.runners import Runner, best, self_hosted

# ---- what is found


@pytest.mark.parametrize("case", FRAMEWORKS)
def test_the_workload_of_each_framework_is_written(case: str, tmp_path: Path) -> None:
    files, name, expected = FRAMEWORKS[case]
    at = repository(tmp_path / "r", files)
    init(at)
    workloads = config(at).workloads
    assert list(workloads) == [name]
    found = workloads[name].model_dump()
    assert {key: found[key] for key in expected} == expected


def test_the_framework_itself_comes_before_what_it_carries_and_what_it_uses(tmp_path: Path) -> None:
    files = {
        "megatron/core/__init__.py": "",
        "src/maxtext/configs/base.yml": "",
        "pyproject.toml": '[project]\ndependencies = ["torchtitan"]\n',
    }
    found = init(repository(tmp_path / "r", files))
    (framework,) = [each for each in found.found if each.what == "framework"]
    assert framework.value == "maxtext"
    assert [warning.split(" (")[0] for warning in found.warnings] == ["also found: megatron", "also found: torchtitan"]


def test_names_that_only_end_alike_are_no_framework(tmp_path: Path) -> None:
    files = {"nottorchtitan/train.py": "", "my_megatron/core/__init__.py": "", "README.txt": "torchtitan is great\n"}
    at = repository(tmp_path / "r", files)
    init(at)
    assert config(at).workloads["moe"].entry == PLACEHOLDER


def test_maxtext_of_the_older_layout_is_named(tmp_path: Path) -> None:
    found = init(repository(tmp_path / "r", {"MaxText/configs/base.yml": ""}))
    assert "older layout" in found.warnings[0]


def test_what_is_only_installed_is_said_not_to_be_the_repositorys_code(tmp_path: Path) -> None:
    at = repository(tmp_path / "r", {"requirements.txt": "torchtitan\n"})
    init(at)
    assert "What is installed is traced, not code of this repository" in installed(at)["regbot.toml"]


def test_what_is_said_of_the_shapes_is_what_a_workload_does_unless_told(tmp_path: Path) -> None:
    at = repository(tmp_path / "r", MODULE)
    init(at)
    (line,) = [each for each in installed(at)["regbot.toml"].splitlines() if each.startswith("shapes")]
    assert line.endswith("  # full size on two meshes each, unless variant or meshes is set")
    moe = config(at).workloads["moe"]
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
def test_the_module_is_named_from_the_folder_that_packages_live_in(case: str, tmp_path: Path) -> None:
    name, others, entry, root = PLACES[case]
    at = repository(tmp_path / "r", {name: LAYER, **others})
    init(at)
    workload = config(at).workloads["moe"]
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
def test_what_does_not_take_what_the_contract_gives_is_no_entry(text: str, tmp_path: Path) -> None:
    at = repository(tmp_path / "r", {"pkg.py": text})
    init(at)
    assert config(at).workloads["moe"].entry == PLACEHOLDER


def test_other_names_and_defaults_are_taken_where_four_arguments_fit(tmp_path: Path) -> None:
    at = repository(tmp_path / "a", {"pkg.py": "def build_layer(c, m, dev, dt=None, seed=0, *, x=1): ...\n"})
    init(at)
    assert config(at).workloads["moe"].entry == "pkg:build_layer"
    at = repository(
        tmp_path / "b", {"pkg.py": "def make_moe(\n    config: dict,\n    mesh,\n    device,\n    dtype\n): ...\n"}
    )
    init(at)
    assert config(at).workloads["moe"].entry == "pkg:make_moe"


def test_code_that_trains_comes_before_tests_and_examples_and_the_others_are_named(tmp_path: Path) -> None:
    files = {"tests/layers.py": LAYER, "examples/a.py": LAYER, "deep/er/than/b.py": LAYER}
    at = repository(tmp_path / "r", files)
    init(at)
    assert config(at).workloads["moe"].entry == "deep.er.than.b:build_layer"
    assert "# also found: examples.a:build_layer in examples/a.py\n" in installed(at)["regbot.toml"]


def test_a_framework_that_has_a_build_layer_of_its_own_is_not_taken_for_a_layer(tmp_path: Path) -> None:
    files = {"torchtitan/trainer.py": "", "torchtitan/models/m.py": "def build_layer(args, index, norm, bias): ...\n"}
    at = repository(tmp_path / "r", files)
    init(at)
    assert list(config(at).workloads) == ["titan"]


def test_where_nothing_is_found_classes_that_could_be_it_are_named(tmp_path: Path) -> None:
    at = repository(tmp_path / "r", {"net/moe.py": "class SparseMoE(nn.Module):\n    pass\n"})
    found = init(at)
    assert "# It could return SparseMoE of net/moe.py.\n" in installed(at)["regbot.toml"]
    assert "Write build_layer" in found.next_steps[1].text


def test_ignored_files_are_not_looked_into(tmp_path: Path) -> None:
    files = {".gitignore": ".venv/\n", ".venv/lib/torchtitan/trainer.py": "", ".venv/lib/x.py": LAYER}
    at = repository(tmp_path / "r", files)
    init(at)
    assert config(at).workloads["moe"].entry == PLACEHOLDER


def test_a_copy_of_regbot_is_not_what_the_repository_trains_with(tmp_path: Path) -> None:
    files = {
        "vendor/regbot/pyproject.toml": '[project]\nname = "regbot"\ndependencies = ["torchtitan"]\n',
        "vendor/regbot/regbot/layer.py": LAYER,
    }
    text = page(init(repository(tmp_path / "r", files)))
    assert re.search(r"^layer +none ", text, re.MULTILINE)
    assert "vendor" not in text
    assert "torchtitan" not in text


def test_files_that_were_not_committed_yet_are_looked_into(tmp_path: Path) -> None:
    at = repository(tmp_path / "r", {"README.md": ""})
    (at.path / "moe.py").write_text(LAYER)
    init(at)
    assert config(at).workloads["moe"].entry == "moe:build_layer"


def test_an_empty_repository_without_a_commit_will_do(tmp_path: Path) -> None:
    at = Repository.create(tmp_path / "r")
    found = init(at)
    assert set(actions(found).values()) == {"created"}
    assert config(at).workloads["moe"].entry == PLACEHOLDER


# ---- unreadable and hostile


def test_files_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    at = repository(tmp_path / "r", {**MODULE, "swapped/secret.py": ""})
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.py").write_text(LAYER)
    (at.path / "swapped" / "secret.py").unlink()
    (at.path / "swapped").rmdir()
    (at.path / "swapped").symlink_to(outside)
    (at.path / "latin.py").write_bytes(b"# \xff\n" + LAYER.encode())
    (at.path / "huge.py").write_text(LAYER + "#" * 1_000_001)
    (at.path / "link.py").symlink_to(outside / "secret.py")
    (at.path / "folder").symlink_to(outside)
    (at.path / "gone.py").symlink_to(outside / "gone.py")
    (at.path / "null.py").write_text(LAYER + "\0")
    os.mkfifo(at.path / "pipe.py")
    init(at)
    assert config(at).workloads["moe"].entry == "mypkg.moe:build_layer"
    assert "also found" not in installed(at)["regbot.toml"]


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
    at = repository(tmp_path / "r", files)
    found = init(at)
    assert not config(at).sandbox.untrusted
    assert all("\x1b" not in text and "\u202e" not in text for text in (*installed(at).values(), page(found)))
    for label in ("regbot-static", "regbot-measure"):
        assert workflow(at, label).read_text().count(name) == templates.template(label).count(name)
    (workload,) = config(at).workloads.values()
    assert workload.adapter in ("torchtitan", "module")


def test_a_name_that_is_no_text_is_passed_over_and_counted(tmp_path: Path) -> None:
    at = repository(tmp_path / "r", MODULE)
    (Path(os.fsdecode(os.fsencode(at.path) + b"/\xff.py"))).write_text(LAYER)
    found = init(at)
    assert found.warnings == ["not looked at, because their names cannot be printed: 1 files"]
    json.loads(found.to_json())


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
    assert self_hosted(f"jobs:\n  a:\n    {text}\n") == RUNS_ON[text]


def test_a_gpu_comes_before_self_hosted_by_name_and_that_before_any_other() -> None:
    gpu, plain, other = Runner(("self-hosted", "H100")), Runner(("self-hosted", "linux")), Runner(("big",))
    assert best([other, plain, gpu, plain]) == gpu
    assert best([other, other, plain]) == plain
    assert best([]) is None
    assert not Runner(("self-hosted", "b2000", "magpie")).gpu


def test_runners_that_are_used_already_are_filled_in(tmp_path: Path) -> None:
    files = {**MODULE, ".github/workflows/train.yaml": "jobs:\n  a:\n    runs-on: [self-hosted, gpu-h100]\n"}
    at = repository(tmp_path / "r", files)
    found = init(at)
    for name in ("regbot-measure", "regbot-bisect", "regbot-refresh"):
        assert "    runs-on: [self-hosted, gpu-h100] # zizmor" in workflow(at, name).read_text()
    (runner,) = [each for each in found.found if each.what == "runner"]
    assert (runner.value, runner.why) == ("self-hosted, gpu-h100", "other workflows, a GPU by its name")
    assert "runs-on: ubuntu-latest" in workflow(at, "regbot-post").read_text()


def test_labels_that_are_given_count_and_are_kept_by_the_next_run(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at, labels=["self-hosted", "pool=a/b:c", "on"])
    assert '    runs-on: [self-hosted, "pool=a/b:c", "on"] # zizmor' in workflow(at, "regbot-measure").read_text()
    again = init(at)
    assert set(actions(again).values()) == {"kept", "unchanged"}
    (runner,) = [each for each in again.found if each.what == "runner"]
    assert (runner.value, runner.why) == ("self-hosted, pool=a/b:c, on", "regbot-measure.yml")


@pytest.mark.parametrize("label", ["", "two words", "a]", "${{ x }}", "a\nb", "a,b", '"', "#", "-x", "a" * 200])
def test_a_label_that_is_none_is_refused_before_anything_is_written(label: str, tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    with pytest.raises(ConfigError, match="--label"):
        init(at, labels=[label])
    assert installed(at) == {}


def test_a_group_of_runners_is_written_as_one(tmp_path: Path) -> None:
    files = {**MODULE, ".github/workflows/a.yml": "    runs-on:\n      group: gpu nodes\n      labels: [self-hosted]\n"}
    at = repository(tmp_path / "r", files)
    init(at)
    assert (
        'runs-on: { group: "gpu nodes", labels: [self-hosted] } # zizmor' in workflow(at, "regbot-measure").read_text()
    )


def test_slurm_is_seen_and_suggested(tmp_path: Path) -> None:
    at = repository(tmp_path / "r", {**MODULE, "jobs/train.sbatch": "#SBATCH --nodes=2\n"})
    found = init(at)
    assert "# [slurm]\n# partition" in installed(at)["regbot.toml"]
    assert any("REGBOT_ENGINE" in step.text for step in found.next_steps)


# ---- the default branch


def branch(found: Initialised) -> tuple[str, str]:
    (one,) = [each for each in found.found if each.what == "default branch"]
    return one.value, one.why


def test_the_default_branch_is_origins_whatever_is_checked_out(tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    origin.git("branch", "--move", "main", "develop/v2")
    clone = origin.clone_to(tmp_path / "clone")
    clone.git("checkout", "--quiet", "-b", "topic")
    found = init(clone)
    assert branch(found) == ("develop/v2", "origin/HEAD")
    assert any("develop/v2" in step.text for step in found.next_steps)


def test_without_origin_a_local_main_counts_and_else_the_current_branch(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    at.git("checkout", "--quiet", "-b", "topic")
    assert branch(init(at, dry_run=True)) == ("main", "a local branch")
    at.git("branch", "--delete", "main")
    assert branch(init(at, dry_run=True)) == ("topic", "the current branch")
    at.git("checkout", "--quiet", "--detach")
    at.git("branch", "--delete", "--force", "topic")
    with pytest.raises(CheckoutError, match="--branch NAME"):
        init(at, dry_run=True)
    assert branch(init(at, branch="trunk")) == ("trunk", "--branch")


@pytest.mark.parametrize("name", ["a b", "-x", "a..b", "a\nb", "~"])
def test_a_branch_that_can_be_none_is_refused(name: str, tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    with pytest.raises(CheckoutError, match="--branch"):
        init(at, branch=name)
    assert installed(at) == {}
