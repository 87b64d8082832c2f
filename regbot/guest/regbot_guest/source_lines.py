"""Source lines in the checkout under test: where a collective, a wait of the host or a large storage comes from."""

import sys
from types import FrameType

_root = ""


def watch(root: str) -> None:
    """Set the checkout's folder, an absolute path without links. '' ends the watch."""
    global _root
    _root = root.rstrip("/") + "/" if root else ""


def current_line() -> str:
    """Return the innermost running frame in the checkout as 'path:number', relative to it. '' if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _root:
        if frame.f_code.co_filename.startswith(_root):
            return f"{frame.f_code.co_filename.removeprefix(_root)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
