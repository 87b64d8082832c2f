"""Notices collectives issued from other threads: dispatch modes belong to one thread and do not see them.

A tensor without values carries its own dispatch, also where no mode is on, so in the static tier a collective in
another thread passes here. (On real ranks the backend's sequence numbers tell the same.)
"""

import threading
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from regbot_guest.collectives import collective_form


class ThreadWatch:
    """While installed, collects the names of other threads that issued a collective on a fake tensor."""

    def __init__(self) -> None:
        self.issued: list[str] = []
        self._own = threading.get_ident()
        self._original: Any = None

    def __enter__(self) -> "ThreadWatch":
        self._original = FakeTensor.__dict__["__torch_dispatch__"]
        dispatch = FakeTensor.__torch_dispatch__

        def watched(_: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if threading.get_ident() != self._own and collective_form(func) is not None:
                self.issued.append(threading.current_thread().name)
            return dispatch(func, types, args, kwargs or {})

        setattr(FakeTensor, "__torch_dispatch__", classmethod(watched))  # noqa: B010 (typed as a method otherwise)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(FakeTensor, "__torch_dispatch__", self._original)  # noqa: B010
