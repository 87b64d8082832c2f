"""The states of a check that times nothing, made of regbot's real shapes, and what they are made with.

The ledgers are those of the smoke model: Qwen3-30B-A3B in full on 16 and 64 ranks, Mixtral-8x7B on 8 and 16.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from regbot.judge.run_verdicts import compare_ranks
from regbot.judge.sharding import judge_ledgers
from regbot.ledgers.catalogue import ALL_TO_ALL_REPLACED, COUNTS_ADDED, RESTORED
from regbot.ledgers.rows import sum_by_kind
from regbot.records.config import Config
from regbot.records.ledger import Entry, Kind, Ledger, Liveness, Phase, Role, Scalar
from regbot.records.run import Arm, CodeProof, Outcome, Run
from regbot.records.session import Session, SessionHeader, UnconcernedWorkload
from regbot.records.verdict import (
    Finding,
    RoleCounts,
    Sharding,
    Status,
    Validity,
    Verdict,
    Volume,
    WireTime,
    WorkloadVerdict,
    compute_overall_status,
)
from support import timed_cases
from support.ledger_builder import backend, entry

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
    """What of a shape decides its ledger. Bytes are of one collective."""

    entry: str
    layers: int
    ep: int
    world: int
    token_bytes: int
    layer_bytes: int
    expert_bytes: int
    root_bytes: int


QWEN = Shape("qwen3-30b-a3b@1/ep", 48, 16, 16, 134_217_728, 113_259_520, 75_497_472, 1_244_667_904)
QWEN_DP = replace(QWEN, entry="qwen3-30b-a3b@1/ep-dp", world=64, layer_bytes=37_765_120)
MIXTRAL = Shape("mixtral-8x7b@1/ep", 32, 8, 8, 67_108_864, 436_240_384, 352_321_536, 524_296_192)
MIXTRAL_DP = replace(MIXTRAL, entry="mixtral-8x7b@1/ep-dp", world=16, layer_bytes=83_918_848)
SHAPES = (QWEN, QWEN_DP, MIXTRAL, MIXTRAL_DP)

Layers = Callable[[int], bool]


def _entry(
    kind: Kind, axis: str, size: int, dtype: str, phase: Phase, at: str, count: int, each: int, role: Role = "payload"
) -> Entry:
    return entry(kind, axis, size, dtype, phase, at, count * each, count, role)


def all_to_all(shape: Shape, layer: int) -> list[Entry]:
    """Dispatch, combine and the exchange of token counts of one MoE layer."""
    where, ep = f"layers.{layer}.moe", shape.ep
    return [
        _entry("all_to_all", "ep", ep, "int64", "forward", where, 1, 1024, "control"),
        _entry("all_to_all", "ep", ep, "bfloat16", "forward", where, 2, shape.token_bytes),
        _entry("all_to_all", "ep", ep, "bfloat16", "backward", where, 2, shape.token_bytes),
    ]


def fallback(shape: Shape, layer: int) -> list[Entry]:
    """What the same layer issues when tokens are gathered instead."""
    where, ep, gathered = f"layers.{layer}.moe", shape.ep, 2 * shape.token_bytes
    return [
        _entry("all_gather", "ep", ep, "bfloat16", "forward", where, 1, gathered),
        _entry("all_gather", "ep", ep, "int64", "forward", where, 1, 4_194_304, "control"),
        _entry("all_gather", "ep", ep, "float32", "forward", where, 1, 2_097_152),
        _entry("reduce_scatter", "ep", ep, "bfloat16", "forward", where, 1, gathered),
        _entry("all_gather", "ep", ep, "bfloat16", "backward", where, 1, gathered),
        _entry("reduce_scatter", "ep", ep, "bfloat16", "backward", where, 1, gathered),
        _entry("reduce_scatter", "ep", ep, "float32", "backward", where, 1, 2_097_152),
    ]


def ledger(shape: Shape, broken: Layers = lambda _: False, counts: int = 1, program: str = "a") -> Ledger:
    """The ledger of ``shape``: the layers that are ``broken`` gather; ``counts`` count exchanges in each other one."""
    entries: list[Entry] = []
    world = shape.world
    for layer in range(shape.layers):
        exchange = fallback(shape, layer) if broken(layer) else all_to_all(shape, layer)
        if not broken(layer) and counts != 1:
            exchange[0] = exchange[0].model_copy(update={"count": counts, "bytes": counts * 1024})
        entries += exchange
        where = f"layers.{layer}"
        entries += [
            _entry("all_gather", "dp", world, "bfloat16", "forward", where, 1, shape.layer_bytes),
            _entry("all_gather", "dp", world, "bfloat16", "backward", where, 1, shape.layer_bytes),
            _entry("reduce_scatter", "dp", world, "float32", "backward", where, 1, 2 * shape.layer_bytes),
        ]
        if world != shape.ep:
            where, edp = f"layers.{layer}.moe.experts", world // shape.ep
            entries += [
                _entry("all_gather", "edp", edp, "bfloat16", "forward", where, 1, shape.expert_bytes),
                _entry("all_gather", "edp", edp, "bfloat16", "backward", where, 1, shape.expert_bytes),
                _entry("reduce_scatter", "edp", edp, "float32", "backward", where, 1, 2 * shape.expert_bytes),
            ]
    entries += [
        _entry("all_gather", "dp", world, "bfloat16", "forward", "", 1, shape.root_bytes),
        _entry("reduce_scatter", "dp", world, "float32", "backward", "", 1, 2 * shape.root_bytes),
    ]
    return Ledger(
        source="dispatch-mode",
        scope="step",
        steps=1,
        workload=shape.entry,
        variant="full",
        world_size=world,
        entries=entries,
        liveness=Liveness(planted=3, seen=3),
        program=program * 64,
        config={"dispatcher": "alltoall", "experts": 128},
        patches=["tensors without values (FakeTensorMode)", "process groups without peers (fake backend)"],
    )


EXPERT_KINDS = ("all_to_all", "all_gather", "reduce_scatter")


def run(
    shape: Shape, arm: Arm, counted: Ledger | None, outcome: Outcome = "ok", attempt: int = 1, **more: object
) -> Run:
    """One run of the smoke model."""
    fields: dict[str, object] = {
        "arm": arm,
        "workload": shape.entry,
        "adapter": "smoke",
        "shape": shape.entry.split("/")[0],
        "variant": "full",
        "tier": "static",
        "attempt": attempt,
        "outcome": outcome,
        "wall_s": 9.4 if arm.name == "base" else 9.1,
        "ledger": counted,
    }
    if counted is not None:
        payload = [e for e in counted.entries if e.axis == "ep" and e.role == "payload"]
        counts = {kind: sum(e.count for e in payload if e.kind == kind) for kind in EXPERT_KINDS}
        dispatcher = "alltoall" if counts["all_to_all"] else "allgather"
        evidence = "payload collectives on axis ep: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())
        fields |= {
            "exit_code": 0,
            "backends": {"dispatcher": backend(dispatcher, dispatcher).model_copy(update={"evidence": evidence})},
            "code": timed_cases.CODE,
            "environment": timed_cases.ENVIRONMENT,
        }
    return Run.model_validate({**fields, **more})


def sharding(
    base: Ledger,
    head: Ledger,
    status: Status = "PASS",
    findings: Sequence[Finding] = (),
    reasons: Iterable[str] = (),
    **more: object,
) -> Sharding:
    """The sharding section of two ledgers."""
    return Sharding.model_validate(
        {
            "status": status,
            "reasons": list(reasons) or ["same collectives, but head runs other operators than base"],
            "findings": list(findings),
            "base": _roles(base),
            "head": _roles(head),
            "source": "dispatch-mode",
            "wire": WireTime(base_s=_wire(base), head_s=_wire(head)),
            **more,
        }
    )


def _roles(counted: Ledger) -> dict[Kind, RoleCounts]:
    payload = sum_by_kind(counted, lambda entry: entry.role == "payload")
    control = sum_by_kind(counted, lambda entry: entry.role == "control")
    none = Volume(count=0, bytes=0)
    return {
        kind: RoleCounts(payload=payload.get(kind, none).count, control=control.get(kind, none).count)
        for kind in sorted({*payload, *control})
    }


def _wire(counted: Ledger) -> float:
    return sum(
        e.bytes * (e.group_size - 1) / e.group_size / (450e9 if e.group_size <= 8 else 50e9)
        for e in counted.entries
        if e.role == "payload"
    )


def finding(pattern: str, status: Status, base: Ledger, head: Ledger, text: str, **more: object) -> Finding:
    """A finding on the expert axis."""
    fields: dict[str, object] = {
        "pattern": pattern,
        "status": status,
        "axis": "ep",
        "base": sum_by_kind(base, lambda entry: entry.axis == "ep"),
        "head": sum_by_kind(head, lambda entry: entry.axis == "ep"),
        "text": text,
        "modules": ["layers.*.moe"],
    }
    return Finding.model_validate({**fields, **more})


def trusted() -> Validity:
    """The validity section of a run that can be trusted."""
    return Validity(status="PASS", reasons=[])


def case(
    entries: Sequence[WorkloadVerdict],
    runs: Sequence[Run],
    base: Arm = BASE,
    head: Arm = HEAD,
    warnings: Sequence[str] = (),
    **planned: Any,
) -> Case:
    """A verdict on ``entries`` and the session of ``runs``; ``planned`` are more fields of its header."""
    verdict = Verdict(
        verdict=compute_overall_status(entries), base=base, head=head, workloads=list(entries), warnings=list(warnings)
    )
    fields = {
        "regbot": "0.1.0",
        "created": "2026-03-04T10:20:30+00:00",
        "base": base,
        "head": head,
        "workloads": [e.name for e in entries],
        "timing": bool(planned.get("timed")),
    }
    header = SessionHeader.model_validate({**fields, **planned})
    session = Session(header=header, runs=list(runs))
    return verdict.model_copy(update={"workloads": [with_runs(entry, session) for entry in entries]}), session


def with_runs(entry: WorkloadVerdict, session: Session) -> WorkloadVerdict:
    """``entry`` with what the judge says of its timed runs."""
    if entry.throughput is None:
        return entry
    runs = timed_cases.verdicts_on(session.timed_runs(entry.name))
    update = {"runs": runs, "ranks": compare_ranks(runs)}
    return entry.model_copy(update={"throughput": entry.throughput.model_copy(update=update)})


def compared(
    change: Callable[[Shape], tuple[Ledger, Ledger, Sharding]],
    shapes: Sequence[Shape] = SHAPES,
    base: Arm = BASE,
    head: Arm = HEAD,
) -> Case:
    """A case in which both arms of every shape were measured."""
    entries, runs = [], []
    for shape in shapes:
        ours, theirs, section = change(shape)
        entries.append(WorkloadVerdict(name=shape.entry, sharding=section, throughput=None, validity=trusted()))
        runs += [run(shape, base, ours), run(shape, head, theirs)]
    return case(entries, runs, base, head)


def unmeasured(
    runs_of: Callable[[Shape], Sequence[Run]], status: Status, reason: str, shapes: Sequence[Shape] = SHAPES
) -> Case:
    """A case without a comparison."""
    entries = [
        WorkloadVerdict(
            name=shape.entry, sharding=None, throughput=None, validity=Validity(status=status, reasons=[reason])
        )
        for shape in shapes
    ]
    return case(entries, [one for shape in shapes for one in runs_of(shape)])


def compare_same(shapes: Sequence[Shape]) -> Case:
    """The program changed, the collectives did not, in each of ``shapes``."""
    return compared(
        lambda shape: (ledger(shape), ledger(shape, program="b"), sharding(ledger(shape), ledger(shape))), shapes
    )


def passed() -> Case:
    """The program changed, the collectives did not."""
    return compare_same(SHAPES)


UNPROVEN = "no stored trace of the base lists the files that it loaded"
PROVEN = "the stored runs of the base loaded none of the changed files"


def unconcerned(proof: str | None = None, measured: Sequence[Shape] = ()) -> Case:
    """A change that does not concern the workloads besides ``measured``, which pass."""
    reason = UNPROVEN if proof is None else PROVEN
    skipped = [shape for shape in SHAPES if shape not in measured]
    listed = [UnconcernedWorkload(entry=shape.entry, proof=proof, reason=reason) for shape in skipped]
    validity = Validity(status="INCONCLUSIVE" if proof is None else "PASS", reasons=[reason])
    entries, runs = [], []
    for shape in measured:
        section = sharding(ledger(shape), ledger(shape, program="b"))
        entries.append(WorkloadVerdict(name=shape.entry, sharding=section, throughput=None, validity=trusted()))
        runs += [run(shape, BASE, ledger(shape)), run(shape, HEAD, ledger(shape, program="b"))]
    entries += [
        WorkloadVerdict(name=shape.entry, sharding=None, throughput=None, validity=validity, unconcerned=True)
        for shape in skipped
    ]
    return case(entries, runs, unconcerned=listed)


def pass_identical() -> Case:
    """Both arms dispatch the same operators."""
    reasons = ["device program identical: both arms run the same operators and collectives"]
    return compared(
        lambda shape: (
            ledger(shape),
            ledger(shape),
            sharding(ledger(shape), ledger(shape), reasons=reasons, identical_program=True),
        )
    )


def _twice(base: Ledger, head: Ledger) -> str:
    """The judge's sentence on the fallback."""
    (found,) = judge_ledgers(base, head, Config()).findings
    assert found.pattern == ALL_TO_ALL_REPLACED
    return found.text


