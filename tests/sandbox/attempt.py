"""What the programs beside this one share: their targets, and how they say that a deed was done."""

import json
import sys
from collections.abc import Callable
from typing import Any

TARGETS: dict[str, Any] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}


def attempt(*deeds: Callable[[], str | None]) -> None:
    """Try every deed; one that returns what it has got has escaped, one that returns nothing or raises has not."""
    for deed in deeds:
        print(_tried(deed), flush=True)


def _tried(deed: Callable[[], str | None]) -> str:
    try:
        got = deed()
    except (OSError, ImportError, MemoryError, ValueError) as error:
        return f"stopped {deed.__name__}: {error}"
    return f"ESCAPED {deed.__name__}: {got}" if got else f"stopped {deed.__name__}"
