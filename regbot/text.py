"""Text that somebody else wrote, made harmless for a terminal or a log."""

import re
import unicodedata

ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""Terminal escape sequences: ECMA-48 control sequences, operating system commands, two-byte escapes."""


def printable(text: str) -> str:
    """``text`` as one line that can do nothing to a terminal: no escapes, control or direction-changing characters."""
    spaced = ESCAPE.sub("", text).replace("\t", " ").replace("\n", " ")
    return "".join(c for c in spaced if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
