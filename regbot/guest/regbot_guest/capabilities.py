"""What this interpreter supports, found by trying: ``python <guest folder> --capabilities`` prints one line of JSON."""

import json
import platform
from typing import Any


def main() -> int:
    """Print the capabilities. Without torch, ``why`` has the error. ``static`` is None if static traces work, else the
    error.
    """
    capabilities: dict[str, Any] = {"python": platform.python_version()}
    try:
        import torch
    except ImportError as error:
        capabilities["torch"], capabilities["why"] = None, str(error)
    else:
        capabilities["torch"] = str(torch.__version__)
        capabilities["cuda"] = torch.version.cuda
        capabilities["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        distributed = torch.distributed
        backends = {}
        if distributed.is_available():
            backends = {"gloo": distributed.is_gloo_available(), "nccl": distributed.is_nccl_available()}
        capabilities["backends"] = backends
        capabilities["static"] = None
        try:
            _trace_collective()
        except Exception as error:
            capabilities["static"] = f"{type(error).__name__}: {error}"[:300]
        capabilities["grouped_mm"] = _test_grouped_mm()
        capabilities["dispatchers"] = _describe_dispatchers()
    print(json.dumps(capabilities))
    return 0


def _trace_collective() -> None:
    """Run a static trace of one collective in a fake world of two ranks. Raises if it fails or miscounts."""
    import torch
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode

    from regbot_guest.observer import Observer
    from regbot_guest.world import open_world

    with open_world(size=2, ep=2, fake=True) as world, FakeTensorMode(), Observer(world.axes) as observer:
        dist.all_reduce(torch.ones(1))
    if observer.tally.total != 1:
        raise RuntimeError(f"1 collective was issued, {observer.tally.total} were counted")


def _test_grouped_mm() -> dict[str, dict[str, Any]]:
    import torch

    from regbot_guest.grouped_gemm import LOOP_OVER_EXPERTS, path_in_torch
    from regbot_guest.moe import runs_grouped_mm

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    products: dict[str, dict[str, Any]] = {}
    for dtype in (torch.bfloat16, torch.float32):
        try:
            runs = runs_grouped_mm(dtype, device)
            product = {"runs": runs, "path": path_in_torch(dtype, device) if runs else LOOP_OVER_EXPERTS}
        except RuntimeError as error:
            product = {"runs": False, "why": str(error).partition("\n")[0]}
        products[str(dtype).removeprefix("torch.")] = product
    return products


def _describe_dispatchers() -> dict[str, dict[str, Any]]:
    import torch

    from regbot_guest.availability import BUFFERS, explain_missing_adapters, resolve
    from regbot_guest.deepep_installation import inspect_deep_ep

    library = inspect_deep_ep()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dispatchers = {}
    for name in BUFFERS:
        resolution = resolve(name, device, torch.bfloat16)
        dispatchers[name] = {
            "importable": library.importable,
            "version": library.version,
            "distributions": list(library.distributions),
            "usable": resolution.resolved == name,
            "buffer": resolution.buffer,
            "why": resolution.reason,
            "advice": explain_missing_adapters() if resolution.buffer == "ElasticBuffer" else "",
        }
    return dispatchers
