"""Ledgers, runs and sessions as regbot's own smoke workload produces them, built from a few numbers.

Widths are 1/16 of Qwen3-30B-A3B by default, everything else is to scale, so the ratios between exchanges, parameters
and gradients are those of the full shape. Collectives per layer were taken from traces of the smoke model.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal

from regbot.records.ledger import Axis, Entry, Frame, Kind, Ledger, Liveness, Phase, Role
from regbot.records.run import Arm, Backend, CodeProof, Environment, Outcome, Run
from regbot.records.session import Session, SessionHeader

WORKLOAD = "qwen3-30b-a3b@1/ep"
WIDTH = {"bfloat16": 2, "float32": 4, "int64": 8, "float8_e4m3fn": 1}
BLOCK_ELEMENTS_PER_HIDDEN = 9_346
"""Attention, router and norms of one Qwen3-30B-A3B block, over its hidden width."""
ROOT_ELEMENTS_PER_HIDDEN = 303_873
"""Embedding, output head and last norm, over the hidden width."""

Dispatcher = Literal["alltoall", "allgather", "local"]
Layers = bool | Collection[int]


def smoke_ledger(
    layers: int = 4,
    ep: int = 16,
    world: int = 16,
    dispatcher: Dispatcher = "alltoall",
    recompute: Layers = False,
    reshard: Layers = True,
    *,
    dispatchers: Mapping[int, Dispatcher] | None = None,
    hidden: int = 128,
    tokens: int = 4096,
    top_k: int = 8,
    experts: int = 128,
    expert_width: int = 768,
    prefix: str = "layers",
    payload_dtype: str = "bfloat16",
    reduce_dtype: str = "float32",
    workload: str = WORKLOAD,
    variant: str = "full",
    program: str | None = "a" * 64,
) -> Ledger:
    """The ledger of one steady step. ``recompute`` and ``reshard`` are for all layers or for some; ``dispatchers``
    overrides ``dispatcher`` in single layers."""
    edp = world // ep
    local_expert_elements = 3 * (experts // ep) * hidden * expert_width
    entries: list[Entry] = []

    def add(
        kind: Kind, axis: str, size: int, dtype: str, phase: Phase, where: str, elements: int, count: int = 1
    ) -> None:
        if size > 1:
            role: Role = "control" if dtype == "int64" else "payload"
            entries.append(entry(kind, axis, size, dtype, phase, where, elements * WIDTH[dtype], count, role))

    def exchange(layer: int, phase: Phase) -> None:
        """The forward pass of the dispatcher: tokens to their experts and back."""
        moe, chosen = f"{prefix}.{layer}.moe", (dispatchers or {}).get(layer, dispatcher)
        if chosen == "alltoall":
            add("all_to_all", "ep", ep, "int64", phase, moe, experts)
            add("all_to_all", "ep", ep, payload_dtype, phase, moe, 2 * tokens * top_k * hidden, 2)
        elif chosen == "allgather":
            add("all_gather", "ep", ep, payload_dtype, phase, moe, ep * tokens * hidden)
            add("all_gather", "ep", ep, "int64", phase, moe, ep * tokens * top_k)
            add("all_gather", "ep", ep, "float32", phase, moe, ep * tokens * top_k)
            add("reduce_scatter", "ep", ep, payload_dtype, phase, moe, ep * tokens * hidden)

    def exchange_gradients(layer: int) -> None:
        moe, chosen = f"{prefix}.{layer}.moe", (dispatchers or {}).get(layer, dispatcher)
        if chosen == "alltoall":
            add("all_to_all", "ep", ep, payload_dtype, "backward", moe, 2 * tokens * top_k * hidden, 2)
        elif chosen == "allgather":
            add("all_gather", "ep", ep, payload_dtype, "backward", moe, ep * tokens * hidden)
            add("reduce_scatter", "ep", ep, "float32", "backward", moe, ep * tokens * top_k)
            add("reduce_scatter", "ep", ep, payload_dtype, "backward", moe, ep * tokens * hidden)

    def sharded(axis: str, size: int, where: str, elements: int, regathered: bool) -> None:
        """One FSDP unit: gather, gather again, reduce-scatter."""
        add("all_gather", axis, size, "bfloat16", "forward", where, elements)
        if regathered:
            add("all_gather", axis, size, "bfloat16", "backward", where, elements)
        add("reduce_scatter", axis, size, reduce_dtype, "backward", where, elements)

    sharded("dp", world, "", ROOT_ELEMENTS_PER_HIDDEN * hidden, regathered=False)
    for layer in range(layers):
        regathered = _chosen(reshard, layer)
        sharded("dp", world, f"{prefix}.{layer}", BLOCK_ELEMENTS_PER_HIDDEN * hidden, regathered)
        sharded("edp", edp, f"{prefix}.{layer}.moe.experts", local_expert_elements, regathered)
        exchange(layer, "forward")
        if _chosen(recompute, layer):
            exchange(layer, "backward")
        exchange_gradients(layer)
    axes = {
        "dp": Axis(size=world, ranks=list(range(world))),
        "edp": Axis(size=edp, ranks=list(range(0, world, ep))),
        "ep": Axis(size=ep, ranks=list(range(ep))),
    }
    return ledger_of(entries, axes=axes, world_size=world, workload=workload, variant=variant, program=program)


def entry(
    kind: Kind = "all_to_all",
    axis: str = "ep",
    group_size: int = 16,
    dtype: str = "bfloat16",
    phase: Phase = "forward",
    where: str = "layers.0.moe",
    size: int = 1024,
    count: int = 1,
    role: Role = "payload",
) -> Entry:
    """One entry; ``size`` is bytes of all calls together."""
    return Entry(
        kind=kind,
        axis=axis,
        group_size=group_size,
        dtype=dtype,
        phase=phase,
        role=role,
        where=where,
        via="fake",
        count=count,
        bytes=size,
    )


def ledger_of(
    entries: Iterable[Entry],
    *,
    axes: Mapping[str, Axis] | None = None,
    world_size: int = 16,
    workload: str = WORKLOAD,
    variant: str = "full",
    program: str | None = None,
) -> Ledger:
    """A ledger of any entries; entries of one word and module are added up, as a counter would."""
    merged: dict[tuple[object, ...], Entry] = {}
    for e in entries:
        key = (e.kind, e.axis, e.group_size, e.dtype, e.phase, e.role, e.where)
        seen = merged.get(key)
        merged[key] = (
            e if seen is None else e.model_copy(update={"count": e.count + seen.count, "bytes": e.bytes + seen.bytes})
        )
    return Ledger(
        source="dispatch-mode",
        scope="step",
        steps=1,
        workload=workload,
        variant=variant,
        world_size=world_size,
        axes=dict(axes or {}),
        entries=list(merged.values()),
        liveness=Liveness(planted=3, seen=3),
        fingerprint=program,
        config={"dispatcher": "alltoall", "ep": 16},
        patches=["process groups without peers (fake backend)"],
    )


def edited(ledger: Ledger, change: Callable[[Entry], Entry | None], *extra: Entry) -> Ledger:
    """``ledger`` with every entry changed, or left out where ``change`` says None, and ``extra`` entries."""
    kept = [new for new in map(change, ledger.entries) if new is not None]
    return ledger.model_copy(update={"entries": [*kept, *extra], "fingerprint": "b" * 64})


def where(part: str, **changes: object) -> Callable[[Entry], Entry]:
    """An edit of the entries whose kind, axis, phase or dtype are named in ``part``, e.g. 'reduce_scatter dp'."""
    words = part.split()

    def change(e: Entry) -> Entry:
        if set(words) <= {e.kind, e.axis, e.phase, e.dtype, e.role, e.where}:
            new = {key: value(e) if callable(value) else value for key, value in changes.items()}
            return e.model_copy(update=new)
        return e

    return change


def without(part: str) -> Callable[[Entry], Entry | None]:
    words = set(part.split())
    return lambda e: None if words <= {e.kind, e.axis, e.phase, e.dtype, e.role, e.where} else e


def placed(ledger: Ledger, part: str, *calls: tuple[str, str], last_line: int = 0) -> Ledger:
    """``ledger`` whose entries that ``part`` names (``where``) have a line: the first of ``calls``, pairs of a line and
    its function. The others are its callers."""
    (line, function), *callers = calls
    frames = {caller: Frame(function=name) for caller, name in callers}
    frames[line] = Frame(function=function, last_line=last_line, callers=[caller for caller, _ in callers])
    entries = [where(part, line=line)(entry) for entry in ledger.entries]
    return ledger.model_copy(update={"entries": entries, "frames": {**ledger.frames, **frames}})


def doubled(e: Entry) -> int:
    return 2 * e.bytes


def renamed(ledger: Ledger, old: str, new: str) -> Ledger:
    return edited(ledger, lambda e: e.model_copy(update={"where": e.where.replace(old, new)}))


def wrong_index(ledger: Ledger, words: str, old: int = 1, new: int = 0) -> Ledger:
    """A loop over layers that issues one layer's collectives in another layer, in the same modules."""

    def change(e: Entry) -> Entry:
        if not set(words.split()) <= {e.kind, e.axis, e.phase, e.dtype, e.role}:
            return e
        return e.model_copy(update={"where": e.where.replace(f"layers.{old}", f"layers.{new}")})

    return ledger_of(edited(ledger, change).entries, axes=ledger.axes)


