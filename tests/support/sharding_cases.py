"""The states of a check that times nothing: records of the smoke model's shapes, and the judge's verdict on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from regbot.judge import judge, parse_expectation
from regbot.records.config import Config
from regbot.records.crash import Crash
from regbot.records.ledger import Ledger
from regbot.records.run import Arm, CodeProof, Run
from regbot.records.session import Session, SessionHeader, UnconcernedWorkload
from regbot.records.verdict import Verdict
from regbot.workloads.checkout.changed_lines import parse_diff
from support.ledger_builder import doubled, edited, placed, smoke_ledger, smoke_run, where

Case = tuple[Verdict, Session]

BASE = Arm(name="base", revision="main", commit="4f1c09ab" * 5, tree="11" * 20, subject="Bump the tokenizer")
HEAD = Arm(
    name="head",
    revision="HEAD",
    commit="b82e6d17" * 5,
    tree="22" * 20,
    subject="Route experts through the logical axis rules (#812)",
)


@dataclass(frozen=True)
class Shape:
    """What of a shape decides its ledger."""

    entry: str
    layers: int
    ep: int
    world: int
    tokens: int
    hidden: int
    top_k: int
    experts: int
    expert_width: int


QWEN = Shape("qwen3-30b-a3b@1/ep", 48, 16, 16, 4096, 2048, 8, 128, 768)
QWEN_DP = replace(QWEN, entry="qwen3-30b-a3b@1/ep-dp", world=64)
MIXTRAL = Shape("mixtral-8x7b@1/ep", 32, 8, 8, 2048, 4096, 2, 8, 14336)
MIXTRAL_DP = replace(MIXTRAL, entry="mixtral-8x7b@1/ep-dp", world=16)
SHAPES = (QWEN, QWEN_DP, MIXTRAL, MIXTRAL_DP)


def ledger(shape: Shape, broken: Callable[[int], bool] = lambda _: False, program: str = "a") -> Ledger:
    """The ledger of ``shape``: the layers that are ``broken`` gather."""
    gathering = [layer for layer in range(shape.layers) if broken(layer)]
    made = smoke_ledger(
        shape.layers,
        shape.ep,
        shape.world,
        dispatchers=dict.fromkeys(gathering, "allgather"),
        hidden=shape.hidden,
        tokens=shape.tokens,
        top_k=shape.top_k,
        experts=shape.experts,
        expert_width=shape.expert_width,
        workload=shape.entry,
        program=program * 64,
    )
    dispatcher = "allgather" if len(gathering) == shape.layers else "alltoall"
    return made.model_copy(update={"config": {"dispatcher": dispatcher}})


def changed(shape: Shape) -> Ledger:
    """Another program with the same collectives."""
    return ledger(shape, program="b")


def fallen(shape: Shape) -> Ledger:
    """Every layer gathers."""
    return ledger(shape, lambda _: True, program="b")


DIFF = """diff --git a/train/moe.py b/train/moe.py
--- a/train/moe.py
+++ b/train/moe.py
@@ -41 +41,2 @@
-        return dispatch(x)
+        axes = rules.axes(x)
+        return exchange(x, axes)
"""


def called(shape: Shape) -> Ledger:
    """The ledger of ``shape``, with the line of its all-to-all and of the call that ``DIFF`` changes."""
    return placed(ledger(shape), "all_to_all", ("train/dispatch.py:70", "dispatch"), ("train/moe.py:41", "MoE.forward"))


def fallen_at_line(shape: Shape) -> Ledger:
    calls = ("train/collectives.py:57", "gather"), ("train/moe.py:42", "MoE.forward")
    return placed(placed(fallen(shape), "all_gather ep", *calls), "reduce_scatter ep", *calls)


def with_lines() -> Case:
    """Every layer gathers, from a line in the diff."""
    return case(traced(fallen_at_line, (QWEN, MIXTRAL), called), changed_lines=parse_diff(DIFF))


def recounted(shape: Shape) -> Ledger:
    """Token counts are exchanged twice."""
    return edited(changed(shape), where("all_to_all control", count=2, bytes=doubled))


def run(shape: Shape, arm: Arm, counted: Ledger | None = None, **changes: object) -> Run:
    """The trace of ``shape``."""
    fields = {"workload": shape.entry, "shape": shape.entry.split("/")[0], "exit_code": 0, "wall_s": 9.4}
    return smoke_run(arm, counted, **{**fields, **changes})


def traced(
    head: Callable[[Shape], Ledger] = changed,
    shapes: Sequence[Shape] = SHAPES,
    base: Callable[[Shape], Ledger] = ledger,
    arms: tuple[Arm, Arm] = (BASE, HEAD),
    **changes: object,
) -> list[Run]:
    """Traces of both arms of every shape."""
    both = list(zip(arms, (base, head), strict=True))
    return [run(shape, arm, counted(shape), **changes) for shape in shapes for arm, counted in both]


def case(runs: Sequence[Run], arms: tuple[Arm, Arm] = (BASE, HEAD), **planned: Any) -> Case:
    """The session of ``runs``, with ``planned`` in its header, and the judge's verdict on it."""
    unconcerned = [workload.entry for workload in planned.get("unconcerned", [])]
    timed = [plan.entry for plan in planned.get("timed", [])]
    fields = {
        "regbot": "0.1.0",
        "created": "2026-03-04T10:20:30+00:00",
        "base": arms[0],
        "head": arms[1],
        "workloads": list(dict.fromkeys([*(run.workload for run in runs), *timed, *unconcerned])),
        "timing": bool(timed),
    }
    session = Session(header=SessionHeader.model_validate({**fields, **planned}), runs=list(runs))
    return judge(session, Config(), [parse_expectation(rule) for rule in session.header.expectations]), session


