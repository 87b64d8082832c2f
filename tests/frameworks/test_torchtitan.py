"""torchtitan itself: its counts at full size, its fake world against real ranks, and regressions planted in its code.

Set REGBOT_TORCH_FRAMEWORKS to a Python with torchtitan 0.3.0 (docs/frameworks/torchtitan.md). Every run is made once.
"""

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Shared
from guest_runs import GUEST, SCRIPTS, answer, ask, rows
from regbot.config import Config, Workload
from regbot.engines import LocalEngine
from regbot.judge import judge_ledgers
from regbot.ledgers.catalogue import AXIS_LOST, KEEPS_GATHERED, MAPPED_TWICE, RECOMPUTES
from regbot.records.files import read_record, write_record
from regbot.records.ledger import Ledger
from regbot.records.run import Arm, Run
from regbot.shapes import load_shape
from regbot.workloads import Limits, Task, single_task, trace

PYTHON = os.environ.get("REGBOT_TORCH_FRAMEWORKS", "")
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not PYTHON, reason="REGBOT_TORCH_FRAMEWORKS names no Python with torchtitan"),
]

ARM = Arm(name="head", revision="x", commit="a" * 40, tree="b" * 40)
TIMEOUT_S = 300
DEBUG = {"recipe": "qwen3_moe_debug", "config": {"training.seq_len": 128, "training.local_batch_size": 1}}
"""The debug recipe as the repository ships it (8 layers, 64 experts, selective checkpointing), on fewer tokens."""
Sources = Callable[[Path], None]
Traced = Callable[..., Run]

GATHERED = """\
        from torch.distributed._functional_collectives import all_gather_tensor_autograd
        ranks, width = self.ep_mesh.size(), routed_input_ND.shape[-1]
        every = all_gather_tensor_autograd(routed_input_ND, 0, self.ep_mesh)
        return every.view(ranks, ranks, -1, width)[:, self.ep_mesh.get_local_rank()].reshape(-1, width)
"""
SUMMED = """\
        from torch.distributed._functional_collectives import reduce_scatter_tensor_autograd
        ranks, width = self.ep_mesh.size(), routed_output_RD.shape[-1]
        mine = routed_output_RD.view(ranks, 1, -1, width)
        whole = torch.nn.functional.pad(mine, (0, 0, 0, 0, 0, ranks - 1)).roll(self.ep_mesh.get_local_rank(), 1)
        return reduce_scatter_tensor_autograd(whole.reshape(-1, width), "sum", 0, self.ep_mesh)
"""


def task(shape: str = "qwen3-30b-a3b", variant: str = "cpu", world: int = 16, ep: int = 16, **changes: Any) -> Task:
    workload = Workload(adapter="torchtitan", python=PYTHON, shapes=[shape], variant=variant, **changes)
    return single_task("titan", workload, load_shape(shape), "ep", world, ep)


@pytest.fixture
def traced(shared: Shared) -> Traced:
    return tracer(shared)


def tracer(shared: Shared) -> Traced:
    """``traced(name, task, sources)``: one trace, of the installed torchtitan or of the one that ``sources`` writes."""

    def once(name: str, task: Task, sources: Sources = lambda _: None) -> Run:
        def make(folder: Path) -> None:
            root = folder / "checkout"
            root.mkdir()
            sources(root)
            write_record(folder / "run.json", trace(task, ARM, root, LocalEngine(), folder / "scratch", Limits()))
            shutil.rmtree(root)

        return read_record(shared(f"torchtitan-{name}", make) / "run.json", Run)

    return once


def edited(*edits: tuple[str, str, str]) -> Sources:
    """A checkout of the installed torchtitan with edits: file, what stands there once, what stands there then."""

    def write(root: Path) -> None:
        shutil.copytree(installed(), root / "torchtitan", ignore=shutil.ignore_patterns("__pycache__"))
        for file, old, new in edits:
            path = root / "torchtitan" / file
            text = path.read_text(encoding="utf-8")
            assert old in text, f"{file} has no {old!r}"
            path.write_text(text.replace(old, new), encoding="utf-8")

    return write


def installed() -> Path:
    found = subprocess.run(
        [PYTHON, "-c", "import importlib.util as u; print(u.find_spec('torchtitan').submodule_search_locations[0])"],
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(found.stdout.strip())


def on_ranks(ranks: int, request: Path) -> None:
    """The guest on the ranks of torchrun, under the frameworks' interpreter."""
    command = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(GUEST), str(request)], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr[-3000:]


