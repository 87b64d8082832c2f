"""The step counter on a paper GPU. Kernels of ``c10d`` report collectives to it, and the device counts operators."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regbot_guest.axes import Axes
from regbot_guest.collectives import CollectiveSpec, find_process_group, flatten, reduction_name
from regbot_guest.module_tracker import ModuleTracker
from regbot_guest.paper import collectives
from regbot_guest.paper.device import Device
from regbot_guest.tally import StepCounter, StepTally

PHASES = ("unknown", "forward", "backward", "optimizer")
"""Names of the phases. The device knows a phase by its position in this tuple."""

Launches = Counter[tuple[str, int, int]]
"""Number of kernel launches by operator, phase number and module number."""


@dataclass(frozen=True)
class GraphContent:
    """What one launch of a CUDA graph runs: the kernels (``launches``) and the collectives (``tally``)."""

    launches: Launches
    tally: StepTally


class PaperCounter(StepCounter):
    """Counts collectives, host reads and kernel launches of one step within ``with counter:``. Only the device counts
    at all times, in C++, so that a counted step takes no longer than any other step.
    """

    source = "paper-gpu"

    def __init__(self, device: Device, axes: Axes, tracker: ModuleTracker | None = None) -> None:
        self.device = device
        self._phase = "unknown"
        self._modules: dict[str, int] = {}
        self._is_active = False
        super().__init__(axes, tracker)
        if tracker is not None:  # on_change is called whenever the running module changes
            tracker.on_change = lambda path: device.ops.set_module(self._module_number(path))
        device.on_host_read = lambda: None  # host reads count only while the counter is active
        device.counter = self  # so that CUDA graphs and stand-ins of libraries report to this counter

    @property
    def phase(self) -> str:
        return self._phase

    @phase.setter
    def phase(self, name: str) -> None:
        self._phase = name
        self.device.ops.set_phase(PHASES.index(name))

    def new_step(self, with_fingerprint: bool = True) -> None:
        """Set all counts to zero. ``with_fingerprint`` says whether to compute the fingerprint of the next step."""
        super().new_step()
        self._replayed_launches: Launches = Counter()
        """Launches by replays of CUDA graphs. The device does not count them."""
        self._captured_launches: Launches = Counter()
        """Launches during captures of CUDA graphs. The device counts them, but they are not part of the step."""
        self._library_launches: Launches = Counter()
        """Launches by stand-ins of compiled libraries, such as flash-attn. The device does not count them."""
        self.device.ops.begin_step(with_fingerprint)
        self.device.reset_peak()

    def fingerprint(self) -> str:
        return self.device.fingerprint()

    def guesses(self) -> dict[str, str]:
        return self.device.notes()

    def __enter__(self) -> "PaperCounter":
        collectives.set_listener(self._on_collective)
        self.device.on_host_read = self.count_host_read
        super().__enter__()
        self._is_active = True
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._is_active = False
        self.device.on_host_read = lambda: None
        collectives.set_listener(None)

    def launches(self) -> dict[tuple[str, str, str], int]:
        """Return kernel launches since ``new_step``, by operator, phase and module path ('' outside of any module)."""
        paths = {number: path for path, number in self._modules.items()}
        device_launches = Counter(self.device.launches())
        # A capture launches nothing on a real GPU, but the device has counted its kernels.
        totals = device_launches + self._library_launches + self._replayed_launches - self._captured_launches
        return {(name, PHASES[phase], paths.get(module, "")): count for (name, phase, module), count in totals.items()}

    def count_launch(self, operator: str) -> None:
        """Count one kernel of a compiled library, in the current phase and module, while the counter is active."""
        if self._is_active:
            phase, module = PHASES.index(self.phase), self._module_number(self.module_path())
            self._library_launches[operator, phase, module] += 1

    def begin_capture(self) -> None:
        """Begin a capture. From now on, kernels and collectives belong to the CUDA graph and not to the step."""
        launches_before = Counter(self.device.launches())
        # A capture is counted even if the counter is not active.
        previous_listener = collectives.set_listener(self._on_collective)
        self._state_before_capture = (self.tally, launches_before, previous_listener)
        self.tally = StepTally()

    def end_capture(self) -> GraphContent:
        step_tally, launches_before, previous_listener = self._state_before_capture
        graph = GraphContent(Counter(self.device.launches()) - launches_before, self.tally)
        self._captured_launches += graph.launches
        self.tally = step_tally
        collectives.set_listener(previous_listener)
        return graph

    def replay(self, graph: GraphContent) -> None:
        """Count one launch of a CUDA graph in the current phase, while the counter is active. What the capture ran
        outside of any module is counted in the module that launches the graph.
        """
        if not self._is_active:
            return
        phase, current_path = PHASES.index(self.phase), self.module_path()
        for (name, _, captured_module), count in graph.launches.items():
            module = captured_module or self._module_number(current_path)  # 0: captured outside of any module
            self._replayed_launches[name, phase, module] += count
        for key, count in graph.tally.count.items():
            replayed_key = key._replace(phase=self.phase, where=key.where or current_path)  # where: a module path
            self.tally.count[replayed_key] += count
            self.tally.bytes[replayed_key] += graph.tally.bytes[key]
        # The fingerprint gets the content of the graph, because a replay dispatches no operators.
        collectives = sorted((key._replace(line=""), count) for key, count in graph.tally.count.items())
        self.device.record(f"replay {sorted(graph.launches.items())} {collectives}", [])

    def read_operators(self) -> None:
        self.operators = Counter()
        for (name, _, _), count in self.launches().items():
            self.operators[name] += count

    def _module_number(self, path: str) -> int:
        return self._modules.setdefault(path, len(self._modules) + 1) if path else 0

    def _on_collective(self, func: Any, spec: CollectiveSpec, call_arguments: Mapping[str, Any], outputs: Any) -> None:
        self.count_collective(func, spec, call_arguments, outputs)
        reduce_op = call_arguments.get("reduce_op")
        attributes = (
            func._schema.name,
            self.axes.label(find_process_group(call_arguments)),
            reduction_name(reduce_op) if reduce_op is not None else "",
            call_arguments.get("input_split_sizes"),
            call_arguments.get("output_split_sizes"),
            call_arguments.get("root_rank"),
            call_arguments.get("dst"),
            call_arguments.get("src"),
        )
        tensors = [tensor for value in call_arguments.values() for tensor in flatten(value)]
        self.device.record(repr(attributes), tensors)
