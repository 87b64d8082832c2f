"""torchtitan: its counts at full size, its traces compared with real ranks, and planted regressions.

Set REGBOT_TORCH_FRAMEWORKS to a Python with torchtitan 0.3.0 (docs/frameworks.md). Every run is made once.
"""

import os
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regbot.judge import judge_ledgers
from regbot.ledgers.catalogue import ALL_TO_ALL_REPLACED, AXIS_LOST, KEEPS_GATHERED, RECOMPUTES
from regbot.records.config import Config
from regbot.records.ledger import Ledger
from regbot.records.run import Run
from regbot.workloads.task import Task
from support.framework_traces import Edit, Sources, copy_package, ledger_of, make_task, trace_once
from support.guest_runs import GUEST, SCRIPTS, Shared, answer, ask, rows
from support.paper_runs import find_library

PYTHON = os.environ.get("REGBOT_TORCH_FRAMEWORKS", "")
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not PYTHON, reason="REGBOT_TORCH_FRAMEWORKS names no Python with torchtitan"),
]

TIMEOUT_S = 300
OLDER_BACKEND = {"parallelism.spmd_backend": "partial_dtensor"}
"""The SPMD backend that the pinned torch can run."""
BACKEND_WARNING = "parallelism.spmd_backend is 'partial_dtensor'; torchtitan's own is 'spmd_types'"
DEBUG = {
    "recipe": "qwen3_moe_debug",
    "config": OLDER_BACKEND | {"training.seq_len": 128, "training.local_batch_size": 1},
}
"""The debug recipe as the repository ships it (8 layers, 64 experts, selective checkpointing), on fewer tokens."""
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
    changes["config"] = OLDER_BACKEND | changes.get("config", {})
    return make_task("torchtitan", PYTHON, shape, variant, world, ep, {}, **changes)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The paper GPU for the torch of the frameworks' interpreter. Skips where it cannot be built."""
    return find_library(PYTHON, tmp_path_factory.getbasetemp())


@pytest.fixture
def traced(shared: Shared, library: Path) -> Traced:
    return tracer(shared, library)


def tracer(shared: Shared, library: Path) -> Traced:
    """``traced(name, task, sources)``: one trace, of the installed torchtitan or of the one that ``sources`` writes."""
    return lambda name, task, sources=lambda _: None: trace_once(shared, f"torchtitan-{name}", task, sources, library)


def edited(*edits: Edit) -> Sources:
    """A checkout of the installed torchtitan with ``edits``."""
    return lambda root: copy_package(PYTHON, "torchtitan", root / "torchtitan", edits)