def without_values(*requests: Path) -> None:
    """Several static requests in one process: importing torchtitan takes longer than refusing most of them."""
    environment = {**os.environ, "PYTHONPATH": str(GUEST)}
    script = [PYTHON, str(SCRIPTS / "answer.py"), *map(str, requests)]
    subprocess.run(script, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)


def ledger_of(run: Run) -> Ledger:
    assert (run.outcome, run.reason) == ("ok", "")
    assert run.ledger is not None
    assert run.ledger.liveness is not None
    assert run.ledger.liveness.proven
    return run.ledger


def counts(ledger: Ledger) -> dict[str, int]:
    """Collectives of the step by kind; token counts that are exchanged apart."""
    found = Counter[str]()
    for entry in ledger.entries:
        counted_apart = entry.kind == "all_to_all" and entry.role == "control"
        found["token counts" if counted_apart else entry.kind] += entry.count
    return dict(found)


FULL_SIZE = {"all_gather": 101, "token counts": 48, "all_to_all": 192, "reduce_scatter": 51, "all_reduce": 7}
TWO_GROUPS = {"all_gather": 197, "reduce_scatter": 99}
RECOMPUTED = {"token counts": 96, "all_to_all": 288}


@pytest.mark.parametrize(
    ("mode", "world", "ep", "asked"),
    [
        ("none", 16, 16, FULL_SIZE),
        ("full", 16, 16, FULL_SIZE | RECOMPUTED),
        ("none", 64, 64, FULL_SIZE),
        ("none", 64, 16, FULL_SIZE | TWO_GROUPS),
        ("full", 64, 16, FULL_SIZE | TWO_GROUPS | RECOMPUTED),
    ],
)
def test_qwen3_30b_a3b_is_counted_at_full_size(
    traced: Traced, mode: str, world: int, ep: int, asked: dict[str, int]
) -> None:
    config = {"activation_checkpoint": mode}
    run = traced(f"full-{mode}-{world}-{ep}", task(variant="full", world=world, ep=ep, config=config))
    assert counts(ledger_of(run)) == asked
    assert run.peak_rss_bytes is not None
    assert run.peak_rss_bytes < 1.5 * 2**30


def test_the_shipped_recipe_recomputes_as_it_is_configured_to(traced: Traced) -> None:
    ledger = ledger_of(traced("recipe", task(variant="full", recipe="qwen3_30b_a3b")))
    assert counts(ledger) == FULL_SIZE | RECOMPUTED
    assert ledger.config["activation_checkpoint"] == "FullAC.Config"
    assert ledger.warnings == ["recipe qwen3_30b_a3b is not of this shape: micro_batch 2, not 1"]


def test_two_real_ranks_issue_what_the_fake_world_counts(tmp_path: Path) -> None:
    without_values(ask(tmp_path, "fake", adapter="torchtitan", **DEBUG))
    on_ranks(2, ask(tmp_path, "real", adapter="torchtitan", mode="real", **DEBUG))
    first, second = (answer(tmp_path, "real", rank) for rank in (0, 1))
    assert rows(first) == rows(second) == rows(answer(tmp_path, "fake"))
    liveness = first["ledger"]["liveness"]
    assert liveness["sequence_advance"] == liveness["sequence_counted"] == 79
    assert first["loss"][1] < first["loss"][0]


def test_real_ranks_of_two_expert_groups_issue_what_the_fake_world_counts(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"adapter": "torchtitan", "world": 4, "ep": 2}
    without_values(ask(tmp_path, "fake", **asked))
    on_ranks(4, ask(tmp_path, "real", mode="real", **asked))
    assert rows(answer(tmp_path, "real")) == rows(answer(tmp_path, "fake"))


def test_a_timed_run_times_torchtitans_steps_and_counts_one_more(tmp_path: Path) -> None:
    without_values(ask(tmp_path, "fake", adapter="torchtitan"))
    on_ranks(2, ask(tmp_path, "timed", adapter="torchtitan", mode="timed", steps=4, warmup=1))
    record = answer(tmp_path, "timed", rank=1)
    assert len(record["steps"]["step_s"]) == len(record["loss"]) == 4
    assert record["skipped_steps"] == 0
    assert all(wait < step for wait, step in zip(record["steps"]["wait_s"], record["steps"]["step_s"], strict=True))
    assert rows(record) == rows(answer(tmp_path, "fake"))
    assert {path.name for path in tmp_path.glob("steps.*")} == {"steps.begun", "steps.steady", "steps.ended"}


