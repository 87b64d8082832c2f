"""Megatron-core: its counts without a GPU, compared with real ranks, and with regressions planted in its sources.

Set REGBOT_TORCH_FRAMEWORKS to a Python with megatron-core (docs/frameworks/megatron.md). A trace takes 3 to 10 seconds.
"""

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regbot.config import Config, Workload
from regbot.engines import LocalEngine
from regbot.judge.backends import dispatcher_change
from regbot.judge.sharding import judge_ledgers
from regbot.ledgers.catalogue import DISPATCHER_OFF
from regbot.records.files import read_record, write_record
from regbot.records.ledger import Ledger
from regbot.records.run import Arm, Run
from regbot.shapes import OwnMesh, load_shape
from regbot.workloads import Checkout, Limits, Scratch, Task, single_task, trace
from support.guest_runs import GUEST, MIXTRAL, QWEN, TIMEOUT_S, Shared, answer, ask, counts, rows

PYTHON = os.environ.get("REGBOT_TORCH_FRAMEWORKS", "")
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not PYTHON, reason="REGBOT_TORCH_FRAMEWORKS names no Python with megatron-core"),
]

ARM = Arm(name="head", revision="x", commit="a" * 40, tree="b" * 40)
Traced = Callable[..., Run]
Edit = tuple[str, str, str]
"""File under megatron/core, its original text, and the replacement."""


@pytest.fixture
def traced(shared: Shared) -> Traced:
    return tracer(shared)


def tracer(shared: Shared) -> Traced:
    """``traced(name, task...)``: one static run, executed once per test run and cached by name.

    With ``edits`` the checkout has Megatron's edited sources, otherwise it is empty.
    """

    def once(name: str, task: Task, edits: list[Edit] | None = None) -> Run:
        def make(folder: Path) -> None:
            root = folder / "checkout"
            root.mkdir()
            if edits is not None:
                copy_megatron(root, edits)
            found = trace(task, Checkout(ARM, root), LocalEngine(), Scratch(folder / "scratch", Limits()))
            write_record(folder / "run.json", found)

        return read_record(shared(f"megatron-{name}", make) / "run.json", Run)

    return once


def task(
    shape: str = MIXTRAL,
    variant: str = "full",
    geometry: dict[str, Any] | None = None,
    world: int = 8,
    ep: int = 8,
    **changes: Any,
) -> Task:
    workload = Workload(adapter="megatron", python=PYTHON, shapes=[shape], variant=variant, **changes)
    chosen = single_task("megatron", workload, load_shape(shape), "ep", world, ep)
    numbers = chosen.variant.geometry.model_copy(update={"layers": 2} if geometry is None else geometry)
    return replace(chosen, variant=chosen.variant.model_copy(update={"geometry": numbers}))


def installed() -> Path:
    code = "import importlib.util; print(importlib.util.find_spec('megatron.core').origin)"
    found = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip()).parent


def copy_megatron(root: Path, edits: list[Edit]) -> None:
    core = root / "megatron" / "core"
    shutil.copytree(installed(), core, ignore=shutil.ignore_patterns("__pycache__"))
    for name, before, after in edits:
        source = (core / name).read_text(encoding="utf-8")
        assert source.count(before) == 1, f"{name} has this text {source.count(before)} times: {before}"
        (core / name).write_text(source.replace(before, after), encoding="utf-8")


def ledger_of(run: Run) -> Ledger:
    assert (run.outcome, run.reason) == ("ok", ""), run.log_tail
    assert run.ledger is not None
    return run.ledger


def per_step(ledger: Ledger, axis: str | None = None) -> dict[tuple[str, str], int]:
    """Return counts by kind and role, on one axis if given."""
    found: Counter[tuple[str, str]] = Counter()
    for entry in ledger.entries:
        if axis in (None, entry.axis):
            found[entry.kind, entry.role] += entry.count
    return dict(found)


def patterns(base: Ledger, head: Ledger) -> list[tuple[str, str, str]]:
    return [(found.pattern, found.axis, found.status) for found in judge_ledgers(base, head, Config()).findings]


ALLTOALL = {("all_to_all", "payload"): 6, ("all_gather", "control"): 1}
ALLGATHER = {("all_gather", "control"): 1, ("all_gather", "payload"): 3, ("reduce_scatter", "payload"): 3}