DISPATCHER_CHANGED = {"dispatcher": ("alltoall", "allgather")}


def _broken(
    shape: Shape,
    broken: Layers,
    modules: Sequence[str],
    config_changes: Mapping[str, tuple[Scalar, Scalar]] = DISPATCHER_CHANGED,
) -> tuple[Ledger, Ledger, Sharding]:
    base, head = ledger(shape), ledger(shape, broken, program="b")
    found = finding(ALL_TO_ALL_REPLACED, "FAIL", base, head, _twice(base, head), modules=list(modules))
    reasons = [f"{ALL_TO_ALL_REPLACED}: {found.text}"]
    section = sharding(base, head, "FAIL", [found], reasons, config_changes=config_changes)
    return base, head, section


def sharding_fail() -> Case:
    """Every layer of every shape falls back."""
    return compared(lambda shape: _broken(shape, lambda _: True, ["layers.*.moe"]))


def sharding_fail_one_layer() -> Case:
    """One layer of Qwen3 falls back; Mixtral's has another number of layers and the same fault."""
    return compared(lambda shape: _broken(shape, lambda layer: layer == 17, ["layers.17.moe"], config_changes={}))


def demo() -> Case:
    """The demo by default: both shapes on one mesh, nothing timed."""
    compared_case = compared(lambda shape: _broken(shape, lambda _: True, ["layers.*.moe"]), (QWEN, MIXTRAL))
    return with_header(compared_case, command="demo", left_out=[QWEN_DP.entry, MIXTRAL_DP.entry])