def test_axes_have_regbots_names_and_modules_torchtitans_paths(traced: Traced) -> None:
    ledger = ledger_of(traced("two-groups", task(world=4, ep=2, config={"activation_checkpoint": "full"})))
    assert {name: axis.size for name, axis in ledger.axes.items()} == {"ep": 2, "edp": 2, "dp": 4}
    places: dict[tuple[str, str], set[str]] = {}
    for entry in ledger.entries:
        places.setdefault((entry.kind, entry.axis), set()).add(entry.where)
    experts = {"layers.0.moe.routed_experts", "layers.1.moe.routed_experts"}
    assert places["all_to_all", "ep"] == experts
    assert places["reduce_scatter", "edp"] == {"layers.0", "layers.1"}
    assert places["reduce_scatter", "dp"] == {"tok_embeddings", "layers.0", "layers.1", "norm, lm_head"}


def test_mixtrals_numbers_are_put_on_the_same_blocks(traced: Traced) -> None:
    ledger = ledger_of(traced("mixtral", task(shape="mixtral-8x7b", world=2, ep=2)))
    assert ledger.config["model_spec.model.layers.0-1.moe.router.top_k"] == 2
    assert ledger.config["model_spec.model.layers.0-1.attention.qk_norm"] is None
    assert counts(ledger)["all_to_all"] == 8


def test_the_configuration_says_what_was_asked_for_and_names_no_machine(traced: Traced) -> None:
    plain = ledger_of(traced("plain", task(), edited())).config
    never = ledger_of(traced("never", task(config={"parallelism.fsdp_reshard_after_forward": "never"}))).config
    changed = {key for key in plain.keys() | never.keys() if plain.get(key) != never.get(key)}
    assert changed == {"parallelism.fsdp_reshard_after_forward"}
    assert plain["parallelism.spmd_backend"] == "spmd_types"
    assert plain["model_spec.model.layers.0-1.attention.inner_attention"] == "FlexAttention.Config"
    assert not [value for value in plain.values() if isinstance(value, str) and value.startswith("/")]


def test_a_checkouts_own_torchtitan_is_what_runs(traced: Traced) -> None:
    run = traced("plain", task(), edited())
    assert run.code is not None
    assert run.code.watched == {"torchtitan": "torchtitan/__init__.py"}
    assert run.code.foreign == {}
    assert ledger_of(run).software["torchtitan"] == "unknown"
    assert ledger_of(run).warnings == ["this torchtitan (version unknown) has not been seen to work; 0.3.0 has"]


Edit = tuple[str, str, str]
EXCHANGE = "models/common/token_dispatcher.py"
THERE = 'Launch the dispatch all-to-all that moves routed tokens to experts."""\n'
BACK = 'Launch the combine all-to-all that returns expert outputs to tokens."""\n'
CHECKPOINTING = "    if ac_config is not None:\n"
ALWAYS_ON = """\
    from torchtitan.distributed.activation_checkpoint import FullAC
    ac_config = ac_config or FullAC.Config()
"""
DEGREES = "        return ParallelDims.from_config(config.parallelism, world_size)\n"
NO_EXPERT_AXIS = "        config.parallelism.expert_parallel_degree = 1\n"