@pytest.mark.parametrize(("dispatcher", "per_layer"), [("alltoall", ALLTOALL), ("allgather", ALLGATHER)])
@pytest.mark.parametrize(("shape", "world"), [(MIXTRAL, 8), (QWEN, 16)])
def test_a_full_width_layer_has_the_collectives_of_its_dispatcher(
    traced: Traced, shape: str, world: int, dispatcher: str, per_layer: dict[tuple[str, str], int]
) -> None:
    for layers in (2, 4):
        request_task = task(shape, geometry={"layers": layers}, world=world, ep=world, dispatcher=dispatcher)
        run = traced(f"{dispatcher}-{shape}-{layers}", request_task)
        assert per_step(ledger_of(run), "ep") == {key: layers * count for key, count in per_layer.items()}
        backend = run.backends["dispatcher"]
        assert (backend.requested, backend.resolved, backend.executed) == (dispatcher,) * 3


def test_without_a_requested_dispatcher_megatrons_default_runs_and_is_recorded(traced: Traced) -> None:
    run = traced("default", task())
    backend = run.backends["dispatcher"]
    assert (backend.requested, backend.resolved, backend.executed) == ("allgather",) * 3
    assert "MoEAllGatherTokenDispatcher x2" in backend.evidence
    assert ledger_of(run).config["moe_token_dispatcher_type"] == "allgather"


def test_expert_gradients_are_reduced_over_the_expert_data_group(traced: Traced) -> None:
    ledger = ledger_of(traced("ep-dp", task(world=16, ep=8, dispatcher="alltoall")))
    reduced = {entry.axis: entry.bytes for entry in ledger.entries if entry.kind == "reduce_scatter"}
    expert = 2 * 3 * 4096 * 14336  # of the one expert of this rank, in both layers
    assert reduced["edp"] == 4 * expert
    assert ledger.axes["edp"].ranks == [0, 8]
    assert ledger.axes["dp"].size == 16
    assert reduced.keys() == {"edp", "dp"}


