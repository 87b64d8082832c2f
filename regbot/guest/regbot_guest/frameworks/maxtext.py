"""MaxText. Imports no torch: its interpreter may have none."""

from typing import Any

from regbot_guest.request import Request


class Refused(Exception):
    """This cannot be measured. ``kind`` is one of the refusal kinds of the raw record."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def work(request: Request) -> dict[str, Any]:
    """The part of the raw record that was asked for."""
    raise Refused("config", "not built yet")
