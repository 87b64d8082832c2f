"""Locates the events of interest in the bytes of a Kineto trace, without decoding them.

Kineto writes the keys of every complete event in the same order: ``{"ph": "X", "cat": ..., "name": ..., "pid", "tid",
"ts", "dur", "args"``. The whitespace between keys is the same throughout a file, so it is learned from the first event.
After that, the ``"X"`` marks the position of each event. Four letters of the event's category and four letters of its
name decide whether it is of interest. All events of a chunk are checked at once. An ``"X"`` at any other position means
that the file has a different layout. Then LayoutMismatch is raised.
"""

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_CATEGORY, _NAME, _WORD = rb"(\w++)", rb'([^"\\]*+)', rb'("[^"\\]*+"|-?\d++)'
_NUMBER = rb"(-?\d{1,19}(?:\.\d{1,9})?+)"
_FIRST_EVENT = re.compile(
    rb'(\{\s*"ph"\s*:\s*"X"\s*,\s*"cat"\s*:\s*")' + _CATEGORY + rb'("\s*,\s*"name"\s*:\s*")' + _NAME
    + rb'("\s*,\s*"pid"\s*:\s*)' + _WORD + rb'(\s*,\s*"tid"\s*:\s*)' + _WORD
    + rb'(\s*,\s*"ts"\s*:\s*)' + _NUMBER + rb'(\s*,\s*"dur"\s*:\s*)' + _NUMBER + rb'(\s*,\s*"args")'
)  # fmt: skip
"""An event as Kineto writes it. The bytes between the values of an event are the same for all events of a file."""


_PADDING = 512
"""Number of bytes that are appended to a chunk, so that reads near the end of the chunk stay inside the buffer."""


class LayoutMismatch(Exception):
    """The file does not have Kineto's order of keys or Kineto's whitespace."""


class Layout(NamedTuple):
    """Layout of the events in a file.

    ``start`` has the bytes before the category. ``name_gap`` is the number of bytes between category and name.
    ``header`` is a pattern that matches from the category to the key ``args``.
    """

    start: bytes
    name_gap: int
    header: re.Pattern[bytes]


def _encode_four(letters: str) -> int:
    return int.from_bytes(letters.encode(), "little")


_WANTED_CATEGORIES = [_encode_four(word) for word in ("kern", "Kern", "user", "Oper", "Runt")]
_WANTED_NAMES = [
    (
        (_encode_four(category[:4]), _encode_four(category[4:8])),
        len(category) + distance,
        [_encode_four(name) for name in names],
    )
    for category, distance, names in (
        ('cpu_op",', -2, ("reco", "nccl", "c10d", "symm", "auto")),
        ("cuda_runtime", 4, ("Laun", "Grap")),
        ("cuda_runtime", 0, ("hipL", "hipG", "hipE", "hipM", "hipH")),
        ("cuda_driver", 0, ("cuLa", "cuGr")),
    )
]
"""Names of interest by category. An entry has three parts: the first eight letters of a category, a distance, and a
list of four-letter words. The distance plus ``name_gap`` leads from the start of the category to the checked part of
the name. This part must be one of the words.
"""


def learn_layout(region: bytes) -> Layout | None:
    """Return the layout of the first event in ``region``, or None if it contains no event. Raises LayoutMismatch."""
    match = _FIRST_EVENT.search(region)
    if match is None:
        if b'"X"' in region:
            raise LayoutMismatch
        return None
    start, _, name_prefix, _, *rest = match.groups()
    if not name_prefix.startswith(b'",') or len(start) + len(name_prefix) > _PADDING // 2:
        raise LayoutMismatch
    pid, tid, ts, dur, args = map(re.escape, rest[::2])
    header = (
        _CATEGORY + re.escape(name_prefix) + _NAME + pid + _WORD + tid + _WORD + ts + _NUMBER + dur + _NUMBER + args
    )
    return Layout(start, len(name_prefix), re.compile(header))


def find_candidates(region: bytes, layout: Layout) -> list[tuple[int, int]]:
    """Return the positions of the events in ``region`` that may be of interest.

    Each position is a pair: the offset of the event's category, and the end of the event, which is the start of the
    next event. Events are selected by four letters of their category and of their name. Raises LayoutMismatch if an
    ``"X"`` is not at the start of an event in this layout.
    """
    data = np.frombuffer(region + bytes(_PADDING), dtype=np.uint8)
    marks = np.flatnonzero(data[1:-1] == ord("X"))
    marks = marks[(data[marks] == ord('"')) & (data[marks + 2] == ord('"'))]
    event_starts = marks - layout.start.index(b'"X"')
    if not event_starts.size:
        return []
    prefix = np.frombuffer(layout.start, dtype=np.uint8)
    if event_starts[0] < 0 or (data[event_starts[:, None] + np.arange(prefix.size)] != prefix).any():
        raise LayoutMismatch
    categories = event_starts + prefix.size
    category_words = _read_four(data, categories)
    is_wanted = _match_any(category_words, _WANTED_CATEGORIES)
    for category, distance, names in _WANTED_NAMES:
        matches = np.flatnonzero(category_words == category[0])
        matches = matches[_read_four(data, categories[matches] + 4) == category[1]]
        if matches.size:
            is_wanted[matches] |= _match_any(_read_four(data, categories[matches] + distance + layout.name_gap), names)
    wanted_events = np.flatnonzero(is_wanted)
    ends = np.append(event_starts, len(region))[wanted_events + 1]
    return list(zip(categories[wanted_events].tolist(), ends.tolist(), strict=True))


def _read_four(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the four bytes at each of ``offsets`` as one number."""
    return np.ascontiguousarray(data[offsets[:, None] + np.arange(4)]).view("<u4").ravel()


def _match_any(words: NDArray[np.uint32], candidates: list[int]) -> NDArray[np.bool_]:
    """Return a mask that is True for each word in ``candidates``. With few candidates this is faster than
    ``np.isin``.
    """
    mask: NDArray[np.bool_] = words == candidates[0]
    for word in candidates[1:]:
        mask |= words == word
    return mask
