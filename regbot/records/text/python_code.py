"""Text form of Python code, for comparisons. Changes of comments, layout and docstrings do not change this text."""

import ast

_NODES_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def dump_code(source: bytes | str) -> str:
    """Return the syntax tree of a Python file as text, without comments, layout and docstrings, the same in every
    version of Python. Raises SyntaxError, ValueError, RecursionError or MemoryError."""
    return _dump(ast.parse(source))


def _dump(node: object) -> str:
    """Fields that are None or [] are left out, because newer versions of Python add fields, which are empty for old
    code."""
    if isinstance(node, list):
        return f"[{', '.join(map(_dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    if isinstance(node, _NODES_WITH_DOCSTRING) and ast.get_docstring(node):
        fields["body"] = node.body[1:]  # the docstring is the first statement
    texts = [f"{name}={_dump(value)}" for name, value in fields.items() if value is not None and value != []]
    return f"{type(node).__name__}({', '.join(texts)})"
