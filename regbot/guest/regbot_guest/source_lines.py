"""Source lines in the checkout under test: where a collective, a wait of the host or a large storage comes from.

A line is that of the innermost frame in the checkout. In backward, torch often runs only its own code for a forward of
the checkout. The line is then that of the forward: every autograd node has a number, under which the call that created
it is noted.

Lines are asked for only where something is counted, because a walk up the frames takes microseconds.
"""

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from regbot_guest.origin import path_in_checkout

MAX_PATH_CHARACTERS = 400
MAX_FRAMES = 20_000
MAX_DEPTH = 10
"""Largest number of callers that are kept of one call."""
MAX_CALLERS = 32
"""Largest number of callers that are kept of one line, of all its calls together."""

_GUEST = Path(__file__).resolve().parent
_OWN_MODEL = ("deepep", "dispatch", "exchange", "harness", "hybridep", "model", "moe", "rows")
"""Files of regbot's own model. They count as the checkout where the model has no layer of another one."""
_BACKWARD = "_engine_run_backward"
"""Name of torch's function that runs the nodes of a backward."""

Calls = tuple[str, ...]
"""Lines in the checkout, such as 'train/moe.py:41': the innermost first, and then those that called it."""


class _Watch:
    def __init__(self, root: Path | None, has_own_model: bool) -> None:
        self.root, self.has_own_model = root, has_own_model
        self.paths: dict[str, str] = {}
        """The path in the checkout, by the file name of a code object. '' for all other files."""
        self.frames: dict[str, dict[str, Any]] = {}
        """Function, extent and callers by line. The value of a caller is its smallest distance from the line."""
        self.known_calls: set[Calls] = set()
        self.nodes: dict[tuple[int, int], Calls] = {}
        """The calls that created the autograd nodes, by thread and number of the node."""
        self.nodes_of_collectives: dict[tuple[int, int], Calls] = {}
        """The same, for nodes whose forward issued a collective."""
        self.training_thread = threading.get_ident()

    def find_path(self, file_name: str) -> str:
        path = self.paths.get(file_name)
        if path is None:
            path = self.paths[file_name] = self._look_up(file_name)
        return path

    def _look_up(self, file_name: str) -> str:
        file = Path(file_name).resolve()
        if self.root is None or not file.is_file():  # generated code has names such as <string>
            return ""
        if file.is_relative_to(_GUEST):
            is_own_model = self.has_own_model and file.parent == _GUEST and file.stem in _OWN_MODEL
            return f"regbot/guest/regbot_guest/{file.name}" if is_own_model else ""
        path = path_in_checkout(file, self.root) or ""
        return path if path.isprintable() and ":" not in path and len(path) <= MAX_PATH_CHARACTERS else ""

    def keep(self, calls: Calls, code: Mapping[str, tuple[CodeType, int]]) -> None:
        """Describe the lines of ``calls`` in ``frames``. ``code`` has the code and the instruction of new ones."""
        if calls in self.known_calls or len(self.frames) >= MAX_FRAMES:
            return
        self.known_calls.add(calls)
        for line in code.keys() - self.frames.keys():
            self.frames[line] = _describe(*code[line])
        if (frame := self.frames.get(calls[0])) is not None:
            callers: dict[str, int] = frame["callers"]
            for depth, caller in enumerate(calls[1:]):
                callers[caller] = min(depth, callers.get(caller, depth))


_watch = _Watch(None, False)


def watch(root: str, has_own_model: bool = False) -> None:
    """Begin to find lines in the checkout ``root``, and forget those that were found before. '' ends the watch."""
    global _watch
    _watch = _Watch(Path(root).resolve() if root else None, has_own_model)


def current_line() -> str:
    """Return the line of the running call as 'path:number'. '' if no frame of the checkout is known."""
    calls = _find_calls(sys._getframe(1))
    return calls[0] if calls else ""


def note_collective() -> str:
    """Return the line of a collective. If a forward issues it, the line is noted for the backward that undoes it."""
    import torch

    calls = _find_calls(sys._getframe(1))
    key = threading.get_ident(), torch._C._autograd._get_sequence_nr() - 1  # the newest node
    noted = _watch.nodes.get(key)
    if calls and (not noted or noted[0] in calls):  # else the node's forward has ended
        _watch.nodes_of_collectives.setdefault(key, calls)
    return calls[0] if calls else ""


def begin_step() -> None:
    """Forget the autograd nodes of the previous step. Call this from the training thread."""
    _watch.nodes.clear()
    _watch.nodes_of_collectives.clear()
    _watch.training_thread = threading.get_ident()


def frames() -> dict[str, dict[str, Any]]:
    """Return the function, the extent and the callers of every line that was asked for, the nearest callers first."""
    return {
        line: {**frame, "callers": sorted(frame["callers"], key=frame["callers"].__getitem__)[:MAX_CALLERS]}
        for line, frame in _watch.frames.items()
    }


@contextmanager
def noted_functions() -> Iterator[None]:
    """Note every call of a ``torch.autograd.Function``, because its backward may run only code of torch."""
    import torch

    function: Any = torch.autograd.Function
    original = function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        # The function's node is created next.
        _watch.nodes[threading.get_ident(), torch._C._autograd._get_sequence_nr()] = _find_calls(sys._getframe(1))
        return original.__get__(None, cls)(*args, **kwargs)  # a method of C since torch 2.14

    function.apply = classmethod(apply)
    try:
        yield
    finally:
        function.apply = original


def _find_calls(frame: FrameType | None) -> Calls:
    """Return the calls of a frame: its own up to the running backward, and then those of the forward that it undoes."""
    lines: list[str] = []
    code: dict[str, tuple[CodeType, int]] = {}
    is_own_backward = False
    while frame is not None and len(lines) <= MAX_DEPTH and not is_own_backward:
        path = _watch.find_path(frame.f_code.co_filename)
        if path:
            line = f"{path}:{frame.f_lineno}"
            lines.append(line)
            code[line] = frame.f_code, frame.f_lasti
        is_own_backward = frame.f_code.co_name == _BACKWARD
        frame = frame.f_back
    calls = (*lines, *_find_forward_calls(is_own_backward))[: MAX_DEPTH + 1]
    if calls:
        _watch.keep(calls, code)
    return calls


def _find_forward_calls(is_own_backward: bool) -> Calls:
    """Return the calls that created the running autograd node. If this thread called backward itself, it also created
    the node. On a GPU, backward runs in a thread of its own.
    """
    torch = sys.modules.get("torch")
    node = torch._C._current_autograd_node() if torch is not None else None
    if node is None:
        return ()
    key = threading.get_ident() if is_own_backward else _watch.training_thread, node._sequence_nr()
    return _watch.nodes_of_collectives.get(key) or _watch.nodes.get(key, ())


def _describe(code: CodeType, instruction: int) -> dict[str, Any]:
    last_line = None
    if sys.version_info >= (3, 11):
        last_line = [*code.co_positions()][instruction // 2][1]
    lines = [line for _, _, line in code.co_lines() if line]
    return {
        "function": getattr(code, "co_qualname", code.co_name)[:MAX_PATH_CHARACTERS],
        "last_line": last_line or 0,
        "function_lines": [code.co_firstlineno, max(lines, default=code.co_firstlineno)],
        "callers": {},
    }
