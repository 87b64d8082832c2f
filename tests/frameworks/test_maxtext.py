"""MaxText itself, compiled for CPU devices: the counts of the regression that motivated the collective gate.

Set REGBOT_MAXTEXT to a Python with requirements/maxtext.txt. Each compile takes 30 to 60 seconds, so each is done once.
"""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regbot.records.ledger import Ledger
from regbot.records.run import Run
from regbot.workloads.task import Task
from regbot_guest.frameworks.maxtext import RAGGED
from support.framework_traces import Edit, copy_package, ledger_of, make_task, trace_once
from support.guest_runs import Shared

PYTHON = os.environ.get("REGBOT_MAXTEXT", "")
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not PYTHON, reason="REGBOT_MAXTEXT names no Python with MaxText (requirements/maxtext.txt)"),
]

TWO_LAYERS = {"layers": 2, "sequence": 1024}
DENSE = {"sparse_matmul": False, "megablox": False, "capacity_factor": 1.25}
FALLBACK = {**DENSE, "moe_dispatch_no_expert_sharding": False}
DISPATCH = {**DENSE, "moe_dispatch_no_expert_sharding": True}
Traced = Callable[..., Run]


def copy_installed(root: Path, *edits: Edit) -> None:
    """Copy the installed MaxText into the checkout ``root``. Only a checkout's own MaxText is compiled."""
    copy_package(PYTHON, "maxtext", root / "src" / "maxtext", edits)


@pytest.fixture
def traced(shared: Shared) -> Traced:
    return tracer(shared)


def tracer(shared: Shared) -> Traced:
    """``traced(name, task, sources)``: one run of MaxText, executed once per test run and cached by name. Its checkout
    has the installed MaxText, or what ``sources`` writes."""
    return lambda name, task, sources=copy_installed: trace_once(shared, f"maxtext-{name}", task, sources)


def task(
    shape: str = "mixtral-8x7b",
    variant: str = "full",
    geometry: dict[str, Any] | None = None,
    world: int = 8,
    ep: int = 8,
    **changes: Any,
) -> Task:
    return make_task(
        "maxtext", PYTHON, shape, variant, world, ep, geometry or {}, **{"source_roots": ["src"], **changes}
    )


def counts(ledger: Ledger) -> dict[str, tuple[int, int]]:
    """Number of lines and of executions per kind."""
    lines, executions = Counter[str](), Counter[str]()
    for entry in ledger.entries:
        lines[entry.kind] += entry.static_count or 0
        executions[entry.kind] += entry.count
    return {kind: (lines[kind], executions[kind]) for kind in sorted(executions)}


@pytest.mark.parametrize(
    ("name", "config", "expected"),
    [
        ("fallback", FALLBACK, {"all_gather": (25, 46), "all_reduce": (7, 10), "all_to_all": (2, 2)}),
        ("dispatch", DISPATCH, {"all_gather": (19, 34), "all_reduce": (7, 10), "all_to_all": (8, 14)}),
    ],
)
def test_mixtral_of_two_layers_issues_the_known_collectives(
    traced: Traced, name: str, config: dict[str, Any], expected: dict[str, tuple[int, int]]
) -> None:
    ledger = ledger_of(traced(name, task(geometry=TWO_LAYERS, config=config)))
    assert counts(ledger) == expected
    assert {entry.axis for entry in ledger.entries} == {"ep"}
    assert ledger.axes["ep"].ranks == list(range(8))
    assert (ledger.source, ledger.scope, ledger.world_size) == ("hlo:cpu", "step", 8)


@pytest.mark.parametrize("config", [{}, {"megablox": False}])
def test_the_default_exchanges_ragged_rows_and_no_kernel_changes_the_counts(
    traced: Traced, config: dict[str, Any]
) -> None:
    ledger = ledger_of(traced(f"sparse-{len(config)}", task(variant="cpu", world=4, ep=2, config=config)))
    counted = Counter[tuple[str, str]]()
    for entry in ledger.entries:
        counted[entry.kind, entry.role] += entry.count
    # Two layers. Dispatch and return: once in forward, once in recompute, once in backward; and 2 of the head.
    assert counted["all_to_all", "payload"] == 2 * 2 * 3 + 2
    # The gradient of each ragged exchange first exchanges its offsets and its sizes.
    assert counted["all_to_all", "control"] == 2 * 2 * 2
    assert RAGGED in ledger.patches
    assert not [warning for warning in ledger.warnings if "not compiled" in warning]


def test_a_run_records_what_was_compiled_and_leaves_no_other_files(traced: Traced, shared: Shared) -> None:
    run = traced("dispatch", task(geometry=TWO_LAYERS, config=DISPATCH))
    ledger = ledger_of(run)
    numbers = ("emb_dim", "num_decoder_layers", "moe_mlp_dim", "num_experts", "capacity_factor", "remat_policy")
    assert [ledger.config[name] for name in numbers] == [4096, 2, 14336, 8, 1.25, "full"]
    assert ledger.config["logical_axis_rules.exp"] == "expert"
    assert not [value for value in ledger.config.values() if str(value).startswith("/")]
    assert ledger.software.keys() >= {"maxtext", "jax", "jaxlib", "flax"}
    assert "jax_cache_dir=" in ledger.patches
    assert run.environment is not None
    assert run.environment.torch is None
    assert run.code is not None
    assert (run.code.watched, run.code.foreign) == ({"maxtext": "src/maxtext/__init__.py"}, {})
    folder = shared("maxtext-dispatch", lambda _: None)
    left = {path.name for path in (folder / "scratch" / "record").iterdir()}
    assert left - {"running"} == {"raw.json", "stacks.0", "program.hlo.txt", "planted.hlo.txt"}


def test_the_same_sources_give_the_same_program(traced: Traced) -> None:
    first, second = (ledger_of(traced(name, task(variant="cpu", world=4, ep=2))) for name in ("small", "again"))
    assert first == second
    assert first.fingerprint is not None
    ranks = {name: axis.ranks for name, axis in first.axes.items()}
    assert ranks == {"fsdp": [0, 2], "ep": [0, 1], "fsdp+ep": [0, 1, 2, 3]}


def test_full_size_qwen3_exchanges_tokens_over_its_expert_axis(traced: Traced) -> None:
    ledger = ledger_of(traced("qwen3", task("qwen3-30b-a3b", config=DISPATCH)))
    assert (ledger.config["num_experts"], ledger.config["num_decoder_layers"]) == (128, 48)
    assert counts(ledger)["all_to_all"] == (8, 6 * 48 + 2)


def test_a_recipe_is_compiled_unchanged_on_the_requested_mesh(traced: Traced) -> None:
    small = {"base_num_decoder_layers": 1, "max_target_length": 128, "per_device_batch_size": 1}
    dense = {"sparse_matmul": False, "megablox": False, "capacity_factor": 2.0}
    run = traced("recipe", task(world=4, ep=2, recipe="mixtral-8x22b", config={**small, **dense}))
    ledger = ledger_of(run)
    assert (ledger.config["emb_dim"], ledger.config["num_decoder_layers"]) == (6144, 1)
    assert ledger.config["capacity_factor"] == 2.0
    assert ledger.axes["ep"].size == 2