def compare_same(shapes: Sequence[Shape]) -> Case:
    """The program changed, the collectives did not, in each of ``shapes``."""
    return case(traced(shapes=shapes))


def unconcerned(proof: str | None = None, measured: Sequence[Shape] = ()) -> Case:
    """A change that does not concern the workloads besides ``measured``, which pass."""
    reason = "the stored runs of the base loaded none of the changed files"
    if proof is None:
        reason = "no stored trace of the base lists the files that it loaded"
    skipped = [shape for shape in SHAPES if shape not in measured]
    listed = [UnconcernedWorkload(entry=shape.entry, proof=proof, reason=reason) for shape in skipped]
    return case(traced(shapes=measured), unconcerned=listed)


def mixed() -> Case:
    """Qwen3 falls back where the mesh has only the expert axis; nothing else does."""
    return case(traced(lambda shape: fallen(shape) if shape is QWEN else changed(shape)))


def accepted() -> Case:
    """A change that only a person can judge, declared."""
    why = "capacity is now negotiated per micro-batch, see the RFC"
    rule = f"exchange of token counts or indices added@ep@*: {why}"
    return case(traced(recounted), expectations=[rule])


TRACE = """Traceback (most recent call last):
  File "train.py", line 88, in <module>
    main()
  File "moe_train/moe.py", line 141, in dispatch
    splits = counts.view(self.ep, -1).sum(1)
RuntimeError: shape '[16, -1]' is invalid for input of size 120
"""
CRASH = "RuntimeError: shape '[16, -1]' is invalid for input of size 120 (moe_train/moe.py:141 in dispatch)"
CRASHED = {"outcome": "crashed", "exit_code": 1, "reason": CRASH, "log_tail": TRACE}


def failed(head: dict[str, Any], **base: Any) -> Case:
    """Both attempts of head end as ``head`` says, and base runs, or ends as ``base`` says."""
    runs = []
    for shape in SHAPES:
        runs.append(run(shape, BASE, None if base else ledger(shape), **base))
        runs += [run(shape, HEAD, attempt=attempt, **head) for attempt in (1, 2)]
    return case(runs)


def invalid_base_without_entry() -> Case:
    """The pull request that adds the entry: base has none."""
    reason = (
        "entry 'moe_train.moe:build_layer': there is no module 'moe_train' in the checkout; set 'entry' in regbot.toml "
        "to 'package.module:function', and 'source_roots' to the folders that contain the packages"
    )
    refused = {"outcome": "refused", "exit_code": 10, "reason": reason}
    arms = [(BASE, False), (HEAD, True)]
    return case(
        [
            run(shape, arm, ledger(shape)) if runs else run(shape, arm, **refused)
            for shape in SHAPES
            for arm, runs in arms
        ]
    )


def invalid_unknown_revision() -> Case:
    """The head crashes twice in code of regbot, the base runs."""
    reason = (
        "TypeError: SyntheticData.build() missing 1 required keyword-only argument: 'seq_len' "
        "(torchtitan/trainer.py:438 in __init__)"
    )
    own = {"file": "torchtitan/trainer.py", "line": 438, "function": "__init__", "owner": "checkout"}
    stub = {"file": "torchtitan_data.py", "line": 33, "function": "SyntheticData.build", "owner": "regbot"}
    crash = Crash.model_validate({"frames": [own, stub]})
    return failed({"outcome": "crashed", "exit_code": 10, "reason": reason, "crash": crash})


def invalid_foreign_code() -> Case:
    """The package under test came from an installation beside the checkout."""
    foreign = CodeProof(watched={}, foreign={"moe_train": "site-packages/moe_train"}, files={"train.py": "d" * 64})
    return case(traced(ledger, code=foreign))


def overrides_shown_not_judged() -> Case:
    """One commit under two dispatchers."""
    arms = (
        HEAD.model_copy(update={"name": "base", "overrides": {"dispatcher": "alltoall"}}),
        HEAD.model_copy(update={"overrides": {"dispatcher": "allgather"}}),
    )
    return case(traced(fallen, arms=arms), arms)
