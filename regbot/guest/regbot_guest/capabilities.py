"""What this interpreter can do, told by trying: run as ``python <guest folder> --capabilities``, one JSON line out.

It runs in a process of its own with a time limit, because some of what it imports can crash or hang; deep_ep, which is
known for it, in one more.
"""

import json
import platform
from collections.abc import Callable
from typing import Any


def main() -> int:
    found: dict[str, Any] = {"python": platform.python_version()}
    try:
        import torch
    except ImportError as error:
        found["torch"], found["why"] = None, str(error)
    else:
        found["torch"] = str(torch.__version__)
        found["cuda"] = torch.version.cuda
        found["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        found["backends"] = _backends()
        found["static"] = _try(_static)
        found["grouped_mm"] = _grouped_mm()
        found["dispatchers"] = _dispatchers()
    print(json.dumps(found))
    return 0


def _backends() -> dict[str, bool]:
    import torch.distributed as dist

    if not dist.is_available():
        return {}
    return {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available()}


def _static() -> None:
    """The static tier in small: a fake world of two ranks, one collective on a tensor without values."""
    import torch
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode

    from regbot_guest.observer import Observer
    from regbot_guest.world import open_world

    with open_world(2, 2, fake=True) as world, FakeTensorMode(), Observer(world.axes) as observer:
        dist.all_reduce(torch.ones(1))
    if observer.tally.total != 1:
        raise RuntimeError(f"1 collective was issued, {observer.tally.total} were counted")


def _grouped_mm() -> dict[str, bool]:
    import torch

    from regbot_guest.moe import runs_grouped_mm

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return {str(t).removeprefix("torch."): runs_grouped_mm(t, device) for t in (torch.bfloat16, torch.float32)}


def _dispatchers() -> dict[str, dict[str, Any]]:
    """By dispatcher that needs a library: is it importable, is it usable in bfloat16 here, by which class, why not."""
    import torch

    from regbot_guest.availability import BUFFERS, resolve
    from regbot_guest.library import probe

    library = probe()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = {}
    for name in BUFFERS:
        resolution = resolve(name, device, torch.bfloat16)
        found[name] = {
            "importable": library.importable,
            "version": library.version,
            "distributions": list(library.distributions),
            "usable": resolution.resolved == name,
            "buffer": resolution.buffer,
            "why": resolution.why,
        }
    return found


def _try(action: Callable[[], None]) -> str | None:
    """None where it worked, else why not."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return None
