"""What every count of a step needs: planted collectives, sequence numbers, refusals, and the ledger."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from regbot_guest import source_lines
from regbot_guest.compile_watch import CompileWatch
from regbot_guest.contract import ContractError
from regbot_guest.request import Request
from regbot_guest.tally import StepCounter
from regbot_guest.uncounted_collectives import UncountedWatch
from regbot_guest.untraceable import Untraceable
from regbot_guest.world import World

MAX_GUESSES = 20
UNTRACEABLE = (
    Untraceable,
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
"""Exceptions of a step that cannot be traced without real data."""


def plant_collectives(
    counter: StepCounter, groups: Iterable[dist.ProcessGroup], device: torch.device | None
) -> dict[str, Any]:
    """Issue one all-reduce on each group of several ranks, and return how many were ``planted`` and ``seen``. A world
    of one rank has no such group, so an operator takes the place of the collectives.
    """
    counter.new_step()
    with counter:
        num_planted = issue_on_groups(groups, device)
        if num_planted:
            return {"planted": num_planted, "seen": counter.tally.total}
        torch.erfinv(torch.zeros(1, device=device))
    counter.read_operators()
    return {"planted": 1, "seen": counter.operators["aten::erfinv"]}


def list_mesh_groups(world: World) -> list[dist.ProcessGroup]:
    """Return this rank's groups of the world's meshes, including groups of one rank."""
    return [group for mesh in (world.data, world.expert) if mesh is not None for group in mesh.get_all_groups()]


def list_large_groups() -> list[Any]:
    """Return this rank's groups of several ranks."""
    return [group for group in dist.distributed_c10d._world.pg_map if group.size() > 1]


def issue_on_groups(groups: Iterable[dist.ProcessGroup], device: torch.device | None) -> int:
    large_groups = [group for group in groups if group.size() > 1]
    for group in large_groups:
        dist.all_reduce(torch.ones(1, device=device), group=group)
    return len(large_groups)


def read_sequence_numbers() -> Any:
    """Return how many collectives the backend has issued in each group, by name. None if it keeps no such numbers."""
    try:
        return {group.group_name: group._get_sequence_number_for_group() for group in list_large_groups()}
    except RuntimeError:
        return None


def sum_advances(before: dict[str, int]) -> int:
    """Return by how much the backend's sequence numbers have grown since ``before``, summed over all groups."""
    after = read_sequence_numbers() or {}
    return sum(after[name] - number for name, number in before.items() if name in after)


def refuse_compiled(compile_watch: CompileWatch) -> None:
    """Raise ContractError if ``torch.compile`` would compile code of the step."""
    if compile_watch.called_names:
        raise ContractError(
            "compiled",
            f"{compile_watch.describe()} would be compiled by torch.compile. While regbot counts a step, it would "
            "run eagerly, as another program. Timed runs profile compiled code, so time this workload too, or turn "
            "compilation off for it",
        )


def refuse_uncounted(uncounted_watch: UncountedWatch) -> None:
    """Raise ContractError if the count misses a collective."""
    if uncounted_watch.collectives:
        raise ContractError(
            "liveness",
            f"a collective was issued where it cannot be counted ({uncounted_watch.collectives[0]}); issue it through "
            "torch.distributed, from the thread that calls forward and backward",
        )


def refuse_unreliable_count(request: Request, uncounted_watch: UncountedWatch, counter: StepCounter) -> None:
    """Raise ContractError if the count misses a collective, or if balanced routing was requested and not followed."""
    refuse_uncounted(uncounted_watch)
    if request.routing != "balanced" or request.mlp != "moe":
        return
    imbalances = [
        f"an all-to-all sends {min(splits)} to {max(splits)} rows per rank"
        for axis, splits in counter.payload_splits
        if "ep" in axis.split("|") and len(set(splits)) > 1  # the axis may be 'ep|dp'
    ]
    if counter.routed_tokens is not None and (imbalance := counter.routed_tokens.imbalance()):
        imbalances.append(imbalance)
    if imbalances:
        advice = "; honour config['routing'] == 'balanced' in the router" if request.entry else ""
        raise ContractError("routing", f"balanced routing was requested, but {imbalances[0]}{advice}")


def build_ledger(
    request: Request,
    counter: StepCounter,
    liveness: Mapping[str, Any],
    *,
    device: str | None,
    config: Mapping[str, Any],
    software: Mapping[str, str] | None = None,
    patches: Sequence[str] = (),
    guesses: Mapping[str, str] | None = None,
    warnings: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the ledger of the step that ``counter`` counted, as a JSON document. ``patches`` is what differs from a
    real run. ``guesses`` are kinds by sentence.
    """
    guess_kinds = dict(list((guesses or {}).items())[:MAX_GUESSES])
    return {
        "schema": "regbot/ledger@1",
        "source": counter.source,
        "device": device,
        "gpu": request.gpu if request.paper else None,  # the GPU model that a paper GPU imitates
        "scope": "step",
        "steps": 1,
        "workload": request.workload,
        "variant": request.variant,
        "world_size": dist.get_world_size(),
        "rank": dist.get_rank(),
        "axes": counter.axes.as_record(),
        "entries": counter.tally.entries(),
        "liveness": dict(liveness),
        "fingerprint": counter.fingerprint(),
        "program": counter.program(),
        "frames": source_lines.frames(),
        "config": dict(config),
        "software": dict(software or {}),
        "patches": list(patches),
        "guesses": list(guess_kinds),
        "guess_kinds": guess_kinds,
        "warnings": list_routing_warnings(request) if warnings is None else list(warnings),
    }


def list_routing_warnings(request: Request) -> list[str]:
    is_assumed = request.mode == "static" and request.routing == "natural"
    return ["routing is natural; without values it was taken to be balanced"] if is_assumed else []
