"""Wrap text to the width of the terminal."""

import shutil
import sys
import textwrap

from regbot.records.text.printable import printable

PIPED_COLUMNS = 110
"""Width of a line if standard output is not a terminal."""


def wrapped(text: str, first: str = "  ", rest: str | None = None, piped: int = PIPED_COLUMNS) -> str:
    """Return ``text`` wrapped to the width of the terminal, or to ``piped``, and safe for it. ``first`` is put before
    the first line, and ``rest`` (by default the same) before the others. Words are not broken, so that paths can be
    copied."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else piped
    return textwrap.fill(
        printable(text),
        width,
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
