"""Notices collectives that a dispatch mode does not see: from other threads, and called on a backend itself.

Modes belong to one thread, and only a process group's own methods pass the dispatcher. What cannot be counted must not
be left out in silence, so these calls are noted on their way and the count is refused. (On real ranks the backend's
sequence numbers tell the same.)
"""

import threading
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch._subclasses.fake_tensor import FakeTensor

from regbot_guest.collectives import collective_form

METHODS = (
    "allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced",
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced",
    "allreduce", "allreduce_coalesced", "alltoall", "alltoall_base",
    "broadcast", "reduce", "gather", "scatter", "send", "recv", "recv_anysource", "barrier",
)  # fmt: skip


class UnseenWatch:
    """While installed, ``issued`` collects in words what was issued past the counter.

    ``other_threads``: whether collectives of other threads pass it; a paper GPU sees those of every thread.
    """

    def __init__(self, other_threads: bool = True) -> None:
        self._watch_threads = other_threads
        self.issued: list[str] = []
        self._own = threading.get_ident()
        self._replaced: list[tuple[type, str, Any]] = []

    def __enter__(self) -> "UnseenWatch":
        for name in METHODS:
            if hasattr(dist.ProcessGroup, name):
                self._replace(dist.ProcessGroup, name, self._watch_group(name))
            if hasattr(Backend, name):
                self._replace(Backend, name, self._watch_backend(name))
        # A tensor without values carries its own dispatch, also in threads where no mode is on.
        self._replace(FakeTensor, "__torch_dispatch__", self._watch_fake())
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, original in reversed(self._replaced):
            setattr(owner, name, original)

    def _replace(self, owner: type, name: str, watched: Any) -> None:
        self._replaced.append((owner, name, owner.__dict__.get(name, getattr(owner, name))))
        setattr(owner, name, watched)

    def _elsewhere(self) -> bool:
        return self._watch_threads and threading.get_ident() != self._own

    def _watch_group(self, name: str) -> Any:
        original = getattr(dist.ProcessGroup, name)

        def watched(group: Any, *args: Any, **kwargs: Any) -> Any:
            if self._elsewhere():
                self.issued.append(f"{name} from thread {threading.current_thread().name}")
            return original(group, *args, **kwargs)

        return watched

    def _watch_backend(self, name: str) -> Any:
        original = getattr(Backend, name)

        def watched(backend: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(backend, dist.ProcessGroup):
                self.issued.append(f"{name} on the backend itself")
            return original(backend, *args, **kwargs)

        return watched

    def _watch_fake(self) -> Any:
        dispatch = FakeTensor.__torch_dispatch__

        def watched(_: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if self._elsewhere() and hasattr(func, "_opname") and collective_form(func) is not None:
                self.issued.append(f"{func._opname} from thread {threading.current_thread().name}")
            return dispatch(func, types, args, kwargs or {})

        return classmethod(watched)
