"""Where the events of a Kineto trace stand in its bytes, and which of them can matter, without decoding any.

Kineto writes every complete event in one order, ``{"ph": "X", "cat": ..., "name": ..., "pid", "tid", "ts", "dur",
"args"``, with the same spaces throughout a file. The first event tells the spaces; from then on an event is found by
the ``"X"`` in it, and chosen by four letters of its category and of its name, for all events of a chunk at once. An
``"X"`` in any other place means that the file is written differently, and nothing here is valid for it.
"""

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_CATEGORY, _NAME, _WORD = rb"(\w++)", rb'([^"\\]*+)', rb'("[^"\\]*+"|-?\d++)'
_NUMBER = rb"(-?\d{1,19}(?:\.\d{1,9})?+)"
_FIRST = re.compile(
    rb'(\{\s*"ph"\s*:\s*"X"\s*,\s*"cat"\s*:\s*")' + _CATEGORY + rb'("\s*,\s*"name"\s*:\s*")' + _NAME
    + rb'("\s*,\s*"pid"\s*:\s*)' + _WORD + rb'(\s*,\s*"tid"\s*:\s*)' + _WORD
    + rb'(\s*,\s*"ts"\s*:\s*)' + _NUMBER + rb'(\s*,\s*"dur"\s*:\s*)' + _NUMBER + rb'(\s*,\s*"args")'
)  # fmt: skip
"""An event as Kineto writes it. What stands between its values is the same in all events of a file."""


_PADDING = 512
"""What may be looked at behind the last event of a chunk."""


class OtherLayout(Exception):
    """The file does not keep Kineto's order of keys."""


class Layout(NamedTuple):
    """How a file writes its events: up to the category, letters between category and name, the rest of the header."""

    start: bytes
    between: int
    header: re.Pattern[bytes]


def _as_number(four: str) -> int:
    return int.from_bytes(four.encode(), "little")


_ALWAYS = [_as_number(word) for word in ("kern", "Kern", "user", "Oper", "Runt")]
_SOMETIMES = [
    ((_as_number(category[:4]), _as_number(category[4:8])), len(category) + skip, [_as_number(name) for name in names])
    for category, skip, names in (
        ('cpu_op",', -2, ("reco", "nccl", "c10d", "symm", "auto")),
        ("cuda_runtime", 4, ("Laun", "Grap")),
        ("cuda_runtime", 0, ("hipL", "hipG", "hipE", "hipM", "hipH")),
        ("cuda_driver", 0, ("cuLa", "cuGr")),
    )
]
"""Eight letters of a category, from where on the name is looked at, and four letters that it may have there."""


def learn(region: bytes) -> Layout | None:
    """The layout of the first event in ``region``, None where none stands there. Raises OtherLayout."""
    first = _FIRST.search(region)
    if first is None:
        if b'"X"' in region:
            raise OtherLayout
        return None
    start, _, name, _, *rest = first.groups()
    if not name.startswith(b'",') or len(start) + len(name) > _PADDING // 2:
        raise OtherLayout
    pid, tid, ts, dur, args = map(re.escape, rest[::2])
    header = _CATEGORY + re.escape(name) + _NAME + pid + _WORD + tid + _WORD + ts + _NUMBER + dur + _NUMBER + args
    return Layout(start, len(name), re.compile(header))


def candidates(region: bytes, layout: Layout) -> list[tuple[int, int]]:
    """Where in ``region`` the categories of events stand that may be wanted, and where each event ends at the latest.

    By four letters of category and name, on all events at once. Raises OtherLayout where an ``"X"`` stands anywhere
    but in the beginning of an event as the layout has it.
    """
    view = np.frombuffer(region + bytes(_PADDING), dtype=np.uint8)
    quotes = np.flatnonzero(view[1:-1] == ord("X"))
    quotes = quotes[(view[quotes] == ord('"')) & (view[quotes + 2] == ord('"'))]
    begins = quotes - layout.start.index(b'"X"')
    if not begins.size:
        return []
    start = np.frombuffer(layout.start, dtype=np.uint8)
    if begins[0] < 0 or (view[begins[:, None] + np.arange(start.size)] != start).any():
        raise OtherLayout
    categories = begins + start.size
    words = _four(view, categories)
    wanted = _among(words, _ALWAYS)
    for category, shift, names in _SOMETIMES:
        these = np.flatnonzero(words == category[0])
        these = these[_four(view, categories[these] + 4) == category[1]]
        if these.size:
            wanted[these] |= _among(_four(view, categories[these] + shift + layout.between), names)
    chosen = np.flatnonzero(wanted)
    ends = np.append(begins, len(region))[chosen + 1]
    return list(zip(categories[chosen].tolist(), ends.tolist(), strict=True))


def _four(view: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The four bytes at each place, as one number."""
    return np.ascontiguousarray(view[at[:, None] + np.arange(4)]).view("<u4").ravel()


def _among(words: NDArray[np.uint32], chosen: list[int]) -> NDArray[np.bool_]:
    """Which words are among those chosen, a few; ``np.isin`` takes longer to begin than this takes."""
    found: NDArray[np.bool_] = words == chosen[0]
    for word in chosen[1:]:
        found |= words == word
    return found
