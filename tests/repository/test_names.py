"""Names say what they hold: no pronouns and participles, and no class name for two things."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "regbot"
WORDS = {"found", "told", "asked", "said", "each", "held", "shown", "heard"}
"""Words that say nothing in a name. ``not_found`` is standard."""
WHOLE = {"one", "of", "there"}
"""Words that are no name by themselves."""
TWINS = {"Geometry": "the guest has it too, because it imports nothing of regbot"}
SOURCES = PACKAGE / "demo" / "sources"


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of everything that is named in ``tree``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.lineno, node.name


def says_nothing(name: str) -> bool:
    words = [word.lower() for word in re.split(r"_+|(?<=[a-z0-9])(?=[A-Z])", name.replace("not_found", "")) if word]
    return bool(WORDS & set(words)) or name.strip("_").lower() in WHOLE


@pytest.mark.parametrize(
    ("name", "expected"),
    [("found", True), ("asked_for", True), ("WasFound", True), ("MAX_SHOWN", True), ("_of", True), ("not_found", False),
     ("one_run", False), ("foundation", False), ("withheld", False)],
)  # fmt: skip
def test_a_name_that_says_nothing_is_recognised(name: str, expected: bool) -> None:
    assert says_nothing(name) == expected


def test_every_name_says_something() -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    assert len(paths) > 300
    bad = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path in paths
        for line, name in [(0, path.stem), *names(ast.parse(path.read_text(encoding="utf-8")))]
        if says_nothing(name)
    ]
    assert bad == []


def test_every_name_of_the_cpp_sources_says_something() -> None:
    """Names of other libraries (``std::for_each``) and of torch's operators (``_foreach_add_``) are theirs."""
    paths = sorted((PACKAGE / "guest").rglob("*.cpp")) + sorted((PACKAGE / "guest").rglob("*.h"))
    assert len(paths) > 10
    no_code = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"|std::\w+')
    bad = {
        f"{path.name}: {name}"
        for path in paths
        for name in re.findall(r"\b[A-Za-z_]\w*", no_code.sub(" ", path.read_text(encoding="utf-8")))
        if says_nothing(name)
    }
    assert bad == set()


def test_a_class_name_is_used_once() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.is_relative_to(SOURCES):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name not in TWINS:
                places[node.name].append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
