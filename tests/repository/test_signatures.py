"""What travels together is a type: no function takes a long row of positional arguments."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "regbot"
MOST_POSITIONAL = 6


def sources() -> Iterator[Path]:
    """Modules of the package, without guest code and the demo's repository."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if not {"guest", "sources"} & set(path.relative_to(PACKAGE).parts):
            yield path


def positional(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def test_no_function_takes_more_than_six_positional_parameters() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}: {len(positional(node))}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and len(positional(node)) > MOST_POSITIONAL
    ]
    assert found == []
