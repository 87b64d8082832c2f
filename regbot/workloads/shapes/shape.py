"""Shapes: the fixed models that are traced and timed. When the numbers of a shape change, its version must change too.

A shape has a ``Geometry`` (layers, widths, experts) for each size. A ``Variant`` is a size with a kind of MLP, a
routing and a dtype. A ``Parallelism`` says how the model is sharded over ranks. It has two meshes over the same ranks:
TP x CP x DP x PP for attention, and ETP x EP x EDP x PP for the experts.
"""

from functools import cache
from importlib import resources
from typing import Annotated, Literal

import tomllib
from pydantic import Field

from regbot.errors import UserError
from regbot.records.base import Record
from regbot.records.meshes import MeshName, Parallelism, Positive

Routing = Literal["balanced", "skewed", "natural"]
SizeName = Literal["full", "smoke", "cpu"]

SIZES: tuple[SizeName, ...] = ("full", "smoke", "cpu")
SUFFIXES = ("skewed", "dense", "moe")
"""Endings of variant names: uneven routing, an MLP instead of the experts, no embedding and output head."""


DEFAULT_SHAPES = ("qwen3-30b-a3b", "mixtral-8x7b")
"""Shapes that are listed first."""


class ShapeError(UserError):
    """An unknown shape or variant, or an invalid mesh. The advice lists the valid names."""


class Geometry(Record):
    """Dimensions of one MoE transformer. Widths are in elements."""

    layers: Positive
    hidden: Positive
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    qk_norm: bool
    rope_theta: Annotated[float, Field(gt=1)]
    experts: Positive
    top_k: Positive
    expert_width: Positive
    vocabulary: Annotated[int, Field(ge=0)] = Field(description="0: blocks only, without embedding and output head")
    sequence: Positive
    micro_batch: Positive

    @property
    def tokens(self) -> int:
        """Number of tokens per rank and step."""
        return self.sequence * self.micro_batch

    @property
    def parameters(self) -> int:
        """Number of weights of the MoE model. Embedding and output head have separate weights."""
        return self._parameters_without_experts + self.layers * self.experts * self._parameters_per_expert

    @property
    def active_parameters(self) -> int:
        """Number of weights that one token is multiplied with, without the embedding, which is a table look-up."""
        embedding = self.vocabulary * self.hidden
        active_experts = self.layers * self.top_k * self._parameters_per_expert
        return self._parameters_without_experts - embedding + active_experts

    @property
    def flops_per_token(self) -> int:
        """Model FLOPs of forward and backward for one token. Recomputation is not counted.

        Each active weight costs 6 FLOPs: 2 in forward and 4 in backward. In each layer, the products of attention are
        added. In forward, QK^T and PV each cost 2 x heads x head_dim x sequence. Backward costs twice as much as
        forward, so the sum is 3 x 4 x heads x head_dim x sequence. The causal mask halves this sum. Source: Narayanan
        et al. 2021 (arXiv:2104.04473), appendix, adapted to grouped-query projections and to the causal half.
        """
        attention = self.layers * 6 * self.heads * self.head_dim * self.sequence
        return 6 * self.active_parameters + attention

    @property
    def flops_per_step(self) -> int:
        return self.flops_per_token * self.tokens

    @property
    def expert_flops_share(self) -> float:
        """Share of the model FLOPs that the routed experts compute, in [0, 1]."""
        return 6 * self.layers * self.top_k * self._parameters_per_expert / self.flops_per_token

    @property
    def _parameters_per_expert(self) -> int:
        return 3 * self.hidden * self.expert_width

    @property
    def _parameters_without_experts(self) -> int:
        query_width, key_value_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * self.hidden * query_width + 2 * self.hidden * key_value_width  # Q and output; K and V
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        router = self.hidden * self.experts
        embedding_and_head, final_norm = 2 * self.vocabulary * self.hidden, self.hidden
        return embedding_and_head + final_norm + self.layers * (attention + norms + router)


