"""The harness of the module contract: puts a layer into the transformer, shards the model, and runs training steps.

    build   the transformer with ``build_layer(config, mesh, device, dtype)`` in every block
    shard   FSDP2: shared parameters over all ranks (axis ``dp``), experts over the expert-data group (``edp``)
    step    forward, backward, AdamW

Backward starts from the rank's share of the global mean loss (local mean / world size), and all reductions of gradients
are sums. So the gradient of a weight does not depend on the sharding, also for experts that only one rank has.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.utils._device import DeviceContext

from regbot_guest import moe
from regbot_guest.contract import ContractError
from regbot_guest.model import DenseMLP, Transformer, token_loss
from regbot_guest.replaced import replaced
from regbot_guest.request import Request
from regbot_guest.world import World

BATCHES = 2
"""Number of distinct batches, which the steps use in turn. The model can memorise few of them in a run."""


@dataclass
class Plugin:
    """``parallelize`` shards the model. If it is None, the harness does."""

    build_layer: Callable[..., Any]
    parallelize: Callable[..., Any] | None = None


def load_plugin(entry: str | None) -> Plugin:
    """Return the plugin for an entry ``package.module:function``; None is regbot's own layer. Raises ContractError."""
    if entry is None:
        return Plugin(moe.build_layer)
    module_name, _, function = entry.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Raise the error as it is, if it is about another module, which the entry's module imports.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ContractError(
            "entry",
            f"entry {entry!r}: there is no module {error.name!r} in the checkout; set 'entry' in regbot.toml to "
            "'package.module:function', and 'source_roots' to the folders that contain the packages",
        ) from error
    build_layer = getattr(module, function, None)
    if not callable(build_layer):
        raise ContractError("entry", f"entry {entry!r}: the module {module_name} has no function {function!r}")
    return Plugin(build_layer, getattr(module, "parallelize", None))


class Training:
    """A sharded model with its optimizer, ready to take steps."""

    def __init__(self, request: Request, plugin: Plugin, world: World) -> None:
        self.request, self.world = request, world
        self.dtype = getattr(torch, request.dtype)
        torch.manual_seed(request.seed)
        model = Transformer(request.geometry, lambda: self._build_layer(plugin), world.device, self.dtype)
        self.model: nn.Module = model
        experts = self._list_expert_parameters(model)
        if plugin.parallelize is not None:
            # world.expert is the mesh of the experts. The result is None if the model was changed in place.
            parallelized = plugin.parallelize(model, world.expert)
            self.model = parallelized if isinstance(parallelized, nn.Module) else model
        elif world.size > 1:
            shard(model, experts, world, self.request.reshard_after_forward)
        self.optimizer = self._build_optimizer()

    def step(self, number: int, phase: Callable[[str], None] = lambda _: None) -> Tensor:
        """Run one step and return this rank's loss. ``number`` selects the batch. ``phase`` is called when a phase
        begins.
        """
        tokens, targets = self._make_batch(number)
        phase("forward")
        loss = token_loss(self.model(tokens), targets)
        phase("backward")
        (loss / self.world.size).backward()
        phase("optimizer")
        self.optimizer.step()
        self.optimizer.zero_grad()
        phase("unknown")  # between two steps
        return loss.detach()

    def _build_layer(self, plugin: Plugin) -> nn.Module:
        geometry, world = self.request.geometry, self.world
        if self.request.mlp == "dense":
            return DenseMLP(geometry, world.device, self.dtype)
        # Weights of a layer that ignores the device would be made on the host, at full size.
        with _OnGpu(world.device) if world.device.type == "cuda" else nullcontext():
            layer = plugin.build_layer(self.request.layer_config(), world.expert, world.device, self.dtype)
        if not isinstance(layer, nn.Module):
            raise ContractError(
                "entry", f"entry {self.request.entry!r} returned {type(layer).__name__}; it must return an nn.Module"
            )
        layer.register_forward_hook(_check_shape)
        return layer

    def _list_expert_parameters(self, model: Transformer) -> set[nn.Parameter]:
        if self.request.mlp == "dense":
            return set()
        parameters: set[nn.Parameter] = set()
        for block in model.layers:
            list_parameters = getattr(block.moe, "expert_parameters", None)
            if list_parameters is None:
                raise ContractError(
                    "entry",
                    f"{type(block.moe).__name__} has no expert_parameters(): return the list of parameters that differ "
                    "between expert-parallel ranks, so that they are reduced over the right group",
                )
            parameters.update(list_parameters())
        return parameters

    def _build_optimizer(self) -> torch.optim.Optimizer:
        """DTensors and other parameters are separate groups, because one fused call cannot handle both."""
        sharded = [parameter for parameter in self.model.parameters() if hasattr(parameter, "device_mesh")]
        unsharded = [parameter for parameter in self.model.parameters() if not hasattr(parameter, "device_mesh")]
        groups = [{"params": group} for group in (sharded, unsharded) if group]
        on_gpu = self.world.device.type == "cuda"
        return torch.optim.AdamW(groups, lr=1e-4, fused=on_gpu, foreach=False if not on_gpu else None)

    def _make_batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Return tokens and targets, each ``[micro_batch, sequence]``, or hidden states if the model has no vocabulary.

        Few batches repeat: a model learns only repeated data, and only if it learns does the loss depend on correct
        gradients.
        """
        shape, device = self.request.geometry, self.world.device
        generator = torch.Generator(device=device)
        generator.manual_seed(self.request.seed + 1_000_003 * (number % BATCHES) + self.world.rank)
        if not shape.vocabulary:
            # The first dimension separates inputs and targets.
            states = (2, shape.micro_batch, shape.sequence, shape.hidden)
            inputs, targets = torch.randn(states, generator=generator, device=device, dtype=self.dtype)
            # The output of an embedding needs a gradient too. So backward of the first block is as with an embedding.
            return inputs.requires_grad_(), targets
        size = (shape.micro_batch, shape.sequence + 1)
        sequences = torch.randint(shape.vocabulary, size, generator=generator, device=device)
        return sequences[:, :-1], sequences[:, 1:]


class _OnGpu(DeviceContext):
    """As ``with torch.device(device):``, but a generator of the host still draws on the host."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (kwargs or {}).get("generator") is not None:
            return func(*args, **kwargs)
        return super().__torch_function__(func, types, args, kwargs)


