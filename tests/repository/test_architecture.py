"""``docs/architecture.md`` tells of the code as it is."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = {path.parent.name for path in (ROOT / "regbot").glob("*/__init__.py")} | {"guest"}


def test_every_package_has_one_line_and_nothing_lies_beside_them() -> None:
    table = PAGE[PAGE.index("## Packages") : PAGE.index("## The way of a check")]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(PACKAGES)
    loose = {path.name for path in (ROOT / "regbot").glob("*.py")}
    assert loose <= {"__init__.py", "__main__.py", "errors.py"}
