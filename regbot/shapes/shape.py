"""Shapes: the fixed smoke models. A shape's numbers never change; a change makes a new version.

A shape holds geometry only. How it is sharded is a ``Parallelism`` (two meshes over the same ranks: attention
TP x CP x DP x PP and experts ETP x EP x EDP x PP), how it is run is a ``Variant``.
"""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated, Literal, Self

import tomllib
from pydantic import Field, ValidationError, model_validator

from regbot.records.base import Record
from regbot.records.files import describe

Routing = Literal["balanced", "skewed", "natural"]
MeshName = Literal["ep", "ep-dp"]
SizeName = Literal["full", "smoke", "cpu"]
Positive = Annotated[int, Field(ge=1)]

SIZES: tuple[SizeName, ...] = ("full", "smoke", "cpu")
CONTROLS = ("skewed", "dense")


class ShapeError(Exception):
    """An unknown shape, variant or mesh, or one that does not fit together. The message lists what there is."""


class Parallelism(Record):
    """Sizes of both meshes. The product of each side is the world size; both share the pipeline axis."""

    tp: Positive = 1
    cp: Positive = 1
    dp: Positive
    pp: Positive = 1
    etp: Positive = 1
    ep: Positive
    edp: Positive

    @model_validator(mode="after")
    def _same_ranks(self) -> Self:
        if self.tp * self.cp * self.dp != self.etp * self.ep * self.edp:
            raise ValueError(
                f"attention mesh {self.tp}x{self.cp}x{self.dp} and expert mesh {self.etp}x{self.ep}x{self.edp} "
                "do not cover the same ranks"
            )
        return self

    @property
    def world_size(self) -> int:
        return self.tp * self.cp * self.dp * self.pp

    @property
    def name(self) -> MeshName:
        return "ep" if self.edp == 1 else "ep-dp"


class Geometry(Record):
    """The numbers of one MoE transformer, widths in elements."""

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
    vocabulary: Positive
    sequence: Positive
    micro_batch: Positive

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads do not divide over {self.kv_heads} key-value heads")
        if self.top_k > self.experts:
            raise ValueError(f"top-{self.top_k} of {self.experts} experts")
        return self

    @property
    def tokens(self) -> int:
        """Tokens per rank and step."""
        return self.sequence * self.micro_batch

    @property
    def dense_width(self) -> int:
        """Width of the one MLP of the dense control: as many active weights as the routed experts."""
        return self.top_k * self.expert_width

    @property
    def parameters(self) -> int:
        """All weights of the MoE model; embedding and output head are separate."""
        return self._shared_parameters + self.layers * (
            self.hidden * self.experts + 3 * self.experts * self.hidden * self.expert_width
        )

    @property
    def active_parameters(self) -> int:
        """Weights that one token meets in matrix products: no embedding look-up, top-k of the experts."""
        return (
            self._shared_parameters
            - self.vocabulary * self.hidden
            + self.layers * (self.hidden * self.experts + 3 * self.top_k * self.hidden * self.expert_width)
        )

    @property
    def flops_per_token(self) -> int:
        """Model FLOPs of forward and backward for one token.

        6 per active weight (2 forward, 4 backward) plus causal attention: the two products QK^T and PV cost
        2 x 2 x heads x head_dim x sequence forward, twice that backward, and half of it is masked. Recomputation
        is not model work and never counted. Source: Narayanan et al. 2021 (arXiv:2104.04473), appendix, with
        grouped-query projections and the causal half.
        """
        attention = self.layers * 6 * self.heads * self.head_dim * self.sequence
        return 6 * self.active_parameters + attention

    @property
    def flops_per_step(self) -> int:
        """Model FLOPs of one step on one rank."""
        return self.flops_per_token * self.tokens

    @property
    def _shared_parameters(self) -> int:
        query, key_value = self.heads * self.head_dim, self.kv_heads * self.head_dim
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        attention = 2 * self.hidden * query + 2 * self.hidden * key_value
        return 2 * self.vocabulary * self.hidden + self.hidden + self.layers * (attention + norms)


class Variant(Record):
    """A shape at one size with one kind of MLP and one routing."""

    name: str = Field(description="'full', 'cpu-skewed', 'smoke-dense', ...")
    size: SizeName
    mlp: Literal["moe", "dense"]
    routing: Routing
    geometry: Geometry
    dtype: Literal["bfloat16", "float32"] = Field(description="of parameters and compute; reduction is always float32")