def one_workload() -> Case:
    """A check of one workload of four, as --workload asks."""
    compared_case = compared(lambda shape: _broken(shape, lambda _: True, ["layers.*.moe"]), (QWEN,))
    return with_header(compared_case, left_out=[QWEN_DP.entry, MIXTRAL.entry, MIXTRAL_DP.entry])


def with_header(base_case: Case, **fields: Any) -> Case:
    """The same case with other ``fields`` in the header of its session."""
    verdict, session = base_case
    return verdict, session.model_copy(update={"header": session.header.model_copy(update=fields)})


def mixed() -> Case:
    """Qwen3 falls back where the mesh has only the expert axis; nothing else does."""

    def change(shape: Shape) -> tuple[Ledger, Ledger, Sharding]:
        if shape is QWEN:
            return _broken(shape, lambda _: True, ["layers.*.moe"])
        return ledger(shape), ledger(shape, program="b"), sharding(ledger(shape), ledger(shape))

    return compared(change)


def _recounted(shape: Shape, status: Status, accepted: str | None) -> tuple[Ledger, Ledger, Sharding]:
    base, head = ledger(shape), ledger(shape, counts=2, program="b")
    text = (
        "Every MoE layer exchanges token counts once more in its forward, and the host waits for them. The payload is "
        "unchanged."
    )
    found = finding(COUNTS_ADDED, status, base, head, text, accepted=accepted)
    return base, head, sharding(base, head, status, [found], [f"{COUNTS_ADDED}: {text}"])


