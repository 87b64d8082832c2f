"""``docs/architecture.md`` tells of the code as it is."""

import ast
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


def test_every_file_has_a_row() -> None:
    listed: set[str] = set()
    for section in PAGE[PAGE.index("## Files") :].split("\n### ")[1:]:
        folder = section.split("\n", 1)[0]
        listed |= {f"{folder}/{name}" for name in re.findall(r"^\| `([^`]+\.(?:py|cpp|h))` \|", section, re.MULTILINE)}
    code = ROOT / "regbot"
    files = {path for suffix in ("py", "cpp", "h") for path in code.glob(f"*/**/*.{suffix}")}
    there = {str(path.relative_to(code)) for path in files if path.name != "__init__.py"}
    assert listed == {name for name in there if not name.startswith("demo/sources/")}


def test_every_file_that_the_page_names_exists() -> None:
    for name in re.findall(r"[\w/.]+\.(?:py|cpp)\b", PAGE[: PAGE.index("## Files")]):
        places = (ROOT / name, ROOT / "regbot" / name, ROOT / "regbot" / "guest" / "regbot_guest" / name)
        assert name.startswith("tests/judge/") or any(place.exists() for place in places), name


def test_the_way_of_a_check_is_short_and_each_step_leads_to_the_next() -> None:
    """A step is imported by one before it, but for the process that is started and the file that is read back."""
    way = re.findall(r"^\d+\. `(regbot/[\w/]+\.py)`", PAGE, re.MULTILINE)
    assert 10 < len(way) <= 15
    reached = {way[0]}
    for path in way[1:]:
        module = path.removesuffix(".py").replace("/", ".")
        started = "guest/regbot_guest" in path
        assert started or any(module in imports(ROOT / before) for before in modules_near(reached)), path
        reached.add(path)


def modules_near(paths: set[str]) -> set[str]:
    """The files of the packages that the way has reached: a package's parts call each other."""
    folders = {str(Path(path).parent) for path in paths}
    return {str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).glob("*.py")}


def imports(path: Path) -> set[str]:
    """Modules that a file imports, those through a package's own exports as well."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
            package = ROOT / Path(*node.module.split(".")) / "__init__.py"
            if package.exists() and package != path:
                found |= imports(package)
    return found
