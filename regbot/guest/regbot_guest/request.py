"""The request of one guest process. The trusted side writes it as JSON, one file per launch."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Scalar = str | int | float | bool | None
"""Value of a configuration's key."""


@dataclass(frozen=True)
class Geometry:
    """Dimensions of one MoE transformer, in elements. ``regbot.workloads.shapes.Geometry`` has the same fields."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    qk_norm: bool
    rope_theta: float
    experts: int
    top_k: int
    expert_width: int  # intermediate width of one expert
    vocabulary: int  # 0 for a model without embedding and output head
    sequence: int
    micro_batch: int  # sequences per rank and step

    @property
    def tokens(self) -> int:
        return self.sequence * self.micro_batch

    @property
    def dense_width(self) -> int:
        """Width of the dense counterpart's MLP, which has as many active weights as the routed experts of a token."""
        return self.top_k * self.expert_width


@dataclass(frozen=True)
class Request:
    """The settings of one launch."""

    request: str
    """Identifier of the request. The record repeats it, so that the trusted side recognises an old record."""
    workload: str
    variant: str
    record: str
    """Path of the record to write. ``{rank}`` in it is replaced by the rank."""
    root: str
    geometry: Geometry
    world: int
    """Number of ranks. Groups of ``ep`` consecutive ranks are the expert-parallel groups."""
    ep: int
    mode: str = "static"
    """static: a trace in a fake world. timed: the ranks that a launcher such as torchrun started, with ``steps`` timed
    steps and then one counted step, or profiled steps if code is compiled.
    """
    adapter: str = "module"
    """The adapter that builds the workload: smoke, module, or a framework (torchtitan, megatron, maxtext)."""
    recipe: str = ""
    """Name of a recipe of the framework, used unchanged. '' means that the dimensions in ``geometry`` are used."""
    program: str = ""
    """Path of the framework's own training script in the checkout, which runs unmodified."""
    entry: str | None = None
    """The function that builds the layer under test, as 'package.module:function'. None means regbot's own layer."""
    source_roots: list[str] = field(default_factory=lambda: ["."])
    """Folders of the worktree that are put on Python's search path."""
    watch: list[str] = field(default_factory=list)
    """Packages that must be loaded from ``root``. [] means all packages and modules in the source roots."""
    mlp: str = "moe"
    """moe, or dense for the dense counterpart: a model with an MLP in place of each MoE layer."""
    routing: str = "balanced"
    """balanced or skewed, which force the experts of each token; natural, where the router chooses them."""
    dtype: str = "bfloat16"
    dispatcher: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    """Kind of device of real ranks: cpu, or cuda for one GPU per rank."""
    share_gpu: bool = False
    """Whether all ranks of a node use its first GPU, through gloo (``benchmarks/first_hour.py``). Times then say
    nothing.
    """
    numa_pinning: bool = True
    steps: int = 2
    """Number of steps. The last step of a trace is counted."""
    warmup: int = 0
    slowdown_pct: float = 0.0
    """Percentage by which every timed step is lengthened. Only calibrations set it, to test the gate."""
    limit_s: float = 0.0
    """Seconds after the start of the launch at which the launch is killed. 0 means that the limit is unknown."""
    profile_reason: str = ""
    """Reason to profile steps instead of counting one. '' if there is none; a step is then counted if possible."""
    max_profile_bytes: int = 32 * 2**20
    seed: int = 1234
    reshard_after_forward: bool = True
    """FSDP's setting: whether it frees the gathered parameters of a block after forward."""
    paper: str = ""
    """Path of the paper GPU's library for a static trace. '' means that a CPU program is traced."""
    gpu: str = "h100"
    """GPU model that the paper GPU imitates. ``paper/gpus.py`` has the known models."""

    stand_ins: str = ""
    """Path of the file that declares stand-ins for the repository's compiled extensions. '' if there is none."""
    stand_ins_text: str = ""
    """Text of that file at the base's commit, also for the head."""

    @staticmethod
    def load(path: Path) -> "Request":
        document = json.loads(path.read_text(encoding="utf-8"))
        return Request(**{**document, "geometry": Geometry(**document["geometry"])})

    @property
    def runs_bridge(self) -> bool:
        """Whether ``recipe`` is one of Megatron Bridge. A recipe of Megatron-LM is a YAML file of flags."""
        return bool(self.recipe) and not self.recipe.lower().endswith((".yaml", ".yml"))

    def layer_config(self) -> dict[str, Any]:
        """Return ``config`` of ``build_layer``. The user's own keys take precedence."""
        dimensions = dict(vars(self.geometry))
        dispatcher = {"dispatcher": self.dispatcher} if self.dispatcher else {}
        return {**dimensions, "routing": self.routing, "seed": self.seed, **dispatcher, **self.config}

    def resolved(self) -> dict[str, Any]:
        """Return every setting that affects the step as one flat mapping, to compare the two arms."""
        return {
            **self.layer_config(),
            "entry": self.entry,
            "mlp": self.mlp,
            "dtype": self.dtype,
            "world": self.world,
            "ep": self.ep,
            "reshard_after_forward": self.reshard_after_forward,
        }
