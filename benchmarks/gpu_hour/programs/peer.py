"""torchtitan's MoE layer and regbot's, forward and backward, in turns in one process: ``peer.py REQUEST``.

Both layers have the same dimensions, balanced routing, softmax scores that are normalised over the chosen experts, and
bfloat16 weights. Parts alternate in ABBA order. The process writes ``peer.json`` with the seconds of each part.
"""

import importlib
import json
import logging
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regbot_guest import moe
from regbot_guest.request import Request
from regbot_guest.stopwatch import CudaClock, HostClock
from regbot_guest.world import open_requested_world

CARRIED = Path(__file__).resolve().parents[1] / "carried"
ORDER = "ABBABAABABBA"
PART_PASSES, WARM_PASSES = 10, 5


def load_torchtitan() -> Any:
    """Return torchtitan's module with the MoE layer. Three small functions of its other modules are supplied here.

    Raises ImportError without Triton.
    """
    sys.path.insert(0, str(CARRIED))
    supplied: dict[str, dict[str, Any]] = {
        "torchtitan.models.utils": {"trunc_normal_": nn.init.trunc_normal_},
        "torchtitan.tools": {"__path__": []},
        "torchtitan.tools.logging": {"logger": logging.getLogger("torchtitan")},
        "torchtitan.tools.utils": {"_round_up": lambda x, y: (x + y - 1) // y * y},
    }
    for name, attributes in supplied.items():
        module = sys.modules[name] = types.ModuleType(name)
        vars(module).update(attributes)
    return importlib.import_module("torchtitan.models.moe.moe")


def build_layers(request: Request, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """Return torchtitan's layer and regbot's layer. Raises ImportError without Triton."""
    geometry, dtype = request.geometry, getattr(torch, request.dtype)
    theirs = load_torchtitan()
    settings = theirs.MoEArgs(
        num_experts=geometry.experts,
        num_shared_experts=0,
        score_func="softmax",
        route_norm=True,
        score_before_experts=False,
        top_k=geometry.top_k,
        use_grouped_mm=moe.runs_grouped_mm(dtype, device),
        load_balance_coeff=None,
        _debug_force_load_balance=True,
    )
    with device:
        peer = theirs.MoE(settings, geometry.hidden, geometry.expert_width)
        peer.init_weights(0.02, device)
    return peer.to(dtype), moe.build_layer(request.layer_config(), None, device, dtype)


def main() -> None:
    request = Request.load(Path(sys.argv[1]))
    result: dict[str, Any] = {"tokens": request.geometry.tokens, "passes": PART_PASSES}
    with open_requested_world(request) as world:
        try:
            peer, own = build_layers(request, world.device)
        except ImportError as error:
            result["refusal"] = f"torchtitan's layer cannot be imported: {error}"
        else:
            states = torch.randn(
                request.geometry.tokens,
                request.geometry.hidden,
                device=world.device,
                dtype=getattr(torch, request.dtype),
                requires_grad=True,
            )
            clock = CudaClock() if world.device.type == "cuda" else HostClock()
            passes = {"A": lambda: peer(states.unsqueeze(0)), "B": lambda: own(states)}
            for run in passes.values():
                time_part(run, clock, WARM_PASSES)
            parts = [(name, time_part(passes[name], clock, PART_PASSES)) for name in ORDER]
            result |= {
                "torchtitan_s": [seconds for name, seconds in parts if name == "A"],
                "regbot_s": [seconds for name, seconds in parts if name == "B"],
            }
    Path(request.record).with_name("peer.json").write_text(json.dumps(result), encoding="utf-8")


def time_part(run: Callable[[], torch.Tensor], clock: Any, passes: int) -> float:
    """Return the seconds of ``passes`` forward and backward passes."""
    clock.settle()
    start = clock.mark()
    for _ in range(passes):
        torch.autograd.backward(run().sum())
    end = clock.mark()
    clock.settle()
    return float(clock.between(start, end))


if __name__ == "__main__":
    main()