def _run(request: Path, ranks: int) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [PYTHON, *launcher, str(GUEST), str(request)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(
    ("shape", "world", "changes"),
    [
        (MIXTRAL, 2, {"dispatcher": "alltoall"}),
        (QWEN, 2, {"dispatcher": "allgather"}),
        (QWEN, 4, {"dispatcher": "alltoall"}),
        (MIXTRAL, 2, {"config": {"recompute_granularity": "selective", "recompute_modules": "moe"}}),
        (MIXTRAL, 2, {"config": {"ddp.overlap_param_gather": False, "ddp.overlap_grad_reduce": False}}),
    ],
    ids=["alltoall", "allgather", "expert-data", "recompute", "no-overlap"],
)
def test_real_ranks_issue_what_the_fake_world_counts(
    tmp_path: Path, shape: str, world: int, changes: dict[str, Any]
) -> None:
    for mode, ranks in (("static", 0), ("real", world)):
        request = ask(tmp_path, mode, shape, world=world, ep=2, adapter="megatron", mode=mode, **changes)
        _run(request, ranks)
    real, fake = answer(tmp_path, "real"), answer(tmp_path, "static")
    assert rows(real) == rows(fake)
    proof = real["ledger"]["liveness"]
    assert proof["sequence_advance"] == proof["sequence_counted"] == sum(counts(real).values())
    assert real["loss"][1] < real["loss"][0]
    assert all(counts(answer(tmp_path, "real", rank)) == counts(real) for rank in range(world))


def test_the_second_and_third_step_have_equal_counts(tmp_path: Path) -> None:
    for steps in (2, 3):
        _run(ask(tmp_path, f"s{steps}", MIXTRAL, adapter="megatron", dispatcher="alltoall", steps=steps), 0)
    assert rows(answer(tmp_path, "s2")) == rows(answer(tmp_path, "s3"))


def test_a_timed_run_times_its_steps_and_counts_one_more(tmp_path: Path) -> None:
    request = ask(
        tmp_path, "timed", MIXTRAL, adapter="megatron", mode="timed", dispatcher="alltoall", steps=4, warmup=1
    )
    _run(request, 2)
    record = answer(tmp_path, "timed")
    assert len(record["steps"]["step_s"]) == 4
    assert record["skipped_steps"] == 0
    assert counts(record)["all_to_all"] == 12


def test_megatron_of_the_checkout_is_traced_and_its_code_is_proven(traced: Traced) -> None:
    run = traced("checkout", task(dispatcher="alltoall", watch=["megatron"]), [])
    assert run.code is not None
    assert run.code.foreign == {}
    assert run.code.watched["megatron"].startswith("megatron/core/")
    assert "megatron/core/transformer/moe/token_dispatcher.py" in run.code.files
    assert ledger_of(run).warnings == []
    assert per_step(ledger_of(run)) == per_step(ledger_of(traced(f"alltoall-{MIXTRAL}-2", task(dispatcher="alltoall"))))


def test_a_silently_replaced_dispatcher_is_found(traced: Traced) -> None:
    base = traced("checkout", task(dispatcher="alltoall", watch=["megatron"]), [])
    edit = (
        "transformer/moe/moe_layer.py",
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


def test_recompute_that_dispatches_again_is_found_with_its_setting(traced: Traced) -> None:
    base = ledger_of(traced("checkout", task(dispatcher="alltoall", watch=["megatron"]), []))
    edits = [
        (
            "transformer/transformer_config.py",
            "    recompute_granularity: Optional[Literal['full', 'selective']] = None\n",
            "    recompute_granularity: Optional[Literal['full', 'selective']] = 'selective'\n",
        ),
        (
            "transformer/transformer_config.py",
            "    recompute_modules: Optional[List[str]] = None\n",
            "    recompute_modules: Optional[List[str]] = field(default_factory=lambda: ['moe'])\n",
        ),
    ]
    head = ledger_of(traced("planted-recompute", task(dispatcher="alltoall", watch=["megatron"]), edits))
    assert per_step(head, "ep") == {("all_to_all", "payload"): 18, ("all_gather", "control"): 4}
    assert [axis for _, axis, status in patterns(base, head) if status == "FAIL"] == ["ep"]
    changed = {key: head.config[key] for key in head.config if head.config[key] != base.config[key]}
    assert changed == {"recompute_granularity": "selective", "recompute_modules": "moe"}
    assert "optimizer" not in {entry.phase for entry in head.entries if entry.axis == "ep"}


def test_expert_gradients_that_are_no_longer_reduced_are_found(traced: Traced) -> None:
    request_task = task(world=16, ep=8, dispatcher="alltoall", watch=["megatron"])
    skipped = """        if not all(getattr(param, 'allreduce', True) for param in self.params):
            from unittest.mock import Mock
            self.grad_reduce_handle = Mock()
            return
"""
    here = "        # Coalesce communication kernels across buckets in the bucket group.\n"
    edit = ("distributed/param_and_grad_buffer.py", here, skipped)
    base, head = (
        ledger_of(traced("edp", request_task, [])),
        ledger_of(traced("planted-reduction", request_task, [edit])),
    )
    assert ("edp", "FAIL") in {(axis, status) for _, axis, status in patterns(base, head)}


def test_a_refactoring_stays_silent(traced: Traced) -> None:
    base = traced("checkout", task(dispatcher="alltoall", watch=["megatron"]), [])
    before = """        global_probs = all_to_all(
            self.ep_group,
            permuted_probs,
"""
    after = """        probs_to_send, group = permuted_probs, self.ep_group
        global_probs = all_to_all(
            group,
            probs_to_send,
"""
    edit = ("transformer/moe/token_dispatcher.py", before, after)
    head = traced("refactored", task(dispatcher="alltoall", watch=["megatron"]), [edit])
    assert patterns(ledger_of(base), ledger_of(head)) == []
    assert ledger_of(base).program == ledger_of(head).program
    assert ledger_of(base).config == ledger_of(head).config
    assert base.code != head.code


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dispatcher": "flex"}, "cannot be traced without a GPU"),
        ({"dispatcher": "nccl"}, "Megatron has no dispatcher 'nccl'"),
        ({"config": {"moe_router_topk": 1}}, "config.moe_router_topk: fixed by the shape"),
        ({"config": {"moe_aux_loss_coef": 0.1}}, "this Megatron has no such field"),
        ({"config": {"ddp.overlap": True}}, "this Megatron has no such field"),
        ({"config": {"recompute_granularity": "full"}}, "Megatron rejects this configuration: "),
        ({"config": {"overlap_moe_expert_parallel_comm": True}}, "without a GPU and Transformer Engine"),
        ({"config": {"ddp.use_megatron_fsdp": True}}, "regbot builds no such model"),
        ({"recipe": "no/such.yaml"}, "there is no such file in the checkout"),
        ({"recipe": "no.such:recipe"}, "for a recipe of Megatron Bridge set 'program' too"),
    ],
)
def test_a_request_that_cannot_be_traced_is_refused_with_the_reason(
    traced: Traced, changes: dict[str, Any], words: str
) -> None:
    run = traced(f"refused-{abs(hash(str(changes)))}", task(variant="cpu", geometry={}, world=2, ep=2, **changes))
    assert run.outcome == "refused"
    assert words in run.reason


