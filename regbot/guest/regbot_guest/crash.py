"""Describes a crash: the code that raised the error, and the code that the error passed through.

The trusted side decides whose fault a crash is (``regbot/judge/crashes.py``). This module only collects the frames.
"""

import gc
import linecache
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

MAX_FRAMES = 100
"""Number of frames that are kept: the innermost ones."""
MAX_CHARACTERS = 300

GUEST = Path(__file__).resolve().parent

Frame = dict[str, Any]
"""A frame as in the record: ``file``, ``line``, ``function`` and ``owner``."""

_WRONG_CALL = re.compile(r"([\w.<>]+)\(\) (?:got|takes|missing)\b")
"""Python's message for arguments that do not fit a function's signature. It begins with the function's name."""
_TORCH_MODULE = "nn/modules/module.py"


def call_unchanged(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call ``function`` and return its result.

    A watch that observes a call, and changes nothing of it, makes the call here. The watch's frames are then left out
    of the crash's traceback, because they cannot have caused it.
    """
    return function(*args, **kwargs)


def describe_crash(error: BaseException, root: Path, regbot_keys: Iterable[str]) -> dict[str, Any]:
    """Return the record of a crash.

    ``frames`` holds frames of the error and of the errors that it was raised from. The last frame is where the first of
    these errors was raised. ``keys`` lists those of ``regbot_keys`` that the error names.
    """
    errors = list(_iterate_errors(error))
    frames = [frame for link in errors for frame in _select_relevant_frames(list_frames(link, root))]
    text = " ".join([str(link) for link in errors] + [_failing_source(link, root) for link in errors])
    return {
        "frames": frames[-MAX_FRAMES:],
        "keys": [key for key in regbot_keys if _is_named(key, text)][:20],
    }


def list_frames(error: BaseException, root: Path) -> list[Frame]:
    """Return the frames of one error, the innermost last. Frames of watches that only observe a call are left out."""
    frames: list[Frame] = []
    for summary in traceback.extract_tb(error.__traceback__):
        frame = _make_frame(summary.filename, summary.lineno, summary.name, root)
        if frame["owner"] == "regbot" and summary.name == call_unchanged.__name__:
            while frames and frames[-1]["owner"] == "regbot":
                frames.pop()
        else:
            frames.append(frame)
    if frames and frames[-1]["function"] == "__getattr__" and frames[-1]["file"].endswith(_TORCH_MODULE):
        frames.pop()  # torch only reports that the caller's module has no such attribute
    if isinstance(error, SyntaxError) and error.filename:
        frames.append(_make_frame(error.filename, error.lineno, "<module>", root))
    if (misused := _misused_code_of_regbot(error)) is not None:
        frames.append(_make_frame(*misused, root))
    return frames


def last_checkout_frame(frames: Sequence[Frame]) -> str:
    """Return the innermost frame in the code under test, such as 'pkg/moe.py:42 in forward', or ''."""
    frame = next((frame for frame in reversed(frames) if frame["owner"] == "checkout"), None)
    return f"{frame['file']}:{frame['line']} in {frame['function']}" if frame is not None else ""


def _iterate_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the errors that it was raised from, the first raised one last."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _select_relevant_frames(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames of the checkout and of regbot, and the innermost one.

    Frames of regbot that called the checkout's outermost frame are left out, because they only started the code.
    """
    owners = [frame["owner"] for frame in frames]
    start = owners.index("checkout") if "checkout" in owners else 0
    inner = list(frames[start:])
    return [frame for frame in inner[:-1] if frame["owner"] in ("checkout", "regbot")] + inner[-1:]


def _make_frame(filename: str, line: int | None, function: str, root: Path) -> Frame:
    owner, path = _find_owner(filename, root)
    return {
        "file": path[-MAX_CHARACTERS:],
        "line": max(line or 0, 0),
        "function": function[:MAX_CHARACTERS],
        "owner": owner,
    }


def _find_owner(filename: str, root: Path) -> tuple[str, str]:
    """Return whose code a file is, and its path as it is shown."""
    if filename.startswith("<"):  # code without a file, such as <string>
        return "installed", filename
    path = Path(filename).resolve()
    if path.is_relative_to(GUEST):
        return "regbot", path.relative_to(GUEST.parent).as_posix()
    torch_file = getattr(sys.modules.get("torch"), "__file__", None)
    torch_folder = Path(torch_file).resolve().parent if torch_file is not None else None
    if torch_folder is not None and path.is_relative_to(torch_folder):
        return "torch", path.relative_to(torch_folder.parent).as_posix()
    root = root.resolve()
    if path.is_relative_to(root) and "site-packages" not in path.relative_to(root).parts:
        return "checkout", path.relative_to(root).as_posix()
    return "installed", "/".join(path.parts[-2:])


def _misused_code_of_regbot(error: BaseException) -> tuple[str, int, str] | None:
    """Return file, line and name of regbot's function that was called with wrong arguments, or of regbot's class whose
    object lacks an attribute. Return None for every other error.

    Python raises these errors in the caller, so the traceback has no frame of the function or class.
    """
    if isinstance(error, AttributeError):
        owner = getattr(error, "obj", None)
        owner_type = owner if isinstance(owner, type) else type(owner)
        module = sys.modules.get(owner_type.__module__)
        if _is_guest_module(owner_type.__module__) and module is not None:
            return str(module.__file__), 0, owner_type.__qualname__
    match = _WRONG_CALL.match(str(error)) if isinstance(error, TypeError) else None
    if match is None:
        return None
    gc.unfreeze()  # gc.get_objects lists no frozen objects
    # isinstance would read the class of a weak proxy's object, which may be gone
    functions = [value for value in gc.get_objects() if type(value) is FunctionType and value.__qualname__ == match[1]]
    if not functions or not all(_is_guest_module(function.__module__) for function in functions):
        return None
    code = functions[0].__code__
    return code.co_filename, code.co_firstlineno, functions[0].__qualname__


def _is_guest_module(name: str | None) -> bool:
    return (name or "").partition(".")[0] == GUEST.name


def _failing_source(error: BaseException, root: Path) -> str:
    """Return the source lines of the expression that failed in the innermost frame of the checkout."""
    source = ""
    for summary in traceback.extract_tb(error.__traceback__):
        if summary.lineno is not None and _find_owner(summary.filename, root)[0] == "checkout":
            end = getattr(summary, "end_lineno", None) or summary.lineno  # Python 3.10 does not have it
            source = " ".join(linecache.getline(summary.filename, line) for line in range(summary.lineno, end + 1))
    return source


def _is_named(key: str, text: str) -> bool:
    """Whether ``text`` names the key ``section.name`` or ``name``.

    A name of several words is enough. A name of one word, such as ``enable``, occurs in other sections too, so it must
    follow its section, as in ``debug.seed`` or ``debug_config.seed``. Without a section, it must be ``.name`` or
    ``--name``.
    """
    section, _, name = key.rpartition(".")
    if "_" in name:
        pattern = rf"\b{re.escape(name).replace('_', '[_-]')}\b"
    elif section:
        pattern = rf"\b{re.escape(section)}\w*\.{re.escape(name)}\b"
    else:
        pattern = rf"(?:\.|--){re.escape(name)}\b"
    return re.search(pattern, text) is not None
