"""The traceback of a crash. The guest reports it, so the code under test could forge it. The judge uses it only to
answer INVALID in place of FAIL, and both block a pull request (``regbot/judge/crashes.py``)."""

from typing import Annotated, Literal

from pydantic import Field

from regbot.records.base import Record
from regbot.records.hang import Frame
from regbot.records.ledger import Text

Owner = Literal["checkout", "regbot", "torch", "installed"]
"""Whose code a frame runs. checkout: the code under test. regbot: such as a replacement of a framework's function.
installed: other packages, and Python's own library."""


class CrashFrame(Frame):
    """One line of a traceback."""

    owner: Owner


class Crash(Record):
    """The traceback of a crash, as far as it shows whose fault the crash is."""

    frames: Annotated[list[CrashFrame], Field(max_length=100)] = Field(
        [], description="of the checkout and of regbot, and the innermost, which is the last; [] without a traceback"
    )
    keys: Annotated[list[Text], Field(max_length=20)] = Field([], description="keys set by regbot that the error names")