def on_ranks(ranks: int, request: Path) -> None:
    """Run the guest on the ranks of torchrun, with the frameworks' interpreter and torchtitan made to run on a CPU."""
    command = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(GUEST)}
    done = subprocess.run(
        [*command, str(SCRIPTS / "torchtitan_on_cpu.py"), str(request)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def on_paper(*requests: Path) -> None:
    """Run several static requests in one process, because importing torchtitan takes longer than most refusals."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    script = [PYTHON, str(GUEST), *map(str, requests)]
    subprocess.run(script, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def counts(ledger: Ledger) -> dict[str, int]:
    """Return collectives of the step by kind, with exchanges of token counts separate."""
    found = Counter[str]()
    for entry in ledger.entries:
        counted_apart = entry.kind == "all_to_all" and entry.role == "control"
        found["token counts" if counted_apart else entry.kind] += entry.count
    return dict(found)


FULL_SIZE = {"all_gather": 101, "token counts": 48, "all_to_all": 192, "reduce_scatter": 51, "all_reduce": 7}
TWO_GROUPS = {"all_gather": 197, "reduce_scatter": 99}
RECOMPUTED = {"token counts": 96, "all_to_all": 288}


@pytest.mark.parametrize(
    ("mode", "world", "ep", "expected"),
    [
        ("none", 16, 16, FULL_SIZE),
        ("full", 16, 16, FULL_SIZE | RECOMPUTED),
        ("none", 64, 16, FULL_SIZE | TWO_GROUPS),
    ],
)
def test_qwen3_30b_a3b_is_counted_at_full_size(
    traced: Traced, mode: str, world: int, ep: int, expected: dict[str, int]
) -> None:
    config = {"activation_checkpoint": mode}
    run = traced(f"full-{mode}-{world}-{ep}", task(variant="full", world=world, ep=ep, config=config))
    assert counts(ledger_of(run)) == expected
    assert run.peak_rss_bytes is not None
    assert run.peak_rss_bytes < 1.5 * 2**30


def test_the_shipped_recipe_recomputes_as_configured(traced: Traced) -> None:
    ledger = ledger_of(traced("recipe", task(variant="full", recipe="qwen3_30b_a3b")))
    assert counts(ledger) == FULL_SIZE | RECOMPUTED
    assert ledger.config["activation_checkpoint"] == "FullAC.Config"
    assert "recipe qwen3_30b_a3b is not of this shape: micro_batch 2, not 1" in ledger.warnings


def test_a_timed_run_times_torchtitans_steps_and_counts_what_the_trace_counts(tmp_path: Path, library: Path) -> None:
    on_paper(ask(tmp_path, "paper", adapter="torchtitan", paper=str(library), **DEBUG))
    on_ranks(2, ask(tmp_path, "timed", adapter="torchtitan", mode="timed", steps=4, warmup=1, **DEBUG))
    first, record = (answer(tmp_path, "timed", rank) for rank in (0, 1))
    liveness = first["ledger"]["liveness"]
    assert liveness["sequence_advance"] == liveness["sequence_counted"] == 79
    assert first["loss"][1] < first["loss"][0]
    assert len(record["steps"]["step_s"]) == len(record["loss"]) == 4
    assert record["skipped_steps"] == 0
    assert all(wait < step for wait, step in zip(record["steps"]["wait_s"], record["steps"]["step_s"], strict=True))
    assert rows(first) == rows(record) == rows(answer(tmp_path, "paper"))
    assert {path.name for path in tmp_path.glob("steps.*")} == {"steps.begun", "steps.steady", "steps.ended"}


def test_axes_have_regbots_names_and_modules_have_torchtitans_paths(traced: Traced) -> None:
    ledger = ledger_of(traced("two-groups", task(world=4, ep=2, config={"activation_checkpoint": "full"})))
    assert {name: axis.size for name, axis in ledger.axes.items()} == {"ep": 2, "edp": 2, "dp": 4}
    places: dict[tuple[str, str], set[str]] = {}
    for entry in ledger.entries:
        places.setdefault((entry.kind, entry.axis), set()).add(entry.where)
    experts = {"layers.0.moe.routed_experts", "layers.1.moe.routed_experts"}
    assert places["all_to_all", "ep"] == experts
    assert places["reduce_scatter", "edp"] == {"layers.0", "layers.1"}
    assert places["reduce_scatter", "dp"] == {"tok_embeddings", "layers.0", "layers.1", "norm, lm_head"}


def test_the_configuration_has_the_requested_values_and_no_machine_paths(traced: Traced) -> None:
    plain = ledger_of(traced("plain", task(), edited())).config
    never = ledger_of(traced("never", task(config={"parallelism.fsdp_reshard_after_forward": "never"}))).config
    changed = {key for key in plain.keys() | never.keys() if plain.get(key) != never.get(key)}
    assert changed == {"parallelism.fsdp_reshard_after_forward"}
    assert plain["parallelism.spmd_backend"] == "partial_dtensor"
    assert plain["model_spec.model.layers.0-1.attention.inner_attention"] == "FlexAttention.Config"
    assert not [value for value in plain.values() if isinstance(value, str) and value.startswith("/")]


def test_torchtitan_of_the_checkout_runs(traced: Traced) -> None:
    run = traced("plain", task(), edited())
    assert run.code is not None
    assert run.code.watched == {"torchtitan": "torchtitan/__init__.py"}
    assert run.code.foreign == {}
    assert "torch" in ledger_of(run).software
    (warning,) = ledger_of(run).warnings
    assert warning.startswith(BACKEND_WARNING)


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
    "gather-and-sum": ([(EXCHANGE, THERE, THERE + GATHERED), (EXCHANGE, BACK, BACK + SUMMED)], ALL_TO_ALL_REPLACED),
    "experts-everywhere": ([("trainer.py", DEGREES, NO_EXPERT_AXIS + DEGREES)], AXIS_LOST),
    "kept-gathered": (
        [("distributed/fsdp.py", "            return not pp_enabled\n", "            return False\n")],
        KEEPS_GATHERED,
    ),
}
"""Changes of torchtitan's code, and the expected finding of each."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_regression_has_its_named_finding(traced: Traced, name: str) -> None:
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


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "backend": ({}, "config", "'spmd_types', which needs torch 2.14 or newer"),
    "no-such-recipe": ({"recipe": "qwen3_nothing"}, "config", "there are qwen3_debugmodel,"),
    "dense": ({"recipe": "llama3_debugmodel"}, "config", "has no MoE layer"),
    "ep-of-experts": ({"world": 3, "ep": 3}, "config", "EP 3 does not divide the model's 128 experts"),
    "no-such-key": (
        {"config": {"training.nothing": 1}},
        "config",
        "no key 'training.nothing'; the nearest keys are training.",
    ),
    "pipeline": ({"config": {"parallelism.pipeline_parallel_degree": 2}}, "config", "pipeline parallelism"),
    "no-such-value": ({"config": {"parallelism.fsdp_reshard_after_forward": "?"}}, "config", "'always' or 'never'"),
    "dispatcher": ({"dispatcher": "allgather"}, "config", "there are alltoall, deepep,"),
    "skewed": ({"routing": "skewed"}, "config", "balanced routing only, not skewed"),
}


@pytest.fixture
def refused(shared: Shared, library: Path) -> Path:
    def make(folder: Path) -> None:
        common = {"adapter": "torchtitan", "paper": str(library)}
        requests = []
        for name, (options, _, _) in REFUSED.items():
            config = options.get("config", {}) | (OLDER_BACKEND if name != "backend" else {})
            requests.append(ask(folder, name, **common, **options | {"config": config}))
        on_paper(*requests)

    folder: Path = shared("torchtitan-refused", make)
    return folder


@pytest.mark.parametrize("name", REFUSED)
def test_a_request_that_cannot_run_is_refused_with_advice(refused: Path, name: str) -> None:
    _, kind, words = REFUSED[name]
    refusal = answer(refused, name)["refusal"]
    assert refusal["kind"] == kind
    assert words in refusal["message"]


DATASETS = "hf_datasets/text_datasets.py"


def test_a_replacement_whose_target_has_moved_is_skipped_and_named(traced: Traced) -> None:
    """The recipe's own test data is then used, which lies in the working directory."""
    run = traced("other-table", task(recipe="qwen3_moe_debug"), edited((DATASETS, "DATASETS", "KNOWN_DATASETS")))
    skipped = "skipped, because there is no dataset 'c4_test' in torchtitan.hf_datasets.text_datasets.DATASETS"
    assert [warning for warning in ledger_of(run).warnings if warning.startswith(skipped)]


def test_compiled_parts_run_eagerly_and_are_named(traced: Traced) -> None:
    ledger = ledger_of(traced("compiled", task(config={"compile.enable": True})))
    assert counts(ledger) == counts(ledger_of(traced("plain", task(), edited())))
    assert "would be compiled by torch.compile, and ran eagerly" in ledger.guesses[0]
