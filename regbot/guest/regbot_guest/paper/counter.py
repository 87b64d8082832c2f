"""The counter on a paper GPU: collectives from the kernels of ``c10d``, everything else from the device itself."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from regbot_guest.axes import Axes
from regbot_guest.collectives import Form, flatten, process_group, reduction
from regbot_guest.paper import collectives
from regbot_guest.paper.device import Device
from regbot_guest.tally import StepCounter
from regbot_guest.where import Where

PHASES = ("unknown", "forward", "backward", "optimizer")


class PaperCounter(StepCounter):
    """Counts while it is active. No operator passes Python on its way, so a step takes what it takes without it."""

    def __init__(self, device: Device, axes: Axes, where: Where | None = None) -> None:
        self.device = device
        self._phase = "unknown"
        self._modules: dict[str, int] = {}
        super().__init__(axes, where)
        if where is not None:
            where.on_change = lambda path: device.set_module(self._number(path))
        device.on_host_read = lambda: None

    @property
    def phase(self) -> str:
        return self._phase

    @phase.setter
    def phase(self, name: str) -> None:
        self._phase = name
        self.device.set_phase(PHASES.index(name))

    def new_step(self, program: bool = True) -> None:
        """Start counting anew. ``program``: make a fingerprint too."""
        super().new_step()
        self.device.begin_step(program)

    def __enter__(self) -> "PaperCounter":
        collectives.listen(self._collective)
        self.device.on_host_read = self.count_host_read
        super().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.device.on_host_read = lambda: None
        collectives.listen(None)

    def launches(self) -> dict[tuple[str, str, str], int]:
        """Kernels launched since ``new_step``, by operator, phase and module path."""
        paths = {number: path for path, number in self._modules.items()}
        return {
            (name, PHASES[phase], paths.get(module, "")): count
            for (name, phase, module), count in self.device.launches().items()
        }

    def read_operators(self) -> None:
        """Take what was launched into ``operators``."""
        self.operators = Counter()
        for (name, _, _), count in self.launches().items():
            self.operators[name] += count

    def _number(self, path: str) -> int:
        """Modules by number, from 1: 0 is no module."""
        return self._modules.setdefault(path, len(self._modules) + 1) if path else 0

    def _collective(self, func: Any, form: Form, given: Mapping[str, Any], outputs: Any) -> None:
        self.count_collective(func, form, given, outputs)
        reduce_op = given.get("reduce_op")
        words = (
            func._schema.name,
            self.axes.label(process_group(given)),
            reduction(reduce_op) if reduce_op is not None else "",
            given.get("input_split_sizes"),
            given.get("output_split_sizes"),
            given.get("root_rank"),
            given.get("dst"),
            given.get("src"),
        )
        tensors = [tensor for value in given.values() for tensor in flatten(value)]
        self.device.record(repr(words), tensors)