class Variant(Record):
    """One way to run a shape: a size, a kind of MLP, a routing and a dtype."""

    name: str = Field(description="'full', 'cpu-skewed', 'smoke-dense', 'smoke-moe', ...")
    size: SizeName
    mlp: Literal["moe", "dense"]
    routing: Routing
    geometry: Geometry
    dtype: Literal["bfloat16", "float32"] = Field(description="of parameters and compute; reduction is always float32")


class Shape(Record):
    """One fixed model: geometries by size, meshes by size, and numbers of steps of a timed run."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    version: Positive
    title: str
    source: str = Field(description="where the numbers come from")
    sizes: dict[SizeName, Geometry]
    meshes: dict[SizeName, dict[MeshName, Parallelism]]
    expert_parallel_cap: Positive = Field(description="largest EP if no EP is requested")
    warmup_steps: Positive = 10
    timed_steps: Positive = 40

    @property
    def id(self) -> str:
        return f"{self.name}@{self.version}"

    def variant(self, name: str = "full") -> Variant:
        """Return the variant with the given name, which has the form ``[SIZE][-skewed|-dense|-moe]``.

        The default size is ``full``. Raises ShapeError if the shape has no such variant.
        """
        words = name.split("-")
        size = words.pop(0) if words[0] in SIZES else "full"
        suffix = words.pop(0) if words and words[0] in SUFFIXES else ""
        if words or size not in self.sizes:  # unknown words are left
            endings = ("", *(f"-{known_suffix}" for known_suffix in SUFFIXES))
            known_variants = ", ".join(f"{known_size}{ending}" for known_size in self.sizes for ending in endings)
            raise ShapeError(f"shape {self.id} has no variant {name!r}", f"its variants are {known_variants}")
        geometry = self.sizes[size]
        return Variant(
            name=f"{size}-{suffix}" if suffix else size,
            size=size,
            mlp="dense" if suffix == "dense" else "moe",
            routing="skewed" if suffix == "skewed" else "balanced",
            geometry=geometry.model_copy(update={"vocabulary": 0}) if suffix == "moe" else geometry,
            dtype="float32" if size == "cpu" else "bfloat16",
        )

    def parallelism(self, size: SizeName, world: int | None = None, ep: int | None = None) -> Parallelism:
        """Return the mesh for ``world`` ranks (default: those of mesh 'ep', or ``ep``) with expert-parallel groups of
        ``ep`` ranks (default: ``world``, at most ``expert_parallel_cap``). Raises ShapeError if they do not divide.
        """
        experts = self.sizes[size].experts
        world = (ep or self.meshes[size]["ep"].world_size) if world is None else world
        ep = min(world, self.expert_parallel_cap) if ep is None else ep
        if world < 1 or ep < 1 or world % ep:
            raise ShapeError(f"a world of {world} ranks does not divide into expert-parallel groups of {ep}")
        if experts % ep:
            raise ShapeError(f"shape {self.id}: {experts} experts do not divide over EP {ep}")
        return Parallelism(dp=world, ep=ep, edp=world // ep)


def shape_names() -> list[str]:
    """Return the names of all shapes, in display order."""
    files = (resources.files("regbot.workloads.shapes") / "data").iterdir()
    names = (file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))
    return sorted(names, key=lambda name: (*(name != default for default in DEFAULT_SHAPES), name))


@cache
def load_shape(name: str) -> Shape:
    """Load the shape ``name`` or ``name@version``. Raises ShapeError for an unknown name or version."""
    base_name, _, version = name.partition("@")
    if base_name not in shape_names():
        raise ShapeError(f"unknown shape {name!r}", f"the shapes are {', '.join(shape_names())}")
    text = (resources.files("regbot.workloads.shapes") / "data" / f"{base_name}.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    shared_numbers = document.pop("geometry")  # each size may add numbers of its own, or replace shared ones
    document["sizes"] = {size: {**shared_numbers, **numbers} for size, numbers in document["sizes"].items()}
    shape = Shape.model_validate(document)
    if version and version != str(shape.version):
        problem = f"shape {base_name} is at version {shape.version}"
        raise ShapeError(problem, f"{name!r} is not shipped with this regbot")
    return shape
