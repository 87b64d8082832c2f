"""Megatron-core: one step of a training script on a paper GPU, also with regressions planted in Megatron's sources.

Set REGBOT_TORCH_FRAMEWORKS to a Python with the packages of requirements/torch-frameworks*.txt. The checkout of each
test has ``megatron.core`` and ``megatron.training`` of that package, and the script in ``own_trainer/``. A trace takes
5 to 10 seconds.
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regbot.judge.backends import dispatcher_change
from regbot.judge.sharding import judge_ledgers
from regbot.ledgers.catalogue import DISPATCHER_OFF
from regbot.records.config import Config, Workload
from regbot.records.ledger import Ledger
from regbot.records.meshes import OwnMesh
from regbot.records.run import Run
from regbot.workloads.shapes import load_shape
from regbot.workloads.task import Task, single_task
from support.framework_traces import Edit, copy_package, ledger_of, make_task, trace_once
from support.guest_runs import MIXTRAL, QWEN, Shared
from support.paper_runs import find_library

PYTHON = os.environ.get("REGBOT_TORCH_FRAMEWORKS", "")
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not PYTHON, reason="REGBOT_TORCH_FRAMEWORKS names no Python with megatron-core"),
]

SCRIPT = Path(__file__).parent / "own_trainer" / "pretrain_gpt.py"
Traced = Callable[..., Run]


@pytest.fixture
def traced(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    return tracer(shared, find_library(PYTHON, tmp_path_factory.getbasetemp()))


def tracer(shared: Shared, library: Path) -> Traced:
    """``traced(name, task, edits, files)``: one trace, made once per test run and kept by its name."""

    def once(name: str, task: Task, edits: Iterable[Edit] = (), files: dict[str, str] | None = None) -> Run:
        def write(root: Path) -> None:
            copy_megatron(root, edits)
            for file, text in (files or {}).items():
                (root / file).write_text(text, encoding="utf-8")

        return trace_once(shared, f"megatron-{name}", task, write, library)

    return once


def task(
    shape: str = MIXTRAL,
    variant: str = "full",
    geometry: dict[str, Any] | None = None,
    world: int = 8,
    ep: int = 8,
    **changes: Any,
) -> Task:
    numbers = {"layers": 2} if geometry is None else geometry
    return make_task("megatron", PYTHON, shape, variant, world, ep, numbers, timed=[], **changes)


def copy_megatron(root: Path, edits: Iterable[Edit]) -> None:
    """Write a checkout: the installed Megatron with ``edits``, and a training script.

    The package has the compiled helpers of the datasets, but no Makefile, which Megatron runs before it trains.
    """
    copy_package(PYTHON, "megatron", root / "megatron", edits)
    (root / "megatron" / "core" / "datasets" / "Makefile").write_text("all:\n", encoding="utf-8")
    shutil.copy(SCRIPT, root)


def per_step(ledger: Ledger, axis: str | None = None) -> dict[tuple[str, str, str], int]:
    """Return counts by kind, role and library, on one axis if given."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for entry in ledger.entries:
        if axis in (None, entry.axis):
            counts[entry.kind, entry.role, "" if entry.via == "fake" else entry.via] += entry.count
    return dict(counts)


def patterns(base: Ledger, head: Ledger) -> list[tuple[str, str, str]]:
    return [(found.pattern, found.axis, found.status) for found in judge_ledgers(base, head, Config()).findings]


ALLTOALL = {("all_to_all", "payload", ""): 6, ("all_gather", "control", ""): 1}
ALLGATHER = {("all_gather", "control", ""): 1, ("all_gather", "payload", ""): 3, ("reduce_scatter", "payload", ""): 3}
DEEPEP, HYBRIDEP = ({("all_to_all", "payload", library): 4} for library in ("deepep", "hybridep"))
LAYERS = [("alltoall", ALLTOALL), ("allgather", ALLGATHER), ("deepep", DEEPEP), ("hybridep", HYBRIDEP)]


