"""Keys of a framework's configuration: all of them, and those nearest to a key that does not exist."""

import dataclasses
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any


def list_keys(configuration: Any, path: str = "", left_out: Collection[str] = ()) -> list[str]:
    """Return the dotted keys of all fields of a dataclass of dataclasses, without the sections in ``left_out``."""
    keys: list[str] = []
    for field in dataclasses.fields(configuration):
        value, key = getattr(configuration, field.name, None), f"{path}{field.name}"
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            keys.append(key)
        elif field.name not in left_out:
            keys += list_keys(value, f"{key}.", left_out)
    return keys


def suggest(name: str, known_names: Iterable[str], noun: str = "keys") -> str:
    """Return text with the nearest known names, to append to a message that ``name`` does not exist; '' if none is
    near.
    """
    nearest = get_close_matches(name, list(known_names), 3, cutoff=0.5)
    return f"; the nearest {noun} are {', '.join(nearest)}" if nearest else ""
