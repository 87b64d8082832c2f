"""Collects the frames of a crash. The trusted side decides whose fault it is (``regbot/judge/crashes.py``)."""

import gc
import linecache
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any

from regbot_guest.origin import path_in_checkout

MAX_FRAMES = 100
MAX_CHARACTERS = 300
"""Number of characters that are kept of a file's path (the last ones) and of a function's name."""
MAX_KEYS = 20
REPORT_EVERY_S = 5.0

GUEST = Path(__file__).resolve().parent

Frame = dict[str, Any]
"""``owner`` of ``file`` is checkout (the code under test), regbot, torch, or installed (all other code)."""

regbot_keys: list[str] = []
"""Keys of the framework's configuration that regbot sets in this request, from the framework's module. A crash that
names one does not show whose fault it is.
"""

_WRONG_CALL = re.compile(r"([\w.<>]+)\(\) (?:got|takes|missing)\b")
"""Python's message for arguments that do not fit a function's signature. It begins with the function's name."""
_TORCH_MODULE = "nn/modules/module.py"


def call_unchanged(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call ``function``. Observing code of regbot calls other code through this function, so that ``list_frames``
    leaves its own frames out: they cannot have caused a crash.
    """
    return function(*args, **kwargs)


def describe_crash(error: BaseException, root: Path, regbot_keys: Iterable[str]) -> dict[str, Any]:
    """Return the frames of the error and of those that it was raised from, the original error's last, and the keys of
    ``regbot_keys`` (set by regbot, not by the user) that messages or failing lines name.
    """
    errors = list(_iterate_errors(error))
    frames: list[Frame] = []
    for linked_error in errors:
        frames += _select_relevant_frames(list_frames(linked_error, root))
    messages = [str(linked_error) for linked_error in errors]
    failing_lines = [_failing_source(linked_error, root) for linked_error in errors]
    text = " ".join(messages + failing_lines)
    return {
        "frames": frames[-MAX_FRAMES:],
        "keys": [key for key in regbot_keys if _is_named(key, text)][:MAX_KEYS],
    }


def list_frames(error: BaseException, root: Path) -> list[Frame]:
    """Return the frames of one error, the innermost last, without those of code that only observes a call. A frame is
    added where the error is about code that the traceback lacks, such as a file with a syntax error.
    """
    frames: list[Frame] = []
    for summary in traceback.extract_tb(error.__traceback__):
        frame = _make_frame(summary.filename, summary.lineno, summary.name, root)
        is_observed_call = frame["owner"] == "regbot" and summary.name == call_unchanged.__name__
        if is_observed_call:
            # The preceding frames of regbot belong to the code that observes the call.
            while frames and frames[-1]["owner"] == "regbot":
                frames.pop()
        else:
            frames.append(frame)
    if frames and frames[-1]["function"] == "__getattr__" and frames[-1]["file"].endswith(_TORCH_MODULE):
        frames.pop()  # torch only reports that the caller's module has no such attribute
    if isinstance(error, SyntaxError) and error.filename:
        frames.append(_make_frame(error.filename, error.lineno, "<module>", root))
    if (misused_code := _misused_code_of_regbot(error)) is not None:
        frames.append(_make_frame(*misused_code, root))
    return frames


def last_checkout_frame(frames: Sequence[Frame]) -> str:
    """Return the innermost frame in the code under test, such as 'pkg/moe.py:42 in forward'. '' if there is none."""
    frame = next((frame for frame in reversed(frames) if frame["owner"] == "checkout"), None)
    return f"{frame['file']}:{frame['line']} in {frame['function']}" if frame is not None else ""


def report_running_line(file: Path, root: Path) -> None:
    """Write the line of the code under test that the main thread runs to ``file``, every 5 s until the process ends."""
    main_thread = threading.main_thread().ident or 0

    def report() -> None:
        while True:
            time.sleep(REPORT_EVERY_S)
            stack = traceback.extract_stack(sys._current_frames()[main_thread])
            with suppress(OSError):  # the folder is full or gone
                frames = [_make_frame(frame.filename, frame.lineno, frame.name, root) for frame in stack]
                file.write_text(last_checkout_frame(frames), encoding="utf-8")

    threading.Thread(target=report, name="regbot-running-line", daemon=True).start()


def _iterate_errors(error: BaseException) -> Iterator[BaseException]:
    yielded: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in yielded:
        yielded.add(id(current))
        yield current
        context = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ or context


def _select_relevant_frames(frames: Sequence[Frame]) -> list[Frame]:
    """Frames before the first one of the checkout are left out: they only started the code under test."""
    owners = [frame["owner"] for frame in frames]
    start = owners.index("checkout") if "checkout" in owners else 0
    outer_frames, innermost = frames[start:-1], frames[-1:]
    return [*(frame for frame in outer_frames if frame["owner"] in ("checkout", "regbot")), *innermost]


def _make_frame(filename: str, line: int | None, function: str, root: Path) -> Frame:
    owner, path = _find_owner(filename, root)
    return {
        "file": path[-MAX_CHARACTERS:],
        "line": max(line or 0, 0),
        "function": function[:MAX_CHARACTERS],
        "owner": owner,
    }


def _find_owner(filename: str, root: Path) -> tuple[str, str]:
    if filename.startswith("<"):  # code without a file, such as <string>
        return "installed", filename
    path = Path(filename).resolve()
    if path.is_relative_to(GUEST):
        return "regbot", path.relative_to(GUEST.parent).as_posix()
    torch_file = getattr(sys.modules.get("torch"), "__file__", None)
    torch_folder = Path(torch_file).resolve().parent if torch_file is not None else None
    if torch_folder is not None and path.is_relative_to(torch_folder):
        return "torch", path.relative_to(torch_folder.parent).as_posix()
    if (relative := path_in_checkout(path, root)) is not None:
        return "checkout", relative
    return "installed", "/".join(path.parts[-2:])


def _misused_code_of_regbot(error: BaseException) -> tuple[str, int, str] | None:
    """Return file, line and name of regbot's function or class that the error is about. None for most errors.

    Python raises errors about wrong arguments and missing attributes in the caller, so the traceback lacks the callee.
    """
    if isinstance(error, AttributeError):
        accessed_object = getattr(error, "obj", None)
        accessed_class = accessed_object if isinstance(accessed_object, type) else type(accessed_object)
        module = sys.modules.get(accessed_class.__module__)
        if _is_guest_module(accessed_class.__module__) and module is not None:
            return str(module.__file__), 0, accessed_class.__qualname__
    match = _WRONG_CALL.match(str(error)) if isinstance(error, TypeError) else None
    if match is None:
        return None
    gc.unfreeze()  # gc.get_objects lists no frozen objects
    name = match[1]
    # isinstance would read the class of a weak proxy's object, which may be gone
    functions = [value for value in gc.get_objects() if type(value) is FunctionType and value.__qualname__ == name]
    if not functions or not all(_is_guest_module(function.__module__) for function in functions):
        return None
    function = functions[0]
    return function.__code__.co_filename, function.__code__.co_firstlineno, function.__qualname__


def _is_guest_module(name: str | None) -> bool:
    return (name or "").partition(".")[0] == GUEST.name


def _failing_source(error: BaseException, root: Path) -> str:
    source = ""
    for summary in traceback.extract_tb(error.__traceback__):
        owner, _ = _find_owner(summary.filename, root)
        if summary.lineno is not None and owner == "checkout":
            last_line = getattr(summary, "end_lineno", None) or summary.lineno  # Python 3.10 has no end_lineno
            lines = range(summary.lineno, last_line + 1)
            source = " ".join(linecache.getline(summary.filename, line) for line in lines)
    return source


def _is_named(key: str, text: str) -> bool:
    """Whether ``text`` names the key ``section.name`` or ``name``.

    A name of one word, such as ``enable``, occurs in other sections too. It counts only after its section, as in
    ``debug.seed`` or ``debug_config.seed``, or without a section as ``.name`` or ``--name``.
    """
    section, _, name = key.rpartition(".")
    if "_" in name:
        pattern = rf"\b{re.escape(name).replace('_', '[_-]')}\b"
    elif section:
        pattern = rf"\b{re.escape(section)}\w*\.{re.escape(name)}\b"
    else:
        pattern = rf"(?:\.|--){re.escape(name)}\b"
    return re.search(pattern, text) is not None
