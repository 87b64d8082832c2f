"""The step counter on a paper GPU. Kernels of ``c10d`` report collectives to it, and the device counts operators."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from regbot_guest.axes import Axes
from regbot_guest.collectives import CollectiveSpec, find_process_group, flatten, reduction_name
from regbot_guest.module_tracker import ModuleTracker
from regbot_guest.paper import collectives
from regbot_guest.paper.device import Device
from regbot_guest.paper.program import HOLDER_KINDS, PHASES, Wait, build_program
from regbot_guest.source_lines import current_line
from regbot_guest.tally import StepCounter, StepTally


@dataclass(frozen=True)
class GraphContent:
    """What one launch of a CUDA graph runs: the kernels, which the device knows by ``number``, and the collectives."""

    number: int
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
        super().__init__(axes, tracker)
        if tracker is not None:  # on_change is called whenever the running module changes
            tracker.on_change = lambda path: device.ops.set_module(self._module_number(path))
            tracker.on_leave = self._mark_module
        device.on_host_wait = lambda _: None  # waits count only while the counter is active
        device.counter = self  # so that CUDA graphs and stand-ins of libraries report to this counter

    @property
    def phase(self) -> str:
        return self._phase

    @phase.setter
    def phase(self, name: str) -> None:
        if name == "optimizer":
            self._mark_models()  # gradients have their final storages now
        self._phase = name
        self.device.ops.set_phase(PHASES.index(name))

    def new_step(self, with_fingerprint: bool = True) -> None:
        """Set all counts to zero. ``with_fingerprint`` says whether to compute the fingerprint of the next step."""
        super().new_step()
        self._waits: Counter[Wait] = Counter()
        self.device.ops.begin_step(with_fingerprint)
        self.device.reset_peak()
        self._mark_models()

    def fingerprint(self) -> str:
        return self.device.fingerprint()

    def guesses(self) -> dict[str, str]:
        return self.device.notes()

    def __enter__(self) -> "PaperCounter":
        collectives.set_listener(self._on_collective)
        self.device.on_host_wait = self.count_host_wait
        super().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.device.on_host_wait = lambda _: None
        collectives.set_listener(None)

    def program(self) -> dict[str, Any]:
        paths = {number: path for path, number in self._modules.items()}
        return build_program(self.device, paths, self._waits)

    def launches(self) -> dict[tuple[str, str, str], int]:
        """Return kernel launches since ``new_step``, by operator, phase and module path ('' outside of any module)."""
        paths = {number: path for path, number in self._modules.items()}
        totals: Counter[tuple[str, str, str]] = Counter()
        for group in self.device.kernels():
            totals[group.operator, PHASES[group.phase], paths.get(group.module, "")] += group.launches
        return dict(totals)

    def count_host_wait(self, kind: str) -> None:
        """``kind`` is that of ``Wait``, or ``copy`` for a read that does not wait."""
        if kind in ("read", "copy"):
            self.count_host_read()
        if kind != "copy":
            self._waits[Wait(kind, self.phase, self.module_path(), current_line())] += 1

    def begin_capture(self) -> None:
        """Begin a capture. From now on, kernels and collectives belong to the CUDA graph and not to the step."""
        self.device.ops.begin_capture()
        # A capture is counted even if the counter is not active.
        self._state_before_capture = (self.tally, collectives.set_listener(self._on_collective))
        self.tally = StepTally()

    def end_capture(self) -> GraphContent:
        step_tally, previous_listener = self._state_before_capture
        graph = GraphContent(int(self.device.ops.end_capture()), self.tally)
        self.tally = step_tally
        collectives.set_listener(previous_listener)
        return graph

    def replay(self, graph: GraphContent) -> None:
        """Count one launch of a CUDA graph in the current phase. What the capture ran outside of any module is counted
        in the module that launches the graph.
        """
        self.device.ops.replay(graph.number)
        current_path = self.module_path()
        for key, count in graph.tally.count.items():
            replayed_key = key._replace(phase=self.phase, where=key.where or current_path)  # where: a module path
            self.tally.count[replayed_key] += count
            self.tally.bytes[replayed_key] += graph.tally.bytes[key]
        # The fingerprint gets the content of the graph, because a replay dispatches no operators.
        kernels = sorted(group[:-1] for group in self.device.kernels(graph.number))
        collectives = sorted((key._replace(line=""), count) for key, count in graph.tally.count.items())
        self.device.record(f"replay {kernels} {collectives}", [])

    def read_operators(self) -> None:
        self.operators = Counter()
        for (name, _, _), count in self.launches().items():
            self.operators[name] += count

    def _module_number(self, path: str) -> int:
        return self._modules.setdefault(path, len(self._modules) + 1) if path else 0

    def _mark_models(self) -> None:
        for model in self.tracker.models if self.tracker is not None else ():
            for module in model.modules():
                self._mark_module(module)

    def _mark_module(self, module: nn.Module) -> None:
        """Tell the device what the storages of the module's own parameters, buffers and gradients are for."""
        number = self._module_number(self.tracker.path_of(module)) if self.tracker is not None else 0
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is None:
                continue
            self._mark(tensor, "parameter", number)
            # Megatron-LM adds gradients to a buffer of its own.
            for gradient in (tensor.grad if tensor.is_leaf else None, getattr(tensor, "main_grad", None)):
                if gradient is not None:
                    self._mark(gradient, "gradient", number)

    def _mark(self, tensor: Tensor, kind: str, module: int) -> None:
        local = getattr(tensor, "_local_tensor", tensor)  # that of a DTensor
        if local.is_cuda:
            self.device.ops.mark_holder(local.data, HOLDER_KINDS.index(kind), module)

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
