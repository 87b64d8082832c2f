"""What every rank was doing when the run passed its time limit, as the ranks report it. No verdict depends on it."""

from typing import Annotated

from pydantic import Field

from regbot.records.base import Record
from regbot.records.ledger import Count, Text

RankNumber = Annotated[int, Field(ge=0, le=65535)]


class Frame(Record):
    """One line of a stack."""

    file: Text = Field(description="relative to the checkout or the installed packages, where it is in them")
    line: Count
    function: Text


class Collective(Record):
    """One collective of one rank, in the words of torch's Flight Recorder."""

    name: Text = Field(description="backend and function, e.g. 'nccl:all_to_all'")
    group: Text
    number: Count = Field(description="sequence number in its group, from 1; 0 for send and recv")
    state: Text = Field(description="scheduled, started or completed")


class RankHang(Record):
    """What one rank was doing when the run passed its time limit."""

    rank: RankNumber
    answered: bool = Field(description="whether the rank wrote its stacks at the time limit")
    last: Collective | None = Field(None, description="collective that it issued last, by torch's Flight Recorder")
    code_frame: Frame | None = Field(None, alias="at", description="innermost frame of the code under test")


class Hang(Record):
    """The ranks of a run that hung, as they reported themselves."""

    ranks: Annotated[list[RankHang], Field(max_length=65536)]
    text: Annotated[str, Field(max_length=2000)] = Field(description="where the ranks are, the rarest place first")
