"""Which lines of the checkout's functions ran. Python 3.12 and newer can report each line once, so that repeated calls
cost nothing. Older versions report no lines.
"""

import inspect
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import CodeType
from typing import Any

from regbot_guest.origin import path_in_checkout

TOOL = 4
"""An id of ``sys.monitoring`` that Python reserves for no kind of tool."""
_ran: set[tuple[str, int]] = set()


def record_lines(root: Path) -> None:
    """Record the lines that run in functions of the checkout ``root``, in every thread."""
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is None or monitoring.get_tool(TOOL) is not None:
        return
    prefix = str(root.resolve())

    def record(code: CodeType, line: int) -> Any:
        if code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(prefix):
            _ran.add((code.co_filename, line))
        return monitoring.DISABLE

    monitoring.use_tool_id(TOOL, "regbot")
    monitoring.register_callback(TOOL, monitoring.events.LINE, record)
    monitoring.set_events(TOOL, monitoring.events.LINE)


def describe_lines(root: Path) -> dict[str, dict[str, list[list[int]]]]:
    """Return by loaded file of the checkout which lines of its functions ran and which are idle, as first and last."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())} if _ran else set()
    names = [file for file in files if isinstance(file, str) and file.endswith(".py") and Path(file).is_file()]
    return {own: _sort_lines(file) for file in names if (own := path_in_checkout(Path(file), root)) is not None}


def _sort_lines(file: str) -> dict[str, list[list[int]]]:
    sorted_lines: dict[str, list[list[int]]] = {"ran": [], "idle": []}
    for function in _list_functions(compile(Path(file).read_bytes(), file, "exec")):
        numbers = sorted({line for _, _, line in function.co_lines() if line})
        for has_run, group in groupby(numbers, lambda line: (file, line) in _ran):
            lines = list(group)
            sorted_lines["ran" if has_run else "idle"].append([lines[0], lines[-1]])
    return sorted_lines


def _list_functions(code: CodeType) -> Iterator[CodeType]:
    if code.co_flags & inspect.CO_OPTIMIZED:
        yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _list_functions(constant)
