"""The source lines of a recording, with their functions and callers."""

from collections.abc import Sequence
from typing import NamedTuple

from regbot.records.ledger import Frame
from regbot.records.text.clip import clip_label
from regbot.records.text.printable import printable

MAX_DEPTH = 10
"""Largest number of callers that are kept of one call."""
MAX_CALLERS = 32
"""Largest number of callers that are kept of one line."""


class SourceCall(NamedTuple):
    line: str
    """'path:number'"""
    function: str


class CallStacks:
    def __init__(self) -> None:
        self._callers: dict[str, dict[str, None]] = {}
        self._functions: dict[str, str] = {}

    def add(self, calls: Sequence[SourceCall]) -> str:
        """Add the calls of one collective, from the inside out. Return the line of the innermost; '' without one."""
        calls = calls[: MAX_DEPTH + 1]
        for call in calls:
            self._functions.setdefault(call.line, clip_label(printable(call.function)))
        if not calls:
            return ""
        callers = self._callers.setdefault(calls[0].line, {})
        callers |= dict.fromkeys(call.line for call in calls[1:])
        return calls[0].line

    def frames(self) -> dict[str, Frame]:
        return {
            line: Frame(function=function, callers=list(self._callers.get(line, {}))[:MAX_CALLERS])
            for line, function in self._functions.items()
        }
