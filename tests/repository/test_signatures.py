"""What travels together is a type: no function takes a long row of positional arguments."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "regbot"
MOST_POSITIONAL = 6
LIBRARIES = "guest/regbot_guest/paper/libraries"
DICTATED = {
    f"{LIBRARIES}/deep_ep.py: Buffer.dispatch": "DeepEP 1, deep_ep.Buffer.dispatch",
    f"{LIBRARIES}/deep_ep.py: ElasticBuffer.dispatch": "DeepEP 2, deep_ep.ElasticBuffer.dispatch",
    f"{LIBRARIES}/transformer_engine.py: _product": "Transformer Engine, transformer_engine_torch.generic_gemm",
    f"{LIBRARIES}/transformer_engine.py: _grouped_product": "Transformer Engine, te_general_grouped_gemm",
}
"""Functions that another library's code calls with positional arguments, and the function that they stand in for."""


def sources() -> Iterator[Path]:
    """Modules of the package and of the guest, without the demo's repository."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if not path.is_relative_to(PACKAGE / "demo" / "sources"):
            yield path


def functions(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield all functions with their names. A method's name begins with that of its class."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield owner + node.name, node
        yield from functions(node, f"{node.name}." if isinstance(node, ast.ClassDef) else owner)


def positional(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def test_no_function_takes_more_than_six_positional_parameters() -> None:
    """But for signatures that another library dictates. An entry of ``DICTATED`` that is no longer needed fails too."""
    long = {
        f"{path.relative_to(PACKAGE)}: {name}": len(positional(function))
        for path in sources()
        for name, function in functions(ast.parse(path.read_text(encoding="utf-8")))
        if len(positional(function)) > MOST_POSITIONAL
    }
    assert {name: parameters for name, parameters in long.items() if name not in DICTATED} == {}
    assert set(long) == set(DICTATED)
