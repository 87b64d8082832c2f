"""Detection of collectives that a dispatch mode does not see: issued by other threads, or called on a backend directly.
Any such call refuses the count.

The mode is active in the thread that enters it, and in autograd's device threads. Calls of a process group's methods
pass through torch's dispatcher, and direct calls of its backend do not.
"""

import threading
from contextlib import ExitStack
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from regbot_guest.collectives import collective_spec
from regbot_guest.crash import call_unchanged
from regbot_guest.replaced import replaced
from regbot_guest.tally import StepCounter

METHODS = (
    "allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced", "all_gather_single",
    "all_gather_single_coalesced", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single", "reduce_scatter_single_coalesced", "allreduce", "allreduce_coalesced", "alltoall",
    "alltoall_base", "all_to_all_single", "broadcast", "reduce", "gather", "scatter", "send", "recv", "recv_anysource",
    "barrier",
)  # fmt: skip
"""Methods of a process group that issue a collective, in torch 2.8 to 2.13."""


class UncountedWatch:
    """While active, records a description of each uncounted collective in ``collectives``.

    It misses calls of a method that the code under test has saved before, as in ``send = dist.ProcessGroup.send``.
    Without sequence numbers of the backend, which reveal such calls, enter it before the code under test is imported. A
    paper GPU counts every thread, so ``watch_other_threads`` is then False.
    """

    def __init__(self, watch_other_threads: bool = True) -> None:
        self._watch_other_threads = watch_other_threads
        self.collectives: list[str] = []
        self._counting_thread = threading.get_ident()
        """The thread that created the watch. Of its collectives, only direct calls of a backend are uncounted."""
        self._stack = ExitStack()

    def __enter__(self) -> "UncountedWatch":
        for name in METHODS:
            for owner in (dist.ProcessGroup, Backend):
                if hasattr(owner, name):
                    self._stack.enter_context(replaced(owner, name, self._watch(owner, name)))
        # FakeTensor's own dispatch runs even in threads without an active dispatch mode, so it is watched too.
        self._stack.enter_context(replaced(FakeTensor, "__torch_dispatch__", self._watch_fake()))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _is_uncounted_thread(self) -> bool:
        if not self._watch_other_threads or threading.get_ident() == self._counting_thread:
            return False
        return not any(isinstance(mode, StepCounter) for mode in _get_current_dispatch_mode_stack())

    def _watch(self, owner: Any, name: str) -> Any:
        original = getattr(owner, name)

        def wrapper(group: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(group, dist.ProcessGroup):
                self.collectives.append(f"{name} on the backend itself")
            elif owner is dist.ProcessGroup and self._is_uncounted_thread():
                self.collectives.append(f"{name} from thread {threading.current_thread().name}")
            return call_unchanged(original, (group, *args), kwargs)

        return wrapper

    def _watch_fake(self) -> Any:
        dispatch = FakeTensor.__torch_dispatch__

        # A higher-order operator has no _opname.
        def wrapper(_: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if self._is_uncounted_thread() and hasattr(func, "_opname") and collective_spec(func) is not None:
                self.collectives.append(f"{func._opname} from thread {threading.current_thread().name}")
            return call_unchanged(dispatch, (func, types, args, kwargs or {}), {})

        return classmethod(wrapper)
