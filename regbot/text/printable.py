"""Make text ready for a terminal or a log: remove control characters from untrusted text, and shorten paths."""

import re
import unicodedata
from pathlib import Path

ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""Terminal escape sequences: ECMA-48 control sequences, operating system commands, two-byte escapes."""


def printable(text: str) -> str:
    """Return ``text`` on one line, safe for a terminal: without escape sequences, control characters and direction
    changes."""
    spaced = ESCAPE.sub("", text).replace("\t", " ").replace("\n", " ")
    return "".join(c for c in spaced if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def typed_path(path: Path) -> Path:
    """Return ``path`` as a user would type it: relative to the working directory if inside it, else unchanged."""
    working_directory = Path.cwd()
    return path.relative_to(working_directory) if path.is_relative_to(working_directory) else path
