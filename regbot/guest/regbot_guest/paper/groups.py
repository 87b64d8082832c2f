"""Process groups on a paper GPU. A framework's own calls are accepted, but fake backends replace the requested ones.
The description of a group (``group_desc``) identifies its mesh axis.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch.distributed as dist

from regbot_guest.paper.gpus import GPUS_PER_NODE
from regbot_guest.replaced import replaced

GPU_BACKEND = "cuda:fake"
"""Replacement for NCCL. Such a group accepts only GPU tensors, so object collectives use the GPU too."""
HOST_BACKEND = "fake"
"""Replacement for the backend gloo. A group with this backend also accepts host tensors."""


@contextmanager
def rank_zero_of(world: int) -> Iterator[None]:
    """While active, this process is rank 0 of ``world`` ranks, with a launcher's environment variables.
    ``init_process_group`` and ``new_group`` use fake backends, and ignore most other options. All groups are destroyed
    on exit.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend 'fake'

    variables = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(min(world, GPUS_PER_NODE)),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
    original_init, original_new_group = dist.init_process_group, dist.new_group

    def init_process_group(backend: Any = None, *_: Any, **options: Any) -> None:
        kept_options = {name: options[name] for name in ("timeout", "group_name") if name in options}
        original_init(fake_backend(backend), rank=0, world_size=world, store=FakeStore(), **kept_options)

    def new_group(ranks: Any = None, _timeout: Any = None, backend: Any = None, *_: Any, **options: Any) -> Any:
        kept_options = {name: options[name] for name in ("group_desc", "sort_ranks") if name in options}
        return original_new_group(ranks, backend=fake_backend(backend or dist.get_backend()), **kept_options)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, variables))
        for module in (dist, dist.distributed_c10d):
            stack.enter_context(replaced(module, "init_process_group", init_process_group))
            stack.enter_context(replaced(module, "new_group", new_group))
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def fake_backend(backend: Any) -> str:
    """Return the fake backend for ``backend``, such as 'nccl' or 'cpu:gloo,cuda:nccl'. It accepts host tensors if that
    does.
    """
    name = str(backend or "").lower()
    accepts_host_tensors = "gloo" in name or "cpu:" in name or name == HOST_BACKEND
    return HOST_BACKEND if accepts_host_tensors else GPU_BACKEND
