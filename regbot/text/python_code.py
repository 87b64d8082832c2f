"""Python code as text that stays the same while its behaviour does."""

import ast


def dump_code(source: bytes | str) -> str:
    """Return the syntax tree of a Python file as text, without comments, layout and docstrings.

    It is the same in every version of Python that can parse the file. Raises SyntaxError, ValueError, RecursionError,
    MemoryError for a file that cannot be parsed.
    """
    return _dump(ast.parse(source))


def _dump(node: object) -> str:
    """Return ``node`` as text. Empty fields are left out, because newer versions of Python add fields."""
    if isinstance(node, list):
        return f"[{', '.join(map(_dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node):
        fields["body"] = node.body[1:]
    texts = [f"{name}={_dump(value)}" for name, value in fields.items() if value is not None and value != []]
    return f"{type(node).__name__}({', '.join(texts)})"
