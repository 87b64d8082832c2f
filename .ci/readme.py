"""Print the command that the README marks with ``<!-- command: NAME -->`` above its code block."""

import re
import sys
from pathlib import Path


def command(name: str, text: str) -> str:
    """Return the text of the shell block below the mark ``name``. Raises SystemExit if there is none."""
    match = re.search(rf"<!-- command: {re.escape(name)} -->\s*```(?:sh|bash|console)\n(.*?)```", text, re.DOTALL)
    if match is None:
        raise SystemExit(f"README.md has no code block marked '<!-- command: {name} -->'")
    return match.group(1).strip()


if __name__ == "__main__":
    readme = Path(__file__).resolve().parents[1] / "README.md"
    print(command(sys.argv[1], readme.read_text(encoding="utf-8")))
