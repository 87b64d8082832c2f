"""Records of a hang: what every rank was doing when the run passed its time limit and was killed.

The ranks wrote these reports themselves. The reports show where to look, but no verdict depends on them.
"""

from typing import Annotated, Literal

from pydantic import Field

from regbot.records.base import Record
from regbot.records.ledger import Text

RankNumber = Annotated[int, Field(ge=0, le=65535)]
NonNegativeInt = Annotated[int, Field(ge=0, le=2**53)]
CollectiveState = Literal["issuing", "launched", "started", "ended"]
"""issuing: the call has not returned. launched: the call has returned, but the host has not waited for the result.
started: the device executes it. ended: the host has waited for the result, or torch has seen the end. Only torch's
Flight Recorder knows whether a collective has started."""


class Frame(Record):
    """One line of a stack."""

    file: Text = Field(description="relative to the checkout or the installed packages, where it is in them")
    line: NonNegativeInt
    function: Text


class Collective(Record):
    """One collective of one rank."""

    kind: Text
    group: Text = Field(description="name and ranks of the process group")
    ranks: Annotated[list[RankNumber], Field(max_length=4096)] = Field(
        default_factory=list, description="ranks of the group; [] if unknown"
    )
    number: NonNegativeInt = Field(description="sequence number in its group, from 1; 0 for send and recv")
    state: CollectiveState
    bytes: NonNegativeInt = 0
    backend: Text = ""

    @property
    def asynchronous(self) -> bool:
        """Whether a device executes the collective, and not the host as with gloo and mpi. The call then returns before
        the collective ends, so the host does not see the end."""
        return self.backend not in ("gloo", "mpi")


class RankHang(Record):
    """What one rank was doing when the run passed its time limit."""

    rank: RankNumber
    host: Text = ""
    started: bool = Field(alias="sign", description="whether the rank wrote anything, as a sign that it has started")
    answered: bool = Field(description="whether the rank wrote its stacks at the time limit")
    inside: Collective | None = Field(
        default=None, description="the collective in which the rank waits; None if it waits in none"
    )
    inside_s: Annotated[float, Field(ge=0, le=1e7)] | None = Field(
        default=None,
        description="seconds in this collective when the stacks were written, by the rank's own clock",
    )
    recent: Annotated[list[Collective], Field(max_length=64)] = Field(
        default_factory=list, description="latest collectives that it issued, newest first"
    )
    flight: Collective | None = Field(
        default=None,
        description="latest collective that the rank launched, by torch's Flight Recorder, which also sees collectives "
        "that torch issued from C++; None where the recorder has none or could not be read",
    )
    issued: dict[str, NonNegativeInt] = Field(default_factory=dict, description="number of issued collectives by group")
    joining: bool = Field(
        default=False, description="whether the rank waits for the other ranks to join the process group"
    )
    module: Text = Field(default="", description="path of the active module, if known")
    frames: Annotated[list[Frame], Field(max_length=16)] = Field(
        default_factory=list,
        description="stack of the main thread, innermost first, without frames of regbot and the launcher",
    )
    code_frame: Frame | None = Field(default=None, alias="at", description="innermost frame of the code under test")

    @property
    def last(self) -> Collective | None:
        """The latest collective that the rank issued."""
        return self.recent[0] if self.recent else None


class Hang(Record):
    """The ranks of a run that hung, as they reported themselves."""

    ranks: Annotated[list[RankHang], Field(max_length=65536)]
    text: Annotated[str, Field(max_length=2000)] = Field(
        description="which rank differs from the others, in one sentence"
    )
