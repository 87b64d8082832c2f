"""Tests use what modules offer: they import and call no private name of regbot."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
EXEMPT = {
    "Store._index_row": "the test counts how often the store reads a file",
    "Store._session_names": "the test counts how often the store reads a folder",
    "availability._KERNEL_SWITCHES": "the test puts files in place of the kernel's switches",
    "next_run._information_gain": "the frozen sample of mutants names it",
}


def private_names(tree: ast.AST) -> Iterator[str]:
    """Yield the private names of regbot that ``tree`` imports, or reads from something that it imports."""
    imports = [
        (node.module, alias)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("regbot", "regbot_guest")
        for alias in node.names
    ]
    yield from (f"{module}.{alias.name}" for module, alias in imports if is_private(alias.name))
    names = {alias.asname or alias.name for _, alias in imports}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        if node.value.id in names and is_private(node.attr):
            yield f"{node.value.id}.{node.attr}"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_no_test_uses_a_private_name() -> None:
    used = {
        (str(path.relative_to(TESTS)), name)
        for path in sorted(TESTS.rglob("*.py"))
        for name in private_names(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert {(path, name) for path, name in used if name not in EXEMPT} == set()
    assert {name for _, name in used} >= set(EXEMPT), "an exemption that is no longer needed goes"


def test_private_names_are_recognised() -> None:
    source = "from regbot.judge import _a, judge, b as c\nfrom os import _exit\njudge._b()\nc.__doc__\nother._d"
    assert list(private_names(ast.parse(source))) == ["regbot.judge._a", "judge._b"]
