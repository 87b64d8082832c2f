"""Keys of a framework's configuration: all of them, and those nearest to a key that does not exist."""

import dataclasses
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any


def list_keys(configuration: Any, path: str = "", left_out: Collection[str] = ()) -> list[str]:
    """Return the dotted keys of a dataclass whose sections are dataclasses too, without sections in ``left_out``."""
    keys: list[str] = []
    for field in dataclasses.fields(configuration):
        key, value = f"{path}{field.name}", getattr(configuration, field.name, None)
        is_section = dataclasses.is_dataclass(value) and not isinstance(value, type)
        if not is_section:
            keys.append(key)
        elif field.name not in left_out:
            keys += list_keys(value, f"{key}.", left_out)
    return keys


def suggest(name: str, known_names: Iterable[str], noun: str = "keys") -> str:
    """Return the end of a message that ``name`` does not exist: the names that are spelled similarly, or ''."""
    nearest = get_close_matches(name, list(known_names), n=3, cutoff=0.5)
    return f"; the nearest {noun} are {', '.join(nearest)}" if nearest else ""