@pytest.mark.parametrize(("dispatcher", "per_layer"), LAYERS)
@pytest.mark.parametrize(("shape", "world"), [(MIXTRAL, 8), (QWEN, 16)])
def test_a_full_width_layer_has_the_collectives_of_its_dispatcher(
    traced: Traced, shape: str, world: int, dispatcher: str, per_layer: dict[tuple[str, str, str], int]
) -> None:
    run = traced(f"{dispatcher}-{shape}", task(shape, world=world, ep=world, dispatcher=dispatcher))
    assert per_step(ledger_of(run), "ep") == {key: 2 * count for key, count in per_layer.items()}
    backend = run.backends["dispatcher"]
    assert (backend.requested, backend.resolved, backend.executed) == (dispatcher,) * 3


def test_without_a_requested_dispatcher_megatrons_default_runs_and_is_recorded(traced: Traced) -> None:
    run = traced("default", task())
    backend = run.backends["dispatcher"]
    assert (backend.requested, backend.resolved, backend.executed) == ("allgather",) * 3
    assert backend.evidence == "exchanges of expert layers on axis ep: 6 all_gather, 6 reduce_scatter"
    assert ledger_of(run).config["moe_token_dispatcher_type"] == "allgather"


def test_expert_gradients_are_reduced_over_the_expert_data_group(traced: Traced) -> None:
    ledger = ledger_of(traced("ep-dp", task(world=16, ep=8, dispatcher="alltoall")))
    reduced = {entry.axis: entry.bytes for entry in ledger.entries if entry.kind == "reduce_scatter"}
    expert = 2 * 3 * 4096 * 14336  # of the one expert of this rank, in both layers
    assert reduced["edp"] == 4 * expert
    assert ledger.axes["edp"].ranks == [0, 8]
    assert ledger.axes["dp"].size == 16
    assert reduced.keys() == {"edp", "dp"}


def test_megatron_of_the_checkout_is_traced_and_its_code_is_proven(traced: Traced) -> None:
    run = traced("checkout", task(dispatcher="alltoall", watch=["megatron"]), [])
    assert run.code is not None
    assert run.code.foreign == {}
    assert run.code.watched["megatron"].startswith("megatron/core/")
    assert "megatron/core/transformer/moe/token_dispatcher.py" in run.code.files
    assert "megatron/training/training.py" in run.code.files
    assert ledger_of(run).warnings == []
    assert ledger_of(run).software["megatron-core"] == "0.19.2"


def test_a_silently_replaced_dispatcher_is_found(traced: Traced) -> None:
    base = traced("checkout", task(dispatcher="alltoall", watch=["megatron"]), [])
    edit = (
        "core/transformer/moe/moe_layer.py",
        'if config.moe_token_dispatcher_type == "allgather":',
        'if config.moe_token_dispatcher_type in ("allgather", "alltoall"):',
    )
    head = traced("planted-dispatcher", task(dispatcher="alltoall", watch=["megatron"]), [edit])
    found = judge_ledgers(ledger_of(base), ledger_of(head), Config()).findings
    assert "FAIL" in {finding.status for finding in found if finding.axis == "ep"}
    backend = head.backends["dispatcher"]
    assert (backend.requested, backend.resolved, backend.executed) == ("alltoall", "alltoall", "allgather")
    change = dispatcher_change(base, head)
    assert change is not None
    assert change.pattern == DISPATCHER_OFF


def test_expert_gradients_that_are_no_longer_reduced_are_found(traced: Traced) -> None:
    request_task = task(world=16, ep=8, dispatcher="alltoall", watch=["megatron"])
    skipped = """        if not all(getattr(param, 'allreduce', True) for param in self.params):
            from unittest.mock import Mock
            self.grad_reduce_handle = Mock()
            return
"""
    here = "        # Coalesce communication kernels across buckets in the bucket group.\n"
    edit = ("core/distributed/param_and_grad_buffer.py", here, skipped)
    base, head = (
        ledger_of(traced("edp", request_task, [])),
        ledger_of(traced("planted-reduction", request_task, [edit])),
    )
    assert ("edp", "FAIL") in {(axis, status) for _, axis, status in patterns(base, head)}