def smoke_arm(name: Literal["base", "head"], **changes: object) -> Arm:
    digit = "1" if name == "base" else "2"
    arm = Arm(name=name, revision=name, commit=digit * 40, tree=digit * 40, subject=f"the {name} commit")
    return arm.model_copy(update=changes)


def smoke_run(arm: Arm, ledger: Ledger | None, outcome: Outcome = "ok", **changes: object) -> Run:
    """A static run that ended well, unless told otherwise."""
    run = Run(
        arm=arm,
        workload=ledger.workload if ledger and ledger.workload else WORKLOAD,
        adapter="smoke",
        shape="qwen3-30b-a3b@1",
        variant="full",
        tier="static",
        outcome=outcome,
        wall_s=1.0,
        ledger=ledger,
        backends={"dispatcher": backend("alltoall")},
        code=CodeProof(watched={"moe": "moe"}, foreign={}, files={}),
        environment=Environment(python="3.11.1", torch="2.13.0", platform="linux", packages="c" * 64),
    )
    return run.model_copy(update=changes)


def backend(executed: str, requested: str = "alltoall") -> Backend:
    return Backend(requested=requested, resolved=requested, executed=executed, evidence=f"ran {executed}")


def smoke_session(*runs: Run, workloads: Collection[str] = (WORKLOAD,)) -> Session:
    """A session of these runs; its arms are those of ``smoke_arm``, or of the runs where they have any."""
    arms = {run.arm.name: run.arm for run in runs}
    header = SessionHeader(
        regbot="0.1.0",
        created="2026-01-01T00:00:00Z",
        base=arms.get("base", smoke_arm("base")),
        head=arms.get("head", smoke_arm("head")),
        workloads=list(workloads),
    )
    return Session(header=header, runs=list(runs))


def _chosen(layers: Layers, layer: int) -> bool:
    return layers if isinstance(layers, bool) else layer in layers
