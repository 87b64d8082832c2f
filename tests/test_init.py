"""``regbot init``: what it finds in a repository, what it writes there, and what it never touches."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from git_repos import Repository
from regbot.checkout.git import CheckoutError
from regbot.cli import app
from regbot.config import Config, ConfigError, load_config
from regbot.init import Initialised, Options, flow, initialise, page, source, templates
from regbot.init.configuration import PLACEHOLDER
from regbot.init.runners import Runner, best, self_hosted

ROOT = Path(__file__).resolve().parents[1]
ALL = {"regbot-static", "regbot-post", "regbot-gate", "regbot-measure", "regbot-bisect", "regbot-refresh"}
HOSTED = {"regbot-static", "regbot-post", "regbot-gate"}
LAYER = "def build_layer(config, mesh, device, dtype):\n    raise RuntimeError('imported or executed')\n"
MODULE = {"src/mypkg/__init__.py": "", "src/mypkg/moe.py": LAYER, "pyproject.toml": '[project]\nname = "mypkg"\n'}
SOURCE = f"regbot @ git+https://host.example/us/regbot.git@{'a' * 40}"
UNSAID = f"regbot init --upgrade --source '{source.EXAMPLE}'"
TRAP = "raise SystemExit('this file was executed')\n"


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regbot.init.detection.shutil.which", lambda name: None)


@pytest.fixture(autouse=True)
def _installed_from_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "own_source", lambda: None)


def repository(path: Path, files: Mapping[str, str] = MODULE) -> Repository:
    made = Repository.create(path)
    made.commit("start", files)
    return made


def init(at: Repository | Path, **options: object) -> Initialised:
    folder = at.path if isinstance(at, Repository) else at
    return initialise(Options(folder=folder, **options))  # type: ignore[arg-type]


def actions(found: Initialised) -> dict[str, str]:
    return {Path(file.path).stem: file.action for file in found.files}


def installed(at: Repository) -> dict[str, str]:
    """Text of every file that regbot init may write."""
    files = [at.path / "regbot.toml", *(at.path / ".github" / "workflows").glob("*.yml")]
    return {file.name: file.read_text() for file in files if file.exists()}


def config(at: Repository) -> Config:
    return load_config(at.path / "regbot.toml")


def workflow(at: Repository, name: str) -> Path:
    return at.path / ".github" / "workflows" / f"{name}.yml"


def command(at: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [str(Path(sys.executable).with_name("regbot")), "init", *arguments]
    return subprocess.run(program, cwd=at, capture_output=True, text=True, timeout=60, check=False)


# ---- what is found


FRAMEWORKS: dict[str, tuple[dict[str, str], str, dict[str, object]]] = {
    "torchtitan": (
        {"torchtitan/__init__.py": "", "torchtitan/trainer.py": TRAP, "requirements.txt": "torchdata\ntyro\n"},
        "titan",
        {"adapter": "torchtitan", "source_roots": ["."], "shapes": ["qwen3-30b-a3b"]},
    ),
    "torchtitan-in-a-folder": (
        {"vendor/titan/torchtitan/train.py": TRAP, "train.py": TRAP},
        "titan",
        {"adapter": "torchtitan", "source_roots": ["vendor/titan"]},
    ),
    "megatron": (
        {"megatron/core/__init__.py": TRAP, "pretrain_gpt.py": TRAP},
        "megatron",
        {"adapter": "megatron", "watch": ["megatron"], "dispatcher": "alltoall", "timed": []},
    ),
    "megatron-bridge": (
        {
            "src/megatron/bridge/__init__.py": TRAP,
            "src/megatron/bridge/recipes/qwen/qwen3_moe.py": (
                "def qwen3_30b_a3b_finetune_config(): ...\ndef qwen3_30b_a3b_pretrain_config(): ...\n"
            ),
            "3rdparty/Megatron-LM/megatron/core/__init__.py": TRAP,
        },
        "bridge",
        {
            "adapter": "megatron",
            "source_roots": ["src"],
            "recipe": "megatron.bridge.recipes.qwen.qwen3_moe:qwen3_30b_a3b_pretrain_config",
            "shapes": ["qwen3-30b-a3b"],
        },
    ),
    "maxtext": (
        {"src/maxtext/configs/base.yml": "base_emb_dim: 1\n", "src/maxtext/__init__.py": TRAP},
        "maxtext",
        {"adapter": "maxtext", "source_roots": ["src"], "shapes": ["mixtral-8x7b"], "timed": []},
    ),
    "a-user-of-torchtitan": (
        {"pyproject.toml": '[project]\nname = "x"\ndependencies = ["torchtitan>=0.3; python_version > \'3\'"]\n'},
        "titan",
        {"adapter": "torchtitan", "source_roots": ["."]},
    ),
    "a-user-of-megatron": (
        {"requirements/train.txt": "numpy\nmegatron_core[dev]==0.19.2  # pinned\n"},
        "megatron",
        {"adapter": "megatron", "watch": []},
    ),
    "a-user-of-bridge": (
        {"requirements.txt": "megatron-bridge @ git+https://host.example/NVIDIA-NeMo/Megatron-Bridge.git@main\n"},
        "bridge",
        {"adapter": "megatron", "recipe": ""},
    ),
    "a-clone-of-megatron": (
        {"requirements.txt": "git+https://host.example/NVIDIA/Megatron-LM.git@core_r0.19#egg=x\n"},
        "megatron",
        {"adapter": "megatron"},
    ),
    "setup-py": (
        {"setup.py": "from setuptools import setup\nsetup(install_requires=['maxtext>=0.2'])\n" + TRAP},
        "maxtext",
        {"adapter": "maxtext"},
    ),
    "poetry": (
        {"pyproject.toml": '[tool.poetry.group.train.dependencies]\ntorchtitan = "^0.3"\n'},
        "titan",
        {"adapter": "torchtitan"},
    ),
    "imports-alone": (
        {"train/run.py": "import os\nfrom megatron.core.transformer import moe\n"},
        "megatron",
        {"adapter": "megatron"},
    ),
    "a-layer-of-your-own": (
        MODULE,
        "moe",
        {"adapter": "module", "entry": "mypkg.moe:build_layer", "source_roots": ["src"]},
    ),
    "a-layer-beside-torchtitan": (
        {"torchtitan/trainer.py": TRAP, "ours/__init__.py": "", "ours/layer.py": LAYER},
        "moe",
        {"adapter": "module", "entry": "ours.layer:build_layer", "source_roots": ["."]},
    ),
    "nothing-known": ({"README.md": "A repository.\n"}, "moe", {"adapter": "module", "entry": PLACEHOLDER}),
}


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
        assert name not in workflow(at, label).read_text()
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


# ---- running again


def test_a_second_run_changes_nothing_and_says_so(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    first = init(at)
    assert set(actions(first)) == {"regbot", *ALL}
    assert set(actions(first).values()) == {"created"}
    before = at.fingerprint()
    second = init(at)
    assert actions(second) == {"regbot": "kept", **dict.fromkeys(ALL, "unchanged")}
    assert at.fingerprint() == before
    assert [step.command for step in second.next_steps] == [UNSAID]
    init(at, source=SOURCE, upgrade=True)
    before, second = at.fingerprint(), init(at)
    assert second.next_steps == []
    assert "nothing to do: everything is in place" in page(second)
    for force in (False, True):
        init(at, upgrade=True, force=force)
        assert at.fingerprint() == before


def test_what_was_chosen_once_stays_without_saying_it_again(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    found = init(at, only_static=True)
    assert set(actions(found)) == {"regbot", *HOSTED}
    assert "runner" not in {each.what for each in found.found}
    assert not any("runner" in step.text for step in found.next_steps)
    assert set(actions(init(at)).values()) == {"kept", "unchanged"}
    later = init(at, only_static=False, labels=["gpu"])
    assert {name for name, action in actions(later).items() if action == "created"} == ALL - HOSTED
    assert set(actions(init(at))) == {"regbot", *ALL}


def test_who_has_no_node_is_told_what_to_leave_out_and_it_stays_out(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    (step,) = [step for step in init(at).next_steps if step.text.startswith("No node yet?")]
    assert command(at.path, *shlex.split(step.command)[2:]).returncode == 0
    assert set(actions(init(at))) == {"regbot", *HOSTED}
    labelled = init(repository(tmp_path / "s"), labels=["gpu"])
    assert not any("No node yet?" in step.text for step in labelled.next_steps)


def test_workflows_for_nodes_that_nobody_edited_are_removed_when_they_are_not_wanted(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at, labels=["ours"], version="0.0.9")
    before = at.fingerprint()
    found = init(at, only_static=True, dry_run=True)
    assert at.fingerprint() == before
    assert "would be removed  .github/workflows/regbot-measure.yml" in page(found)
    workflow(at, "regbot-refresh").write_text(workflow(at, "regbot-refresh").read_text() + "# mine\n")
    found = init(at, only_static=True)
    assert {name for name, action in actions(found).items() if action == "removed"} == {
        "regbot-measure",
        "regbot-bisect",
    }
    assert "removed: 2" in page(found)
    assert actions(found)["regbot-refresh"] == "edited"
    assert found.waiting
    assert {path.stem for path in workflow(at, "x").parent.iterdir()} == {*HOSTED, "regbot-refresh"}
    init(at, only_static=True, force=True)
    assert set(actions(init(at))) == {"regbot", *HOSTED}


def test_what_is_added_has_the_labels_of_what_is_installed(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at, labels=["ours"])
    workflow(at, "regbot-refresh").unlink()
    init(at)
    assert "runs-on: [ours] # zizmor" in workflow(at, "regbot-refresh").read_text()


def test_hosted_alone_has_no_labels(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    with pytest.raises(ConfigError, match="--only-static"):
        init(at, only_static=True, labels=["gpu"])
    assert installed(at) == {}


def test_a_file_that_was_removed_is_written_again(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at)
    workflow(at, "regbot-bisect").unlink()
    found = init(at)
    assert {name for name, action in actions(found).items() if action == "created"} == {"regbot-bisect"}


SETTINGS = {
    "labels": ("regbot-measure", "[self-hosted, regbot]", "[self-hosted, ours]"),
    "group": ("regbot-measure", "[self-hosted, regbot]", "{ group: ours }"),
    "hosted": ("regbot-post", "runs-on: ubuntu-latest", "runs-on: ubuntu-24.04-large"),
    "time": ("regbot-refresh", '"17 2 * * *"', '"3 5 * * 1"'),
    "limit": ("regbot-measure", "timeout-minutes: 240", "timeout-minutes: 480"),
    "packages": ("regbot-static", '"numpy>=1.26"', '"numpy>=1.26" einops -r code/requirements.txt'),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_that_were_changed_in_place_are_kept_by_an_upgrade(case: str, tmp_path: Path) -> None:
    name, old, new = SETTINGS[case]
    at = repository(tmp_path / "r")
    init(at)
    text = workflow(at, name).read_text()
    assert old in text
    workflow(at, name).write_text(text.replace(old, new, 1))
    assert set(actions(init(at)).values()) == {"kept", "unchanged"}
    found = init(at, version="9.9", upgrade=True)
    assert "edited" not in actions(found).values()
    assert new in workflow(at, name).read_text()


def test_line_ends_that_git_changed_are_no_edit(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at)
    for name in ALL:
        workflow(at, name).write_bytes(workflow(at, name).read_bytes().replace(b"\n", b"\r\n"))
    assert set(actions(init(at)).values()) == {"kept", "unchanged"}
    assert set(actions(init(at, version="9.9")).values()) <= {"kept", "outdated", "unchanged"}


def test_a_configuration_that_is_there_is_never_changed(tmp_path: Path) -> None:
    mine = "# mine\nversion = 1\n[workloads.smoke]\nadapter = 'smoke'\n"
    at = repository(tmp_path / "r", {**MODULE, "regbot.toml": mine})
    found = init(at, force=True, upgrade=True, shadow=True)
    assert installed(at)["regbot.toml"] == mine
    assert "'shadow = true' below [github]" in found.files[0].why


def test_a_configuration_that_is_wrong_stops_it_before_anything_is_written(tmp_path: Path) -> None:
    at = repository(tmp_path / "r", {**MODULE, "regbot.toml": "version = 2\n"})
    with pytest.raises(ConfigError, match=r"regbot\.toml: version"):
        init(at)
    assert set(installed(at)) == {"regbot.toml"}


# ---- upgrades and edits


def test_an_upgrade_shows_a_diff_and_writes_it_when_told(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at, version="0.0.9")
    for name in ALL - {"regbot-measure"}:
        workflow(at, name).write_text(workflow(at, name).read_text().replace(source.UNSET, "regbot==0.0.9"))
    before = at.fingerprint()
    found = init(at)
    assert at.fingerprint() == before
    static = next(file for file in found.files if "static" in file.path)
    assert (static.action, static.why) == ("outdated", "written by regbot 0.0.9")
    assert "-          REGBOT_SOURCE: regbot==0.0.9\n" in static.diff
    assert f"+          REGBOT_SOURCE: {source.UNSET}\n" in static.diff
    assert any("regbot-gate.yml installs 'regbot==0.0.9' by its name" in warning for warning in found.warnings)
    assert static.diff.startswith("--- a/.github/workflows/regbot-static.yml\n+++ b/")
    assert static.diff.rstrip("\n") in page(found)
    assert [step.command for step in found.next_steps] == [UNSAID, "regbot init --upgrade"]
    assert set(actions(init(at, upgrade=True)).values()) <= {"kept", "unchanged", "upgraded"}
    assert set(actions(init(at)).values()) == {"kept", "unchanged"}


def test_a_newer_template_is_an_upgrade_and_no_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = repository(tmp_path / "r")
    init(at)
    shipped = templates.template
    monkeypatch.setattr(
        templates, "template", lambda name: shipped(name).replace("permissions: {}", "permissions: {} # none")
    )
    found = init(at)
    assert {action for name, action in actions(found).items() if name in ALL} == {"outdated"}
    assert "+permissions: {} # none" in found.files[1].diff
    init(at, upgrade=True)
    assert set(actions(init(at)).values()) == {"kept", "unchanged"}


def test_an_edit_is_shown_and_lost_only_by_force(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at)
    mine = workflow(at, "regbot-gate").read_text().replace("name: regbot-gate\n", "name: regbot-gate\n# mine\n")
    workflow(at, "regbot-gate").write_text(mine)
    for upgrade in (False, True):
        found = init(at, upgrade=upgrade)
        gate = next(file for file in found.files if "gate" in file.path)
        assert (gate.action, gate.why) == ("edited", f"edited since regbot {flow.__version__} wrote it")
        assert "-# mine\n" in gate.diff
        assert found.waiting
        assert workflow(at, "regbot-gate").read_text() == mine
    assert [step.command for step in found.next_steps] == [UNSAID, "regbot init --force"]
    assert actions(init(at, force=True))["regbot-gate"] == "overwritten"
    assert "# mine" not in workflow(at, "regbot-gate").read_text()
    assert set(actions(init(at)).values()) == {"kept", "unchanged"}


def test_an_edited_workflow_survives_an_upgrade_of_the_others(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at, version="0.0.9")
    mine = workflow(at, "regbot-post").read_text() + "# mine\n"
    workflow(at, "regbot-post").write_text(mine)
    found = init(at, upgrade=True, source=SOURCE)
    assert actions(found)["regbot-post"] == "edited"
    assert actions(found)["regbot-static"] == "upgraded"
    assert workflow(at, "regbot-post").read_text() == mine


def test_a_workflow_of_somebody_else_under_our_name_is_left_alone(tmp_path: Path) -> None:
    name = ".github/workflows/regbot-static.yml"
    at = repository(tmp_path / "r", {**MODULE, name: "on: push\n# \x1b[31m\n"})
    found = init(at, upgrade=True)
    static = next(file for file in found.files if file.path == name)
    assert (static.action, static.why) == ("edited", "not written by regbot init")
    assert "\x1b" not in static.diff
    assert (at.path / name).read_text().startswith("on: push")
    assert actions(found)["regbot-gate"] == "created"


def test_a_workflow_without_its_stamp_is_in_place_while_it_is_the_same(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at)
    first, _, rest = workflow(at, "regbot-post").read_text().partition("\n")
    assert first.startswith("# Written by 'regbot init' (")
    workflow(at, "regbot-post").write_text(rest)
    assert actions(init(at))["regbot-post"] == "unchanged"
    assert actions(init(at, source=SOURCE))["regbot-post"] == "edited"


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