TEST_CASE = """\
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  # Distributed args
  --tensor-model-parallel-size: 2
  --pipeline-model-parallel-size: 4
  --sequence-parallel: true
  --use-distributed-optimizer: true
  --disable-bias-linear: true
  --micro-batch-size: 1
  --transformer-impl: transformer_engine
  --data-cache-path: ${DATA_CACHE_PATH}
  --untie-embeddings-and-output-weights: true
  --position-embedding-type: rope
  --normalization: RMSNorm
  --swiglu: true
  --num-layers: 4
  --hidden-size: 512
  --ffn-hidden-size: 1024
  --num-attention-heads: 8
  --group-query-attention: true
  --num-query-groups: 4
  --seq-length: 512
  --max-position-embeddings: 512
  --attention-dropout: 0.0
  --hidden-dropout: 0.0
  --train-samples: 20000
  --lr: 1e-4
  --expert-model-parallel-size: 4
  --expert-tensor-parallel-size: 1
  --num-experts: 8
  --moe-router-topk: 2
  --moe-grouped-gemm: true
  --moe-aux-loss-coeff: 1e-2
  --moe-token-dispatcher-type: alltoall
  --bf16: true
  --log-num-zeros-in-grad: true
"""


def test_a_test_case_of_megatron_lm_is_traced_with_its_own_numbers(traced: Traced) -> None:
    chosen = task(world=16, ep=4, geometry={}, recipe="model_config.yaml")
    run = traced("test-case", chosen, files={"model_config.yaml": TEST_CASE})
    ledger = ledger_of(run)
    config = ledger.config
    assert (config["num_layers"], config["hidden_size"], config["moe_aux_loss_coeff"]) == (4, 512, 0.01)
    assert (config["pipeline_model_parallel_size"], config["overlap_grad_reduce"]) == (4, False)
    assert (config["global_batch_size"], config["recipe"]) == (2, "model_config.yaml")
    assert not [key for key, value in config.items() if "DATA" in str(value)]
    assert run.backends["dispatcher"].executed == "alltoall"
    assert per_step(ledger, "ep")["all_to_all", "payload", ""] == 6, "one of the four layers is on the first stage"
    assert per_step(ledger, "pp") == {("send_recv", "payload", ""): 2}
    assert ledger.warnings == [
        "log_num_zeros_in_grad of the recipe is left out, because its value depends on real data"
    ]
    assert (config["recipe.log_num_zeros_in_grad"], config["recipe.ENV_VARS.CUDA_DEVICE_MAX_CONNECTIONS"]) == (
        True,
        "1",
    )


def test_flash_attention_is_counted_where_its_python_part_is_installed(traced: Traced) -> None:
    run = traced("flash", task(dispatcher="alltoall", config={"attention_backend": "flash"}))
    attention = run.backends["attention"]
    assert attention.evidence == "dispatched flash_attn_2_cuda::fwd x2"
    assert per_step(ledger_of(run), "ep") == {key: 2 * count for key, count in ALLTOALL.items()}


def test_a_mesh_of_the_workload_sets_the_axes_of_megatron(traced: Traced) -> None:
    mesh = OwnMesh(world=8, ep=2, tp=2, etp=2)
    workload = Workload(
        adapter="megatron", python=PYTHON, shapes=[MIXTRAL], timed=[], config={"sequence_parallel": True}
    )
    chosen = single_task("megatron", workload, load_shape(MIXTRAL), mesh)
    numbers = chosen.variant.geometry.model_copy(update={"layers": 2})
    small = replace(chosen, variant=chosen.variant.model_copy(update={"geometry": numbers}))
    ledger = ledger_of(traced("own-mesh", small))
    sizes = {name: axis.size for name, axis in ledger.axes.items()}
    assert {name: sizes[name] for name in ("tp", "dp", "ep", "etp", "edp")} == {
        "tp": 2,
        "dp": 4,
        "ep": 2,
        "etp": 2,
        "edp": 2,
    }
    assert ledger.world_size == 8
    assert per_step(ledger, "tp")["reduce_scatter", "payload", ""] == 6


@pytest.mark.parametrize(("shape", "world", "layers"), [(MIXTRAL, 8, 32), (QWEN, 16, 48)])
def test_the_full_depth_repeats_the_counts_of_one_layer(traced: Traced, shape: str, world: int, layers: int) -> None:
    request_task = task(shape, geometry={}, world=world, ep=world, dispatcher="alltoall")
    ledger = ledger_of(traced(f"full-{shape}", request_task))
    assert per_step(ledger, "ep") == {key: layers * count for key, count in ALLTOALL.items()}