def review() -> Case:
    """A change that only a person can judge."""
    return compared(lambda shape: _recounted(shape, "REVIEW", None))


def accepted() -> Case:
    """The same change, declared."""
    return compared(lambda shape: _recounted(shape, "PASS", "capacity is now negotiated per micro-batch, see the RFC"))


def improved() -> Case:
    """The fallback is gone."""

    def change(shape: Shape) -> tuple[Ledger, Ledger, Sharding]:
        base, head = ledger(shape, lambda _: True), ledger(shape, program="b")
        text = "Tokens are exchanged by all-to-all again instead of being gathered. Modelled wire time is lower."
        found = finding(RESTORED, "PASS", base, head, text)
        return base, head, sharding(base, head, "PASS", [found], [f"{RESTORED}: {text}"])

    return compared(change)


TRACE = """Traceback (most recent call last):
  File "train.py", line 88, in <module>
    main()
  File "moe_train/moe.py", line 141, in dispatch
    splits = counts.view(self.ep, -1).sum(1)
RuntimeError: shape '[16, -1]' is invalid for input of size 120
"""


CRASH = "RuntimeError: shape '[16, -1]' is invalid for input of size 120 (moe_train/moe.py:141 in dispatch)"
RENAMED = (
    "TypeError: SyntheticData.build() missing 1 required keyword-only argument: 'seq_len' "
    "(torchtitan/trainer.py:438 in __init__)"
)


