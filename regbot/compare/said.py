"""What many files say alike is told once."""

import re
from collections.abc import Iterable, Iterator, Sequence

_FIGURE = re.compile(r"\d[\d.]*")


def once(told: Iterable[tuple[str, str]]) -> Iterator[str]:
    """``(name of a file, what it says)`` -> sentences: one for files that say the same, whatever their figures."""
    alike: dict[str, list[tuple[str, str]]] = {}
    for name, said in told:
        alike.setdefault(_FIGURE.sub("", said), []).append((name, said))
    for group in alike.values():
        first, names = group[0][1], [name for name, _ in group]
        if len({said for _, said in group}) == 1:
            yield f"{named(names)}: {first}"
        else:
            yield f"{names[0]}: {first}; {len(group) - 1} more of the files say the like"


def named(names: Sequence[str]) -> str:
    """``a.csv``, ``a.csv and 3 more``."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
