"""Make text ready for a terminal or a log: remove control characters from untrusted text, and shorten paths."""

import re
import unicodedata
from pathlib import Path
from typing import Any

ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""Terminal escape sequences: ECMA-48 control sequences, operating system commands, two-byte escapes."""

UNPRINTABLE_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Control (Cc), format with changes of the writing direction (Cf), surrogate, private, unassigned, separators."""


def printable(text: str) -> str:
    """Return ``text`` on one line, without escape sequences, control characters and changes of direction."""
    if text.isprintable():
        return text
    one_line = ESCAPE.sub("", text).replace("\t", " ").replace("\n", " ")
    removed = [ord(char) for char in set(one_line) if unicodedata.category(char) in UNPRINTABLE_CATEGORIES]
    return one_line.translate(dict.fromkeys(removed))


def make_printable(value: Any) -> Any:
    """Return a JSON value in which no text has control characters, which could affect a terminal or a CI log."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): make_printable(item) for key, item in value.items()}
    return [make_printable(item) for item in value] if isinstance(value, list) else value


def typed_path(path: Path) -> Path:
    """Return ``path`` as a user would type it: relative to the working directory if it is inside."""
    working_directory = Path.cwd()
    return path.relative_to(working_directory) if path.is_relative_to(working_directory) else path
