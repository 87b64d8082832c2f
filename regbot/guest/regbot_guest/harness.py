"""The harness of the module contract: it puts a layer into the transformer, shards it, and takes training steps.

    build   the transformer with ``build_layer(config, mesh, device, dtype)`` in every block
    shard   FSDP2: what every rank shares over all ranks (axis ``dp``), experts over the expert-data group (``edp``)
    step    forward, backward, AdamW

Gradients: every rank's loss is its share of the global mean (local mean / world size) and all reductions add. So the
gradient of a weight is the same number wherever the weight lives, also for experts that no other rank holds (with EP
over the whole world nothing is left to reduce for them: the all-to-all has already brought every token's share).
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

from regbot_guest import moe
from regbot_guest.model import DenseMLP, Transformer, token_loss
from regbot_guest.request import Request
from regbot_guest.world import World

BATCHES = 2
"""Batches that the steps take in turn: few enough to be learnt by heart within one run."""


class ContractError(Exception):
    """The module does not keep the module contract. ``kind`` is the refusal's kind."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass
class Plugin:
    """What the entry point's module offers: the layer, and its own parallelisation where it has one."""

    build_layer: Callable[..., Any]
    parallelize: Callable[..., Any] | None = None


def load_plugin(entry: str | None) -> Plugin:
    """The plugin behind ``package.module:function``; regbot's own layer for None. Raises ContractError."""
    if entry is None:
        return Plugin(moe.build_layer)
    module_name, _, function = entry.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ContractError(
            "entry",
            f"entry {entry!r}: there is no module {error.name!r} in the checkout; set 'entry' in regbot.toml to "
            "'package.module:function', and 'source_roots' to the folders that packages live in",
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
        model = Transformer(request.geometry, lambda: self._layer(plugin), world.device, self.dtype)
        self.model: nn.Module = model
        experts = self._expert_parameters(model)
        if plugin.parallelize is not None:
            parallelized = plugin.parallelize(model, world.expert)
            self.model = parallelized if isinstance(parallelized, nn.Module) else model
        elif world.size > 1:
            shard(model, experts, world, self.request.reshard_after_forward)
        self.optimizer = self._optimizer()

    def step(self, number: int, phase: Callable[[str], None] = lambda _: None) -> Tensor:
        """One training step, returns this rank's loss. ``phase`` is told forward, backward, optimizer as they begin."""
        tokens, targets = self._batch(number)
        phase("forward")
        loss = token_loss(self.model(tokens), targets)
        phase("backward")
        (loss / self.world.size).backward()
        phase("optimizer")
        self.optimizer.step()
        self.optimizer.zero_grad()
        phase("unknown")
        return loss.detach()

    def _layer(self, plugin: Plugin) -> nn.Module:
        geometry, world = self.request.geometry, self.world
        if self.request.mlp == "dense":
            return DenseMLP(geometry, world.device, self.dtype)
        layer = plugin.build_layer(self.request.layer_config(), world.expert, world.device, self.dtype)
        if not isinstance(layer, nn.Module):
            raise ContractError(
                "entry", f"entry {self.request.entry!r} returned {type(layer).__name__}; it must return an nn.Module"
            )
        layer.register_forward_hook(_same_shape)
        return layer

    def _expert_parameters(self, model: Transformer) -> set[nn.Parameter]:
        if self.request.mlp == "dense":
            return set()
        found: set[nn.Parameter] = set()
        for block in model.layers:
            listed = getattr(block.moe, "expert_parameters", None)
            if listed is None:
                raise ContractError(
                    "entry",
                    f"{type(block.moe).__name__} has no expert_parameters(): return the list of parameters that differ "
                    "between expert-parallel ranks, so that they are reduced over the right group",
                )
            found.update(listed())
        return found

    def _optimizer(self) -> torch.optim.Optimizer:
        """AdamW, unfused on a CPU. Sharded and whole tensors do not mix in one fused call, so they are two groups."""
        sharded = [p for p in self.model.parameters() if hasattr(p, "device_mesh")]
        whole = [p for p in self.model.parameters() if not hasattr(p, "device_mesh")]
        groups = [{"params": group} for group in (sharded, whole) if group]
        on_gpu = self.world.device.type == "cuda"
        return torch.optim.AdamW(groups, lr=1e-4, fused=on_gpu, foreach=False if not on_gpu else None)

    def _batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Random token numbers, different on every rank, the same in every launch; a few batches, over and over.

        What is never seen twice cannot be learnt, and then a loss tells nothing of the gradients.
        """
        shape, device = self.request.geometry, self.world.device
        generator = torch.Generator(device=device)
        generator.manual_seed(self.request.seed + 1_000_003 * (number % BATCHES) + self.world.rank)
        size = (shape.micro_batch, shape.sequence + 1)
        drawn = torch.randint(shape.vocabulary, size, generator=generator, device=device)
        return drawn[:, :-1], drawn[:, 1:]


def shard(model: Transformer, experts: set[nn.Parameter], world: World, reshard: bool) -> None:
    """FSDP2, one unit per block and one for the rest; experts are units of their own where several ranks hold them."""
    assert world.data is not None
    assert world.expert is not None
    expert_data = world.expert["edp"]
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for number, block in enumerate(model.layers):
        mine = experts & set(block.parameters())
        if mine and expert_data.size() > 1:
            for module in _owners(block, mine, f"layers.{number}"):
                fully_shard(
                    module,
                    mesh=expert_data,
                    mp_policy=policy,
                    reshard_after_forward=reshard,
                    shard_placement_fn=lambda parameter: _divisible(parameter, expert_data.size()),
                )
        fully_shard(block, mesh=world.data, mp_policy=policy, reshard_after_forward=reshard, ignored_params=mine)
    # The root is left at FSDP's default, which keeps it gathered: backward begins with what forward ended with.
    fully_shard(model, mesh=world.data, mp_policy=policy, ignored_params=experts)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sums, and these need none


@contextmanager
def own_chunk_only() -> Iterator[None]:
    """FSDP cuts every parameter into one piece per rank to keep one; without values the others cost time for nothing.

    Tracing 1024 ranks spends two thirds of its time there. The pieces are the same, made when they are asked for.
    """
    try:
        from torch.distributed.fsdp._fully_shard import _fsdp_param as fsdp

        original = fsdp._chunk_with_empty
    except (ImportError, AttributeError):  # a private place; another torch may have it elsewhere, and is only slower
        yield
        return
    fsdp._chunk_with_empty = _Chunks  # type: ignore[assignment]
    try:
        yield
    finally:
        fsdp._chunk_with_empty = original


class _Chunks:
    """``torch.chunk`` padded with empty pieces, each made on access."""

    def __init__(self, tensor: Tensor, num_chunks: int, dim: int) -> None:
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


def _owners(block: nn.Module, experts: set[nn.Parameter], path: str) -> list[nn.Module]:
    """The modules that hold the expert parameters themselves. Raises ContractError where one also holds others."""
    owners = [module for module in block.modules() if experts & set(module.parameters(recurse=False))]
    for module in owners:
        if set(module.parameters(recurse=False)) - experts:
            raise ContractError(
                "entry",
                f"{type(module).__name__} in {path} holds expert parameters beside others; FSDP shards them over "
                "different groups, so put the experts into a module of their own, or provide parallelize(model, mesh)",
            )
    return owners


def _divisible(parameter: nn.Parameter, ranks: int) -> Shard:
    """Shard the first dimension that divides: 8 local experts over 64 ranks would be padded eightfold on the first."""
    return Shard(next((dim for dim, size in enumerate(parameter.shape) if size % ranks == 0), 0))


def _same_shape(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
    given = args[0]
    if not isinstance(out, Tensor) or out.shape != given.shape or out.dtype != given.dtype:
        got = f"{tuple(out.shape)} {out.dtype}" if isinstance(out, Tensor) else type(out).__name__
        raise ContractError(
            "shape",
            f"{type(module).__name__} mapped {tuple(given.shape)} {given.dtype} to {got}; the module contract asks for "
            "[tokens, hidden] in and out, in the same dtype",
        )
