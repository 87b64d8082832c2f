"""What one guest process is asked to do. Written by the trusted side as JSON, one file per process launch."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Geometry:
    """The numbers of one MoE transformer; see ``regbot.shapes`` for their meaning. Widths in elements."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    qk_norm: bool
    rope_theta: float
    experts: int
    top_k: int
    expert_width: int
    vocabulary: int
    sequence: int
    micro_batch: int

    @property
    def tokens(self) -> int:
        """Tokens per rank and step."""
        return self.sequence * self.micro_batch

    @property
    def dense_width(self) -> int:
        """Width of the dense control's MLP: as many active weights as the routed experts."""
        return self.top_k * self.expert_width


@dataclass(frozen=True)
class Request:
    """One launch. ``root`` is the arm's worktree; ``entry`` is None for regbot's own smoke model; ``{rank}`` in
    ``record`` becomes the rank."""

    request: str
    workload: str
    variant: str
    record: str
    root: str
    geometry: Geometry
    world: int
    ep: int
    mode: str = "static"
    """static: a fake world, tensors without values. real: ranks of a launcher such as torchrun. timed: the same, with
    ``steps`` timed steps and one counted after them."""
    adapter: str = "module"
    """smoke, module, or the framework whose own code is run: torchtitan, megatron, maxtext."""
    recipe: str = ""
    """A recipe of the framework, run as it is; '' pins the numbers of ``geometry``."""
    entry: str | None = None
    source_roots: list[str] = field(default_factory=lambda: ["."])
    watch: list[str] = field(default_factory=list)
    mlp: str = "moe"
    routing: str = "balanced"
    dtype: str = "bfloat16"
    dispatcher: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    steps: int = 2
    warmup: int = 0
    slowdown_pct: float = 0.0
    """By which every timed step is made longer: 0 but for calibrations, which try the gate with a known slowdown."""
    limit_s: float = 0.0
    """After which the launch is killed, counted from its start; 0 where that is not known."""
    seed: int = 1234
    reshard_after_forward: bool = True
    paper: str = ""
    """The library of the paper GPU that a static trace runs on; '' for a trace as a CPU program."""
    gpu: str = "h100"
    """Which GPU the paper GPU is; see ``paper/gpus.py``."""

    @staticmethod
    def load(path: Path) -> "Request":
        document = json.loads(path.read_text(encoding="utf-8"))
        return Request(**{**document, "geometry": Geometry(**document["geometry"])})

    def layer_config(self) -> dict[str, Any]:
        """The ``config`` of the module contract: the shape's numbers, the routing asked for, and the user's keys."""
        numbers = dict(vars(self.geometry))
        asked = {"dispatcher": self.dispatcher} if self.dispatcher else {}
        return {**numbers, "routing": self.routing, "seed": self.seed, **asked, **self.config}

    def resolved(self) -> dict[str, Any]:
        """Everything that decides what the step does, flat: two arms are compared by it."""
        return {
            **self.layer_config(),
            "entry": self.entry,
            "mlp": self.mlp,
            "dtype": self.dtype,
            "world": self.world,
            "ep": self.ep,
            "reshard_after_forward": self.reshard_after_forward,
        }