PLANTED: dict[str, tuple[list[Edit], str]] = {
    "checkpointing-on": (
        [("models/qwen3/parallelize.py", CHECKPOINTING, ALWAYS_ON + CHECKPOINTING)],
        RECOMPUTES,
    ),
    "gather-and-sum": ([(EXCHANGE, THERE, THERE + GATHERED), (EXCHANGE, BACK, BACK + SUMMED)], MAPPED_TWICE),
    "experts-everywhere": ([("trainer.py", DEGREES, NO_EXPERT_AXIS + DEGREES)], AXIS_LOST),
    "kept-gathered": (
        [("distributed/fsdp.py", "            return not pp_enabled\n", "            return False\n")],
        KEEPS_GATHERED,
    ),
}
"""Changes of torchtitan's own code, and the finding that each must give."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_regression_is_found_by_name(traced: Traced, name: str) -> None:
    edits, pattern = PLANTED[name]
    base, head = traced("plain", task(), edited()), traced(name, task(), edited(*edits))
    found = judge_ledgers(ledger_of(base), ledger_of(head), Config())
    assert pattern in {finding.pattern for finding in found.findings}, found


REFACTORED = [
    ("models/common/token_dispatcher.py", "_local_reorder", "_sorted_by_expert"),
    ("models/common/moe.py", "        return out_BLD\n", "        summed_BLD = out_BLD\n        return summed_BLD\n"),
    ("models/qwen3/model.py", "            x = x + self.moe(self.ffn_norm(x))\n",
     "            normed = self.ffn_norm(x)\n            x = x + self.moe(normed)\n"),
]  # fmt: skip


def test_a_refactoring_is_the_same_program(traced: Traced) -> None:
    base = ledger_of(traced("plain", task(), edited()))
    head = ledger_of(traced("refactored", task(), edited(*REFACTORED)))
    assert base.program is not None
    assert (head.program, head.entries, head.config) == (base.program, base.entries, base.config)
    found = judge_ledgers(base, head, Config())
    assert (found.status, found.findings) == ("PASS", [])


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no-such-recipe": ({"recipe": "qwen3_nothing"}, "config", "there are qwen3_debugmodel,"),
    "no-such-model": ({"recipe": "nothing"}, "config", "write MODULE/RECIPE"),
    "dense": ({"recipe": "llama3_debugmodel"}, "config", "has no MoE layer"),
    "ep-of-ranks": ({"world": 6, "ep": 4}, "config", "EP 4 does not divide 6 ranks"),
    "ep-of-experts": ({"world": 3, "ep": 3}, "config", "EP 3 does not divide the model's 128 experts"),
    "no-such-key": ({"config": {"training.nothing": 1}}, "config", "no key 'training.nothing'; there are local_batch"),
    "no-such-value": ({"config": {"parallelism.fsdp_reshard_after_forward": "?"}}, "config", "'always' or 'never'"),
    "fixed-key": ({"config": {"training.seq_len": 8}}, "config", "fixed by another shape or variant"),
    "checkpointing": ({"config": {"activation_checkpoint": "some"}}, "config", "write none, full or selective"),
    "dispatcher": ({"dispatcher": "allgather"}, "config", "there are alltoall, deepep,"),
    "compiled": ({"config": {"compile.enable": True}}, "compiled", "Turn compilation off"),
    "skewed": ({"routing": "skewed"}, "config", "no skewed one"),
}


@pytest.fixture
def refused(shared: Shared) -> Path:
    def make(folder: Path) -> None:
        without_values(*(ask(folder, name, adapter="torchtitan", **asked) for name, (asked, _, _) in REFUSED.items()))

    folder: Path = shared("torchtitan-refused", make)
    return folder


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_run_is_refused_with_a_way_out(refused: Path, name: str) -> None:
    _, kind, words = REFUSED[name]
    refusal = answer(refused, name)["refusal"]
    assert refusal["kind"] == kind
    assert words in refusal["message"]


HIDDEN = """\
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "torchtitan":
            raise ModuleNotFoundError("No module named 'torchtitan'", name=name)

sys.meta_path.insert(0, Hidden())
"""
"""Start-up code of an interpreter in which torchtitan is not installed."""


def test_without_torchtitan_the_interpreter_is_named_as_the_cause(tmp_path: Path) -> None:
    request = ask(tmp_path, "bare", adapter="torchtitan")
    (tmp_path / "sitecustomize.py").write_text(HIDDEN)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([PYTHON, str(GUEST), str(request)], env=environment, capture_output=True, check=False)
    refusal = answer(tmp_path, "bare")["refusal"]
    assert refusal["kind"] == "no_framework"
    assert "neither in the checkout nor installed; install it" in refusal["message"]


def test_a_replacement_that_misses_its_target_is_refused(traced: Traced) -> None:
    renamed = [
        (file, "get_local_device", "local_device") for file in ("tools/utils.py", "distributed/utils.py", "trainer.py")
    ]
    run = traced("renamed", task(), edited(*renamed))
    assert run.outcome == "refused"
    assert "there is no torchtitan.tools.utils.get_local_device to replace" in run.reason


def test_a_model_that_does_not_have_the_shapes_numbers_is_refused(traced: Traced) -> None:
    before, after = "                        top_k=", ",\n                        score_func"
    ignored = ("models/qwen3/__init__.py", f"{before}top_k{after}", f"{before}4{after}")
    run = traced("other-numbers", task(), edited(ignored))
    assert run.outcome == "refused"
    assert run.reason.startswith("torchtitan built another model than was asked for: top_k 4, not 8")


def test_a_dispatcher_that_is_not_there_is_told_three_times(traced: Traced) -> None:
    told = traced("deepep", task(dispatcher="deepep")).backends["dispatcher"]
    assert (told.requested, told.resolved, told.executed) == ("deepep", "alltoall", "alltoall")
    assert "deepep is not usable here, alltoall ran in its place" in told.evidence
