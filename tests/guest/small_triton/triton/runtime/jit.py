import inspect
from typing import Any

from triton.runtime.driver import driver


class KernelInterface:
    run: Any

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)


class JITFunction(KernelInterface):
    def __init__(self, fn: Any) -> None:
        self.fn, self.__name__ = fn, fn.__name__
        source = inspect.getsource(fn)
        self.src = source[source.index("def ") :]

    def run(self, *_: Any, **__: Any) -> Any:
        return driver.active.get_current_target()


def jit(fn: Any) -> JITFunction:
    return JITFunction(fn)
