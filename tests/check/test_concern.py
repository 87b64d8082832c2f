"""``paths`` of a workload: what concerns no workload is not measured, and passes only with a proof."""

import json
from pathlib import Path

import pytest

from regbot.baselines import Store
from regbot.check.concern import ChangedTrees, ConcernResult, find_unconcerned, list_evidence
from regbot.records.config import Config, parse_config
from regbot.workloads.task import plan
from support.baseline_builder import put, timed_baseline
from support.git_repos import Repository
from support.layers import GOOD_LAYER

ENTRY = "mixtral-8x7b@1/ep"
FILES = {
    "train/__init__.py": "",
    "train/moe.py": GOOD_LAYER,
    "serving/api.py": "PORT = 80\n",
    "serving/limits.json": "{}\n",
    "README.md": "a monorepo\n",
}


def settings(paths: list[str], **more: object) -> Config:
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in more.items())
    return parse_config(
        "[workloads.moe]\nadapter = 'module'\nentry = 'train.moe:build_layer'\nshapes = ['mixtral-8x7b']\n"
        f"variant = 'cpu'\nmeshes = ['ep']\npaths = {paths}\n{lines}",
        "regbot.toml",
    )


class Scene:
    """A repository with a training package and a service, and a store of references beside it."""

    def __init__(self, home: Path) -> None:
        self.repository = Repository.create(home / "repository")
        self.base = self.repository.commit("base", FILES)
        self.store = Store(home / "store")

    def change(self, **files: str) -> str:
        self.repository.git("checkout", "-q", "-B", "pr", self.base)
        return self.repository.commit("change", {name.replace("__", "/"): text for name, text in files.items()})

    def store_trace(self, loaded: list[str] | None, tier: str = "static", variant: str = "") -> None:
        """Store a session of base whose run loaded the files ``loaded``."""
        fields: dict[str, object] = {"tier": tier, "workload": ENTRY, "commit": self.base, "loaded_files": loaded}
        if tier == "static":
            fields |= {"steps": None, "cut": None, "clock": None, "runs": [], "ledger": "a" * 64}
        tree = self.repository.git("rev-parse", f"{self.base}^{{tree}}")
        put(self.store, timed_baseline(variant=variant or "cpu", tree=tree, **fields))

    def ask(self, head: str, config: Config, timing: bool = False, base: str = "") -> ConcernResult:
        tasks = plan(config)
        change = ChangedTrees(self.repository.path, base or self.base, head, "baselines", config.inert)
        return find_unconcerned(change, tasks, list_evidence(config, tasks, timing), self.store)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def only_reason(result: ConcernResult, proven: bool) -> str:
    (workload,) = result.unconcerned
    assert (workload.entry, workload.proof is not None, result.warnings) == (ENTRY, proven, [])
    return workload.reason


TRAIN = settings(["train/"])


def test_a_change_of_a_path_concerns_its_workload(scene: Scene) -> None:
    scene.store_trace(["train/moe.py"])
    assert scene.ask(scene.change(train__moe="x"), settings(["train/moe"])) == ([], [])
    assert scene.ask(scene.change(**{"train__moe.py": "x = 1\n"}), TRAIN) == ([], [])
    assert scene.ask(scene.change(**{"serving__api.py": "PORT = 81\n"}), settings([])) == ([], [])


def test_nothing_is_proven_without_a_stored_trace(scene: Scene) -> None:
    head = scene.change(**{"serving__api.py": "PORT = 81\n"})
    assert only_reason(scene.ask(head, TRAIN), proven=False).startswith("no stored trace of the base lists")
    scene.store_trace(None)
    assert only_reason(scene.ask(head, TRAIN), proven=False).startswith("no stored trace of the base lists")


def test_a_stored_trace_of_the_base_proves_it(scene: Scene) -> None:
    scene.store_trace(["train/__init__.py", "train/moe.py"])
    head = scene.change(**{"serving__api.py": "PORT = 81\n", "README.md": "text\n"})
    only_reason(scene.ask(head, TRAIN), proven=True)


@pytest.mark.parametrize(
    ("paths", "warning"),
    [(["train/"], "loaded serving/api.py, which no pathspec matches"), (["trian/"], "no file of base matches")],
)
def test_wrong_paths_are_named_and_the_workload_is_measured(scene: Scene, paths: list[str], warning: str) -> None:
    scene.store_trace(["train/moe.py", "serving/api.py"])
    result = scene.ask(scene.change(**{"README.md": "text\n"}), settings(paths))
    assert (result.unconcerned, warning in result.warnings[0]) == ([], True)


@pytest.mark.parametrize(
    ("path", "text", "build", "reason"),
    [
        ("serving/limits.json", "[1]\n", [], "serving/limits.json changed, and a run does not report"),
        ("serving/new.py", "x = 1\n", [], "serving/new.py changed"),
        ("train.py", "shadows = True\n", [], "train.py changed"),
        (
            "serving/api.py",
            "x = 1\n",
            ["python serving/api.py"],
            "serving/api.py changed, and its build does not report",
        ),
    ],
)
def test_a_file_whose_use_nothing_reports_proves_nothing(
    scene: Scene, path: str, text: str, build: list[str], reason: str
) -> None:
    scene.store_trace(["train/moe.py"])
    head = scene.change(**{path.replace("/", "__"): text})
    assert only_reason(scene.ask(head, settings(["train/"], build=build)), proven=False).startswith(reason)


def test_a_trace_of_an_earlier_commit_counts_while_nothing_that_matters_changed(scene: Scene) -> None:
    scene.store_trace(["train/moe.py"])
    scene.base = scene.repository.commit("stored", {"baselines/a.json": "{}\n", "serving/api.py": "PORT = 82\n"})
    only_reason(scene.ask(scene.change(**{"serving__api.py": "PORT = 83\n"}), TRAIN), proven=True)
    scene.base = scene.repository.commit("later", {"train/moe.py": GOOD_LAYER + "x = 1\n"})
    reason = only_reason(scene.ask(scene.change(**{"serving__api.py": "PORT = 84\n"}), TRAIN), proven=False)
    assert reason.startswith("train/moe.py has changed since the stored trace of")


def test_a_workload_that_a_node_would_time_needs_a_timed_session_too(scene: Scene) -> None:
    head = scene.change(**{"serving__api.py": "PORT = 81\n"})
    scene.store_trace(["train/moe.py"])
    assert "no stored timed session" in only_reason(scene.ask(head, TRAIN, timing=True), proven=False)
    scene.store_trace(["train/moe.py"], tier="timed", variant="smoke")
    only_reason(scene.ask(head, TRAIN, timing=True), proven=True)
