"""``docs/architecture.md`` tells of the code as it is."""

import re
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = {path.parent.name for path in (ROOT / "regbot").glob("*/__init__.py")} | {"guest"}


def test_every_package_has_one_line_and_nothing_lies_beside_them() -> None:
    table = PAGE[PAGE.index("## Packages") : PAGE.index("## The way of a check")]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(PACKAGES)
    loose = {path.name for path in (ROOT / "regbot").glob("*.py")}
    assert loose <= {"__init__.py", "__main__.py", "errors.py"}


def test_the_packages_stand_in_the_order_of_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert len(layers) == 6
    layer = {name: number for number, names in enumerate(layers) for name in re.findall(r"regbot\.(\w+)", names)}
    listed = re.findall(r"^\| `(\w+)` \|", PAGE[PAGE.index("## Packages") : PAGE.index("## The way")], re.MULTILINE)
    assert set(layer) == (PACKAGES - {"guest"}) | {"errors"}
    numbers = [layer[name] for name in listed if name != "guest"]
    assert numbers == sorted(numbers)