def _crash(shape: Shape, arm: Arm, attempt: int = 1) -> Run:
    return run(shape, arm, None, "crashed", attempt, exit_code=1, reason=CRASH, log_tail=TRACE)


def invalid_crash_both() -> Case:
    """Neither arm runs."""
    return unmeasured(
        lambda shape: (_crash(shape, BASE), _crash(shape, HEAD)), "INVALID", f"base and head crashed: {CRASH}"
    )


def invalid_base_without_entry() -> Case:
    """The pull request that adds the entry: base has none."""
    reason = (
        "entry 'moe_train.moe:build_layer': there is no module 'moe_train' in the checkout; set 'entry' in regbot.toml "
        "to 'package.module:function', and 'source_roots' to the folders that contain the packages"
    )

    def runs(shape: Shape) -> Sequence[Run]:
        return [run(shape, BASE, None, "refused", exit_code=10, reason=reason), run(shape, HEAD, ledger(shape))]

    return unmeasured(runs, "INVALID", f"base cannot be measured: {reason}")


def validity_fail_head_crashes() -> Case:
    """The head crashes twice, the base runs."""
    return unmeasured(
        lambda shape: (run(shape, BASE, ledger(shape)), _crash(shape, HEAD), _crash(shape, HEAD, 2)),
        "FAIL",
        f"in both attempts, head crashed: {CRASH}; base ran",
    )


def invalid_unknown_revision() -> Case:
    """The head crashes twice in code of regbot, the base runs."""
    reason = (
        "regbot does not support this revision: the error passed through code of regbot, "
        "regbot_guest/frameworks/torchtitan_data.py:33 in SyntheticData.build, called from torchtitan/trainer.py:438 "
        f"in __init__. Base ran, but head crashed: {RENAMED}"
    )
    own = {"file": "torchtitan/trainer.py", "line": 438, "function": "__init__", "owner": "checkout"}
    stub = {"file": "torchtitan_data.py", "line": 33, "function": "SyntheticData.build", "owner": "regbot"}
    crash = {"frames": [own, stub]}
    return unmeasured(
        lambda shape: (
            run(shape, BASE, ledger(shape)),
            *(
                run(shape, HEAD, None, "crashed", attempt, exit_code=10, reason=RENAMED, crash=crash)
                for attempt in (1, 2)
            ),
        ),
        "INVALID",
        reason,
    )


def invalid_foreign_code() -> Case:
    """The package under test came from an installation beside the checkout."""
    foreign = CodeProof(watched={}, foreign={"moe_train": "site-packages/moe_train"}, files={"train.py": "d" * 64})

    def runs(shape: Shape) -> Sequence[Run]:
        return [run(shape, arm, ledger(shape), code=foreign) for arm in (BASE, HEAD)]

    reason = (
        "base and head imported moe_train from site-packages/moe_train, outside the checkout; uninstall it or fix "
        "'source_roots'"
    )
    return unmeasured(runs, "INVALID", reason)


def overrides_shown_not_judged() -> Case:
    """One commit under two dispatchers."""
    setting: dict[str, Scalar] = {"dispatcher": "alltoall"}
    base = HEAD.model_copy(update={"name": "base", "overrides": setting})
    head = HEAD.model_copy(update={"overrides": {"dispatcher": "allgather"}})

    def change(shape: Shape) -> tuple[Ledger, Ledger, Sharding]:
        ours, theirs = ledger(shape), ledger(shape, lambda _: True, program="b")
        found = finding(ALL_TO_ALL_REPLACED, "PASS", ours, theirs, _twice(ours, theirs))
        reasons = ["comparison of two configurations: differences are shown, not judged"]
        section = sharding(ours, theirs, "PASS", [found], reasons, config_changes=DISPATCHER_CHANGED)
        return ours, theirs, section

    return compared(change, base=base, head=head)
