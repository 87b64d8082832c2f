"""Who was where when a run was killed for its time limit: each rank's last words, as the trusted side reads them.

The ranks left this themselves. It says where to look, and decides nothing.
"""

from typing import Annotated, Literal

from pydantic import Field

from regbot.records.base import Record
from regbot.records.ledger import Text

RankNumber = Annotated[int, Field(ge=0, le=65535)]
Serial = Annotated[int, Field(ge=0, le=2**53)]
State = Literal["issuing", "launched", "ended"]
"""Its call has not returned; it has, and nobody has waited for it, or only a device would; it has been waited for."""


class Frame(Record):
    """One line of a stack."""

    file: Text = Field(description="relative to the checkout or the installed packages, where it is in them")
    line: Serial
    function: Text


class Collective(Record):
    """One collective of one rank."""

    kind: Text
    group: Text = Field(description="what its maker called the process group, and its ranks")
    ranks: Annotated[list[RankNumber], Field(max_length=4096)] = Field(
        default_factory=list, description="of the group; [] where that is not known"
    )
    number: Serial = Field(description="in its group, from 1, since the process began; 0 for send and recv")
    state: State
    bytes: Serial = 0
    backend: Text = ""

    @property
    def asynchronous(self) -> bool:
        """Whether a device executes it, so that its call returns and nothing is known of its end."""
        return self.backend not in ("gloo", "mpi")


class RankHang(Record):
    """What one rank left."""

    rank: RankNumber
    host: Text = ""
    sign: bool = Field(description="whether it left anything at all: it began")
    answered: bool = Field(description="whether it wrote its stacks when it was time")
    inside: Collective | None = Field(default=None, description="the collective that it waits in")
    inside_s: Annotated[float, Field(ge=0, le=1e7)] | None = Field(
        default=None, description="how long, by the rank's own clock, when the stacks were written"
    )
    recent: Annotated[list[Collective], Field(max_length=64)] = Field(
        default_factory=list, description="the latest that it issued, newest first"
    )
    issued: dict[str, Serial] = Field(default_factory=dict, description="group -> collectives issued of it")
    joining: bool = Field(default=False, description="it waits for the other ranks to join")
    module: Text = Field(default="", description="path of the module at work, where that is known")
    frames: Annotated[list[Frame], Field(max_length=16)] = Field(
        default_factory=list,
        description="of the main thread, innermost first, without regbot's own and the launcher's",
    )
    at: Frame | None = Field(default=None, description="of those the innermost of the code under test")

    @property
    def last(self) -> Collective | None:
        """The latest that it issued."""
        return self.recent[0] if self.recent else None


class Hang(Record):
    """The ranks of a run that hung. Self-reported."""

    ranks: Annotated[list[RankHang], Field(max_length=65536)]
    text: Annotated[str, Field(max_length=2000)] = Field(description="the odd one out, in one sentence")