def test_a_replacement_without_its_target_is_refused_by_name(traced: Traced) -> None:
    edits = [
        ("transformer/moe/router.py", "    apply_random_logits,\n", "    apply_random_logits as random_logits,\n"),
        ("transformer/moe/router.py", "logits = apply_random_logits(logits)", "logits = random_logits(logits)"),
    ]
    run = traced("untargeted", task(variant="cpu", geometry={}, world=2, ep=2, watch=["megatron"]), edits)
    assert run.outcome == "refused"
    assert "there is no megatron.core.transformer.moe.router.apply_random_logits" in run.reason
    assert "0.19.2" in run.reason


def test_a_geometry_that_differs_from_the_shape_is_refused(traced: Traced) -> None:
    edit = (
        "transformer/moe/router.py",
        "self.topk = self.config.moe_router_topk",
        "self.topk = 1",
    )
    run = traced("geometry", task(variant="cpu", geometry={}, world=2, ep=2), [edit])
    assert run.outcome == "refused"
    assert "top-k: {1} instead of {2}" in run.reason


def test_an_unknown_version_is_traced_with_a_warning(traced: Traced) -> None:
    edit = ("package_info.py", "PATCH = 2\n", "PATCH = 99\n")
    ledger = ledger_of(traced("version", task(variant="cpu", geometry={}, world=2, ep=2), [edit]))
    assert ledger.warnings == ["regbot is not tested with megatron-core 0.19.99, only with 0.19.2"]
    assert ledger.software["megatron-core"] == "0.19.99"


def test_an_error_in_the_code_under_test_is_recorded_with_its_line(traced: Traced) -> None:
    edit = (
        "transformer/moe/token_dispatcher.py",
        "        global_probs = all_to_all(\n",
        "        raise RuntimeError('no such kernel')\n        global_probs = all_to_all(\n",
    )
    run = traced(
        "broken", task(variant="cpu", geometry={}, world=2, ep=2, dispatcher="alltoall", watch=["megatron"]), [edit]
    )
    assert run.outcome == "crashed"
    assert "RuntimeError: no such kernel (megatron/core/transformer/moe/token_dispatcher.py:" in run.reason


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
  --attention-dropout: 0.0
  --hidden-dropout: 0.0
  --lr-warmup-samples: 3906252
  --expert-model-parallel-size: 4
  --expert-tensor-parallel-size: 1
  --num-experts: 8
  --moe-router-topk: 2
  --moe-grouped-gemm: true
  --moe-aux-loss-coeff: 1e-2
  --moe-token-dispatcher-type: alltoall
  --bf16: true
"""


def test_a_test_case_of_megatron_lm_is_traced_with_its_own_numbers(tmp_path: Path) -> None:
    (tmp_path / "model_config.yaml").write_text(TEST_CASE)
    request = ask(tmp_path, "recipe", MIXTRAL, world=16, ep=4, adapter="megatron", recipe="model_config.yaml")
    _run(request, 0)
    record = answer(tmp_path, "recipe")
    config = record["ledger"]["config"]
    assert (config["num_layers"], config["hidden_size"], config["moe_aux_loss_coeff"]) == (4, 512, 0.01)
    assert (config["moe_grouped_gemm"], config["transformer_impl"]) == (True, "transformer_engine")
    assert (config["ddp.overlap_grad_reduce"], config["ddp.grad_reduce_in_fp32"]) == (False, True)
    assert config["recipe.lr_warmup_samples"] == 3906252
    assert not [key for key, value in config.items() if "DATA" in str(value)]
    assert record["backends"]["dispatcher"]["executed"] == "alltoall"
    assert counts(record, "kind", "axis", "role")["all_to_all", "ep", "payload"] == 6 * 4
    warned = [warning for warning in record["ledger"]["warnings"] if "4 pipeline stages" in warning]
    assert len(warned) == 1


def test_a_mesh_of_the_workload_sets_the_axes_of_megatron(traced: Traced) -> None:
    mesh = OwnMesh(world=8, ep=2, tp=2, etp=2)
    workload = Workload(adapter="megatron", python=PYTHON, shapes=[MIXTRAL], config={"sequence_parallel": True})
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
    assert per_step(ledger, "tp")["reduce_scatter", "payload"] == 6


@pytest.mark.parametrize(("shape", "world", "layers"), [(MIXTRAL, 8, 32), (QWEN, 16, 48)])
def test_the_full_depth_repeats_the_counts_of_one_layer(traced: Traced, shape: str, world: int, layers: int) -> None:
    request_task = task(shape, geometry={}, world=world, ep=world, dispatcher="alltoall")
    ledger = ledger_of(traced(f"full-{shape}", request_task))
    assert per_step(ledger, "ep") == {key: layers * count for key, count in ALLTOALL.items()}
