"""Text for a terminal or a log: what somebody else wrote, made harmless, and paths as a user would type them."""

import re
import unicodedata
from pathlib import Path

ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""Terminal escape sequences: ECMA-48 control sequences, operating system commands, two-byte escapes."""


def printable(text: str) -> str:
    """``text`` as one line that can do nothing to a terminal: no escapes, control or direction-changing characters."""
    spaced = ESCAPE.sub("", text).replace("\t", " ").replace("\n", " ")
    return "".join(c for c in spaced if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def typed_path(path: Path) -> Path:
    """``path`` relative to the working directory where it lies inside it, else as it is."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
