"""Locates the events of interest in the bytes of a Kineto trace, without decoding them.

Kineto writes the keys of every complete event in the same order: ``{"ph": "X", "cat": ..., "name": ..., "pid", "tid",
"ts", "dur", "args"``. The whitespace between keys is the same throughout a file, so it is learned from the first event.
After that, the ``"X"`` marks the position of each event. Four letters of the event's category and four letters of its
name decide whether it is of interest. All events of a chunk are checked at once. An ``"X"`` at any other position means
that the file has a different layout. Then LayoutMismatch is raised."""

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
    start: bytes
    """The bytes of an event before its category."""
    name_gap: int
    """Number of bytes between the category and the name."""
    header: re.Pattern[bytes]
    """Pattern that matches from the category to the key ``args``."""


def _encode_four(letters: str) -> int:
    """Return four letters as one number, in the byte order of ``_read_four``."""
    return int.from_bytes(letters.encode(), "little")


_WANTED_CATEGORIES = [_encode_four(word) for word in ("kern", "Kern", "user", "Oper", "Runt")]
"""First four letters of the categories whose events are all of interest."""


_WANTED_NAMES = (
    ("cpu_op", 0, ("reco", "nccl", "c10d", "symm", "auto")),
    ("cuda_runtime", 4, ("Laun", "Grap")),  # cudaLaunchKernel, cudaGraphLaunch
    ("cuda_runtime", 0, ("hipL", "hipG", "hipE", "hipM", "hipH")),
    ("cuda_driver", 0, ("cuLa", "cuGr")),
)
"""Names of interest in the other categories: the category, the letters of the name to skip, and the next four."""


def learn_layout(region: bytes) -> Layout | None:
    """Return the layout of the first event in ``region``, or None if it contains no event. Raises LayoutMismatch."""
    match = _FIRST_EVENT.search(region)
    if match is None:
        if b'"X"' in region:
            raise LayoutMismatch
        return None
    start, _category, name_prefix, _name, *rest = match.groups()
    # ``_WANTED_NAMES`` expect a quote and a comma after the category, and reads must not pass the padding.
    if not name_prefix.startswith(b'",') or len(start) + len(name_prefix) > _PADDING // 2:
        raise LayoutMismatch
    pid_prefix, tid_prefix, ts_prefix, dur_prefix, args_prefix = map(re.escape, rest[::2])  # without the values between
    ids = _CATEGORY + re.escape(name_prefix) + _NAME + pid_prefix + _WORD + tid_prefix + _WORD
    times = ts_prefix + _NUMBER + dur_prefix + _NUMBER + args_prefix
    return Layout(start, len(name_prefix), re.compile(ids + times))


def find_candidates(region: bytes, layout: Layout) -> list[tuple[int, int]]:
    """Return the positions of the events in ``region`` that may be of interest. Each position is a pair: the offset of
    the event's category, and the end of the event, which is the start of the next event. Events are selected by four
    letters of their category and of their name. Raises LayoutMismatch if an ``"X"`` is not at the start of an event in
    this layout."""
    data = np.frombuffer(region + bytes(_PADDING), dtype=np.uint8)
    quotes = np.flatnonzero(data[1:-1] == ord("X"))  # positions before each X, where the quote of "X" must be
    quotes = quotes[(data[quotes] == ord('"')) & (data[quotes + 2] == ord('"'))]
    event_starts = quotes - layout.start.index(b'"X"')
    if not event_starts.size:
        return []
    prefix = np.frombuffer(layout.start, dtype=np.uint8)
    # The prefixes of two events do not overlap. So the comparison below needs memory only in proportion to the region.
    if event_starts[0] < 0 or (np.diff(event_starts) < prefix.size).any():
        raise LayoutMismatch
    if (data[event_starts[:, None] + np.arange(prefix.size)] != prefix).any():
        raise LayoutMismatch
    category_starts = event_starts + prefix.size
    first_words = _read_four(data, category_starts)
    is_wanted = _match_any(first_words, _WANTED_CATEGORIES)
    # In the other categories, eight letters of the category and four letters of the name select an event.
    for category, skipped_letters, name_words in _WANTED_NAMES:
        start = (category + '",')[:8]  # the category 'cpu_op' has only six letters; a quote and a comma follow it
        matches = np.flatnonzero(first_words == _encode_four(start[:4]))
        matches = matches[_read_four(data, category_starts[matches] + 4) == _encode_four(start[4:])]
        if matches.size:
            distance = len(category) + layout.name_gap + skipped_letters
            checked_words = _read_four(data, category_starts[matches] + distance)
            is_wanted[matches] |= _match_any(checked_words, list(map(_encode_four, name_words)))
    wanted_events = np.flatnonzero(is_wanted)
    event_ends = np.append(event_starts[1:], len(region))
    return list(zip(category_starts[wanted_events].tolist(), event_ends[wanted_events].tolist(), strict=True))


def _read_four(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint32]:
    return np.ascontiguousarray(data[offsets[:, None] + np.arange(4)]).view("<u4").ravel()


def _match_any(words: NDArray[np.uint32], candidates: list[int]) -> NDArray[np.bool_]:
    """Return a mask that is True for each word in ``candidates``. With few candidates this is faster than
    ``np.isin``.
    """
    mask: NDArray[np.bool_] = words == candidates[0]
    for word in candidates[1:]:
        mask |= words == word
    return mask