class Shape(Record):
    """One fixed smoke model."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    version: Positive
    title: str
    source: str = Field(description="where the numbers come from")
    sizes: dict[SizeName, Geometry]
    meshes: dict[SizeName, dict[MeshName, Parallelism]]
    expert_parallel_cap: Positive = Field(description="with --world and no --ep, EP is at most this")
    warmup_steps: Positive = 10
    timed_steps: Positive = 40

    @property
    def id(self) -> str:
        return f"{self.name}@{self.version}"

    def variant(self, name: str = "full") -> Variant:
        """``[SIZE][-skewed|-dense]``; the size is ``full`` where left out. Raises ShapeError."""
        parts = name.split("-")
        size = parts.pop(0) if parts[0] in SIZES else "full"
        control = parts.pop(0) if parts and parts[0] in CONTROLS else ""
        if parts or size not in self.sizes:
            known = ", ".join(f"{size}{suffix}" for size in self.sizes for suffix in ("", "-skewed", "-dense"))
            raise ShapeError(f"shape {self.id} has no variant {name!r}; there are {known}")
        return Variant(
            name=f"{size}-{control}" if control else size,
            size=size,
            mlp="dense" if control == "dense" else "moe",
            routing="skewed" if control == "skewed" else "balanced",
            geometry=self.sizes[size],
            dtype="float32" if size == "cpu" else "bfloat16",
        )

    def parallelism(self, size: SizeName, world: int | None = None, ep: int | None = None) -> Parallelism:
        """The mesh for ``world`` ranks; EP is min(world, cap) where not given. Raises ShapeError."""
        experts = self.sizes[size].experts
        world = world if world is not None else (ep or self.meshes[size]["ep"].world_size)
        ep = ep if ep is not None else min(world, self.expert_parallel_cap)
        if world < 1 or ep < 1 or world % ep:
            raise ShapeError(f"a world of {world} ranks does not divide into expert-parallel groups of {ep}")
        if experts % ep:
            raise ShapeError(f"shape {self.id}: {experts} experts do not divide over EP {ep}")
        return Parallelism(dp=world, ep=ep, edp=world // ep)


def shape_names() -> list[str]:
    """Names of all shapes, in reading order."""
    files = (resources.files("regbot.shapes") / "data").iterdir()
    return sorted((f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")), key=_reading_order)


@cache
def load_shape(name: str) -> Shape:
    """The shape called ``name`` or ``name@version``. Raises ShapeError with the list of shapes."""
    plain, _, version = name.partition("@")
    if plain not in shape_names():
        raise ShapeError(f"there is no shape {name!r}; there are {', '.join(shape_names())}")
    text = (resources.files("regbot.shapes") / "data" / f"{plain}.toml").read_text(encoding="utf-8")
    try:
        shape = Shape.model_validate(_expand(tomllib.loads(text)))
    except ValidationError as error:  # a shipped file: a fault here is ours
        raise ShapeError(f"shape file {plain}.toml: {describe(error)}") from error
    if version and version != str(shape.version):
        raise ShapeError(f"shape {plain} is at version {shape.version}; {name!r} is not shipped with this regbot")
    return shape


def _expand(document: dict[str, object]) -> Mapping[str, object]:
    """TOML to Shape: sizes inherit the geometry, meshes are written as world and ep."""
    geometry, sizes, meshes = document.pop("geometry"), document.pop("sizes"), document.pop("meshes")
    assert isinstance(geometry, dict)
    assert isinstance(sizes, dict)
    assert isinstance(meshes, dict)
    document["sizes"] = {size: {**geometry, **numbers} for size, numbers in sizes.items()}
    document["meshes"] = {
        size: {
            name: {"dp": mesh["world"], "ep": mesh["ep"], "edp": mesh["world"] // mesh["ep"]}
            for name, mesh in named.items()
        }
        for size, named in meshes.items()
    }
    return document


def _reading_order(name: str) -> tuple[int, str]:
    """The two shapes of every check first, then the static extras."""
    first = ("qwen3-30b-a3b", "mixtral-8x7b")
    return (first.index(name) if name in first else len(first), name)