def shard(model: Transformer, experts: set[nn.Parameter], world: World, reshard_after_forward: bool) -> None:
    """Apply FSDP2: each block and the rest of the model is a unit, and experts that several ranks hold are units over
    the expert-data group.
    """
    assert world.data is not None
    assert world.expert is not None
    expert_data = world.expert["edp"]
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    settings: dict[str, Any] = {"mp_policy": policy, "reshard_after_forward": reshard_after_forward}

    def choose_placement(parameter: nn.Parameter) -> Shard:
        return _choose_shard_dim(parameter, expert_data.size())

    for number, block in enumerate(model.layers):
        block_experts = experts & set(block.parameters())
        if block_experts and expert_data.size() > 1:
            for module in _find_expert_modules(block, block_experts, f"layers.{number}"):
                fully_shard(module, mesh=expert_data, shard_placement_fn=choose_placement, **settings)
        _require_one_dtype(block, block_experts, f"layers.{number}")
        fully_shard(block, mesh=world.data, ignored_params=block_experts, **settings)
    # The root module keeps FSDP's default: its parameters stay gathered after forward, because backward needs them
    # first.
    fully_shard(model, mesh=world.data, mp_policy=policy, ignored_params=experts)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sums, and these sums need no scaling


@contextmanager
def skip_other_chunks() -> Iterator[None]:
    """While active, FSDP creates the chunks of other ranks only when they are used. A trace of 1024 ranks would spend
    two thirds of its time on them.
    """
    fsdp: Any = None
    with suppress(ImportError):
        fsdp = importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_param")
    # This name is private. Without it, the trace is only slower.
    with replaced(fsdp, "_chunk_with_empty", _LazyChunks) if hasattr(fsdp, "_chunk_with_empty") else nullcontext():
        yield


class _LazyChunks:
    """Like ``torch.chunk``, padded with empty chunks to ``num_chunks``. Each chunk is created when it is accessed."""

    def __init__(self, tensor: Tensor, num_chunks: int, dim: int) -> None:
        # As in torch.chunk, the size of a chunk is rounded up. So the last chunks may be smaller or empty.
        self._tensor, self._dim, self._size = tensor, dim, -(-tensor.shape[dim] // num_chunks)
        self._count = num_chunks

    def __getitem__(self, index: int) -> Tensor:
        if not 0 <= index < self._count:
            raise IndexError(index)
        total = self._tensor.shape[self._dim]
        start = index * self._size
        if start >= total:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(self._size, total - start))


def _find_expert_modules(block: nn.Module, experts: set[nn.Parameter], path: str) -> list[nn.Module]:
    """Return the modules that hold ``experts``. ``path``, such as ``layers.3``, names the block in the refusal."""
    modules = [module for module in block.modules() if experts & set(module.parameters(recurse=False))]
    for module in modules:
        if set(module.parameters(recurse=False)) - experts:
            raise ContractError(
                "entry",
                f"{type(module).__name__} in {path} holds both expert parameters and others; FSDP shards them over "
                "different groups, so put the experts into a separate module, or provide parallelize(model, mesh)",
            )
    return modules


def _require_one_dtype(block: nn.Module, experts: set[nn.Parameter], path: str) -> None:
    names = {parameter.dtype: name for name, parameter in block.named_parameters() if parameter not in experts}
    if len(names) > 1:
        found = " and ".join(f"{path}.{name} {dtype}" for dtype, name in names.items())
        raise ContractError(
            "entry",
            f"{found}: FSDP shards a block in one dtype; make all parameters of the layer in the dtype that "
            "build_layer receives and convert in forward, or provide parallelize(model, mesh)",
        )


def _choose_shard_dim(parameter: nn.Parameter, ranks: int) -> Shard:
    """FSDP pads the sharded dimension: 8 experts would become 64 if dimension 0 were sharded over 64 ranks."""
    return Shard(next((dim for dim, size in enumerate(parameter.shape) if size % ranks == 0), 0))


def _check_shape(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
    x = args[0]
    if not isinstance(out, Tensor) or out.shape != x.shape or out.dtype != x.dtype:
        actual = f"{tuple(out.shape)} {out.dtype}" if isinstance(out, Tensor) else type(out).__name__
        raise ContractError(
            "shape",
            f"{type(module).__name__} mapped {tuple(x.shape)} {x.dtype} to {actual}; the module contract requires "
            "[tokens, hidden] in and out, in the same dtype",
        )
