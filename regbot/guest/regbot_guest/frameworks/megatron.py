"""megatron."""

from typing import Any

from regbot_guest.harness import ContractError
from regbot_guest.request import Request


def work(request: Request) -> dict[str, Any]:
    """The part of the raw record that was asked for."""
    raise ContractError("config", "not built yet")
