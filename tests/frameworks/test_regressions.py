"""Real regressions planted in real training stacks, and harmless refactorings beside them (docs/regressions.md).

Each plants the defect, not its symptom: the line that a pull request changed, in a copy of the installed sources. The
names are those of docs/regressions.md. Base and head are traced as a check does, and judged by the same rules.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest

import test_maxtext as maxtext
import test_megatron as megatron
import test_torchtitan as torchtitan
from regbot.judge import judge_ledgers
from regbot.judge.preflight.facts import Facts
from regbot.judge.preflight.rules import find_conflicts
from regbot.judge.program import judge_program
from regbot.judge.validity import changed_config
from regbot.ledgers import catalogue as names
from regbot.records.config import Config
from regbot.records.ledger import Ledger
from regbot.records.verdict import Sharding
from support.framework_traces import Edit, ledger_of
from support.guest_runs import Shared
from support.paper_runs import find_library

pytestmark = pytest.mark.frameworks

TITAN_TASK = {"config": {"activation_checkpoint": "none"}}
TITAN_MESH = ("trainer.py", torchtitan.DEGREES, "        config.parallelism.expert_parallel_degree //= 2\n")
TITAN_LAYERS = (
    "    dim = 256\n    head_dim = 128\n    n_layers = {}\n    vocab_size = 2048\n    return Qwen3Model.Config("
)
MEGATRON_ROUTER = (
    "        seq_length, bsz = logits.shape[:2]\n"
    "        logits = logits.view(-1, self.config.num_moe_experts)\n\n"
    "        # Flatten padding_mask to [num_tokens] if provided"
)
MEGATRON_EXTRACTED = MEGATRON_ROUTER.replace(
    "        logits = logits.view(-1, self.config.num_moe_experts)\n",
    "        experts = self.config.num_moe_experts\n        logits = logits.view(-1, experts)\n",
)
MAXTEXT_RULE = "['activation_batch_moe', ['data', 'fsdp', 'fsdp_transpose', 'expert']]"


@pytest.fixture
def titan(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ledger]:
    """``titan(name, task, edits)``: the ledger of a checkout of torchtitan with ``edits``."""
    if not torchtitan.PYTHON:
        pytest.skip("REGBOT_TORCH_FRAMEWORKS names no Python with torchtitan")
    traced = torchtitan.tracer(shared, find_library(torchtitan.PYTHON, tmp_path_factory.getbasetemp()))
    return lambda name, task, *edits: ledger_of(traced(f"r-{name}", task, torchtitan.edited(*edits)))


@pytest.fixture
def mcore(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ledger]:
    """As ``titan``, for Megatron-core: Mixtral, two layers, EP 8 on 16 ranks."""
    if not megatron.PYTHON:
        pytest.skip("REGBOT_TORCH_FRAMEWORKS names no Python with megatron-core")
    traced = megatron.tracer(shared, find_library(megatron.PYTHON, tmp_path_factory.getbasetemp()))

    def ledger(name: str, *edits: Edit, dispatcher: str = "alltoall") -> Ledger:
        asked = megatron.task(world=16, ep=8, dispatcher=dispatcher, watch=["megatron"])
        return ledger_of(traced(f"r-{name}", asked, list(edits)))

    return ledger


@pytest.fixture
def compiled(shared: Shared) -> Callable[..., Ledger]:
    """As ``titan``, for MaxText: Mixtral, two layers, EP 8, expert dispatch."""
    if not maxtext.PYTHON:
        pytest.skip("REGBOT_MAXTEXT names no Python with MaxText")
    traced = maxtext.tracer(shared)

    def ledger(name: str, *edits: Edit) -> Ledger:
        task = maxtext.task(geometry=maxtext.TWO_LAYERS, config=maxtext.DISPATCH)
        return ledger_of(traced(f"r-{name}", task, lambda root: maxtext.copy_installed(root, *edits)))

    return ledger


def judged(base: Ledger, head: Ledger) -> Sharding:
    return judge_ledgers(base, head, Config())


def named(section: Sharding) -> set[str]:
    return {finding.pattern for finding in section.findings}


# ---- planted


def test_r1_an_activation_that_lost_its_expert_axis(compiled: Callable[..., Ledger]) -> None:
    dropped = ("configs/base.yml", MAXTEXT_RULE, MAXTEXT_RULE.replace(", 'expert']", "]"))
    section = judged(compiled("maxtext"), compiled("r1", dropped))
    assert section.status == "FAIL", section
    assert section.findings
    assert section.wire.head_s > section.wire.base_s


def test_r2_an_expert_axis_that_is_mapped_twice(shared: Shared) -> None:
    if not maxtext.PYTHON:
        pytest.skip("REGBOT_MAXTEXT names no Python with MaxText")
    traced = maxtext.tracer(shared)
    dispatch, fallback = (
        ledger_of(traced(name, maxtext.task(geometry=maxtext.TWO_LAYERS, config=config)))
        for name, config in (("dispatch", maxtext.DISPATCH), ("fallback", maxtext.FALLBACK))
    )
    section = judged(dispatch, fallback)
    assert (section.status, named(section)) == ("FAIL", {names.ALL_TO_ALL_REPLACED})
    assert (judged(fallback, dispatch).status, named(judged(fallback, dispatch))) == ("PASS", {names.RESTORED})


def test_r7_a_dispatcher_that_was_asked_for_and_silently_replaced(mcore: Callable[..., Ledger]) -> None:
    """Only the rows, without the evidence of the executed dispatcher: every layer gathers instead of exchanging."""
    section = judged(mcore("mcore"), mcore("r7", dispatcher="allgather"))
    assert section.status == "FAIL"
    assert [finding.pattern for finding in section.findings if finding.status == "FAIL"] == [names.ALL_TO_ALL_REPLACED]


def test_r5_a_loss_coefficient_whose_default_moved(mcore: Callable[..., Ledger]) -> None:
    moved = (
        "training/arguments.py",
        "'--moe-aux-loss-coeff', type=float, nargs='+', default=0.0,",
        "'--moe-aux-loss-coeff', type=float, nargs='+', default=1e-4,",
    )
    base, head = mcore("mcore"), mcore("r5", moved)
    assert changed_config(base, head)["moe_aux_loss_coeff"] == (0.0, 1e-4)
    assert any("moe_aux_loss_coeff" in reason for reason in judged(base, head).reasons)


def test_r6_a_dispatcher_backend_beside_the_wrong_dispatcher(mcore: Callable[..., Ledger]) -> None:
    config = {**mcore("mcore").config, "moe_flex_dispatcher_backend": "hybridep"}
    found = find_conflicts(config, Facts(requested_dispatcher="hybridep"))
    assert any(conflict.severity == "invalid" for conflict in found), [c.rule for c in found]


def test_r15_a_block_that_is_built_by_default(titan: Callable[..., Ledger]) -> None:
    task = torchtitan.task(world=2, ep=2, **torchtitan.DEBUG)
    more = ("models/qwen3/__init__.py", TITAN_LAYERS.format(8), TITAN_LAYERS.format(9))
    section = judged(titan("debug", task), titan("r15", task, more))
    assert section.status == "FAIL"
    exchanged = [finding for finding in section.findings if "all_to_all" in finding.head]
    assert exchanged, section.findings


def test_r17_an_expert_parallel_size_that_was_overridden(titan: Callable[..., Ledger]) -> None:
    task = torchtitan.task(world=4, ep=4, **TITAN_TASK)
    halved = (TITAN_MESH[0], TITAN_MESH[1], TITAN_MESH[2] + TITAN_MESH[1])
    base, head = titan("ep4", task), titan("r17", task, halved)
    assert {e.group_size for e in base.entries if e.kind == "all_to_all"} == {4}
    assert {e.group_size for e in head.entries if e.kind == "all_to_all"} == {2}
    section = judged(base, head)
    assert section.status in ("FAIL", "REVIEW")
    assert names.MOVED in named(section), section.findings


def test_r19_a_value_that_the_host_waits_for_in_every_layer(mcore: Callable[..., Ledger]) -> None:
    reads = (
        "core/transformer/moe/router.py",
        MEGATRON_ROUTER,
        f"        assert logits.max().item() < 1e9\n{MEGATRON_ROUTER}",
    )
    base, head = mcore("mcore"), mcore("r19", reads)
    section = judge_program(base, head, Config())
    assert section is not None
    assert ([finding.pattern for finding in section.findings], section.status) == ([names.WAITS_ADDED], "REVIEW")
    assert named(judged(base, head)) == set()


# ---- harmless


class Harmless(NamedTuple):
    """A refactoring, and the stack that it changes."""

    stack: str
    edit: Edit


HARMLESS = {
    "titan-renamed-function": Harmless("titan", torchtitan.REFACTORED[0]),
    "titan-named-result": Harmless("titan", torchtitan.REFACTORED[1]),
    "titan-named-input": Harmless("titan", torchtitan.REFACTORED[2]),
    "mcore-comment": Harmless(
        "mcore", ("core/transformer/moe/router.py", MEGATRON_ROUTER, f"        # tokens first\n{MEGATRON_ROUTER}")
    ),
    "mcore-renamed-local": Harmless(
        "mcore",
        (
            "core/transformer/moe/router.py",
            MEGATRON_ROUTER,
            MEGATRON_ROUTER.replace(
                "seq_length, bsz = logits.shape[:2]", "shape = logits.shape\n        seq_length, bsz = shape[:2]"
            ),
        ),
    ),
    "mcore-extracted": Harmless("mcore", ("core/transformer/moe/router.py", MEGATRON_ROUTER, MEGATRON_EXTRACTED)),
    "maxtext-comment": Harmless(
        "maxtext",
        ("layers/moe.py", "    expert_mask_fused = jnp.reshape(", "    # fused\n    expert_mask_fused = jnp.reshape("),
    ),
    "maxtext-renamed-local": Harmless("maxtext", ("layers/moe.py", "expert_mask_fused", "mask_of_experts")),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_refactoring_is_silent(name: str, request: pytest.FixtureRequest) -> None:
    stack, edit = HARMLESS[name]
    if stack == "titan":
        titan, task = request.getfixturevalue("titan"), torchtitan.task(**TITAN_TASK)
        base, head = titan("titan", task), titan(name, task, edit)
    else:
        ledger = request.getfixturevalue("mcore" if stack == "mcore" else "compiled")
        base, head = ledger(stack), ledger(name, edit)
    section = judged(base, head)
    assert (section.status, section.findings, section.config_changes) == ("PASS", [], {})
    assert section.identical_program
