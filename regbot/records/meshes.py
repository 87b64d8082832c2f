"""Meshes of ranks: those of the fixed shapes, and those that a workload defines."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from regbot.records.base import Record

MeshName = Literal["ep", "ep-dp"]
Positive = Annotated[int, Field(ge=1)]


class Parallelism(Record):
    """Sizes of the axes of the attention and expert meshes. The product of each is the world size; ``pp`` belongs to
    both."""

    tp: Positive = 1
    cp: Positive = 1
    dp: Positive
    pp: Positive = 1
    etp: Positive = 1
    ep: Positive
    edp: Positive
    own_name: str = Field("", description="name of a mesh that a workload defines; '' for a mesh of the shape")

    @model_validator(mode="after")
    def _check_ranks(self) -> Self:
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
    def name(self) -> str:
        return self.shape_mesh or self.own_name

    @property
    def shape_mesh(self) -> MeshName | None:
        """Name of this mesh if it is one of a shape; None for a mesh that a workload defines."""
        if self.own_name:
            return None
        return "ep" if self.edp == 1 else "ep-dp"


class OwnMesh(Record):
    """A mesh that a workload defines. DP and EDP result from the ranks: 8 ranks with EP 1 and TP 2 have DP 8 / 2 = 4
    and EDP 8 / 1 = 8. There is no pipeline axis, because only the first stage would be traced."""

    world: Positive
    ep: Positive
    tp: Positive = 1
    cp: Positive = 1
    etp: Positive = 1

    @model_validator(mode="after")
    def _check_division(self) -> Self:
        group_sizes = {"TP x CP": self.tp * self.cp, "ETP x EP": self.etp * self.ep}
        for axes, ranks in group_sizes.items():
            if self.world % ranks:
                raise ValueError(f"{self.world} ranks do not divide into groups of {axes} = {ranks} ranks")
        return self

    @property
    def axis_sizes(self) -> dict[str, int]:
        return {"tp": self.tp, "cp": self.cp, "etp": self.etp}

    @property
    def name(self) -> str:
        """Name of the mesh in entries, such as ``world8-ep1-tp2``. Axes of size 1 are left out, except EP."""
        others = [f"-{axis}{size}" for axis, size in self.axis_sizes.items() if size > 1]
        return f"world{self.world}-ep{self.ep}{''.join(others)}"

    def parallelism(self) -> Parallelism:
        """Return the sizes of all axes, with DP and EDP."""
        return Parallelism(
            **self.axis_sizes,
            dp=self.world // (self.tp * self.cp),
            ep=self.ep,
            edp=self.world // (self.etp * self.ep),
            own_name=self.name,
        )
