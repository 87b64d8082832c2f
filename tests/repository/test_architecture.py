"""``docs/architecture.md`` tells of the code as it is."""

import ast
import re
from pathlib import Path

import pytest
import tomllib

from regbot.engines.guest import guest_folder

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


def test_every_file_that_the_page_names_exists() -> None:
    for name in re.findall(r"[\w/.]+\.(?:py|cpp)\b", PAGE):
        places = (ROOT / name, ROOT / "regbot" / name, ROOT / "regbot" / "guest" / "regbot_guest" / name)
        assert name.startswith("tests/judge/") or any(place.exists() for place in places), name


GUEST_PROCESS = "regbot/guest/regbot_guest/process.py"
LAUNCHED = {GUEST_PROCESS: "regbot/workloads/guest.py"}
"""Steps that an earlier step starts as a process, and that step. No module imports them."""


def test_the_way_of_a_check_is_short_and_each_step_leads_to_the_next() -> None:
    """An earlier step imports each step, by name, or launches it. No step is reached through another file."""
    way = re.findall(r"^\d+\. `(regbot/[\w/]+\.py)`", PAGE, re.MULTILINE)
    assert 10 < len(way) <= 15
    for number, step in enumerate(way[1:], 1):
        earlier = way[:number]
        is_launched = LAUNCHED.get(step) in earlier
        assert is_launched or any(step in imported_files(ROOT / path) for path in earlier), step


def test_the_step_that_launches_the_guest_starts_the_folder_whose_main_file_imports_the_guest_process() -> None:
    tree = ast.parse((ROOT / LAUNCHED[GUEST_PROCESS]).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    commands = [
        ast.unparse(keyword.value)
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "Launch"
        for keyword in call.keywords
        if keyword.arg == "command"
    ]
    assert commands
    assert all("str(guest_folder())" in command for command in commands)
    assert GUEST_PROCESS in imported_files(guest_folder() / "__main__.py")


@pytest.mark.parametrize(
    ("path", "imported", "expected"),
    [
        ("regbot/check/plan.py", "regbot/workloads/checkout/arms.py", True),  # a name that the package exports
        ("regbot/check/flow.py", "regbot/workloads/checkout/git.py", False),  # in the same package, and not imported
        ("regbot/judge/judge.py", "regbot/judge/sharding.py", True),
        ("regbot/judge/judge.py", "regbot/ledgers/patterns.py", False),  # two imports away
    ],
)
def test_a_file_imports_where_a_name_is_defined_and_nothing_beside_it(path: str, imported: str, expected: bool) -> None:
    assert (ROOT / imported).exists()
    assert (imported in imported_files(ROOT / path)) == expected


def imported_files(path: Path) -> set[str]:
    """Return the files that define the names imported by ``path``, relative to the repository."""
    return {
        str(file.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if (file := defining_file(node.module, alias.name))
    }


def defining_file(module: str, name: str) -> Path | None:
    """Return the file that ``from module import name`` leads to, through the exports of a package."""
    folder = (ROOT / "regbot" / "guest" if module.startswith("regbot_guest") else ROOT) / Path(*module.split("."))
    if (folder / f"{name}.py").exists():
        return folder / f"{name}.py"
    if folder.with_suffix(".py").exists():
        return folder.with_suffix(".py")
    if not (folder / "__init__.py").exists():
        return None
    for node in ast.parse((folder / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module and name in {alias.name for alias in node.names}:
            return defining_file(node.module, name)
    return folder / "__init__.py"
