"""What the deep_ep that is installed here offers, told by importing it in a process of its own with a time limit.

Several distributions install this import name, in several versions. Importing it can fail with any exception, hang, or
end the process: it loads a C++ extension and compares the loaded NCCL with the one on disk. Nothing here imports torch,
so that where deep_ep is missing the answer is quick.
"""

import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
from functools import cache
from importlib import metadata
from typing import Any, NamedTuple

TIMEOUT_S = 60.0

NEEDS: dict[str, dict[str, tuple[str, ...]]] = {
    "ElasticBuffer": {
        "__init__": ("group", "num_max_tokens_per_rank", "hidden", "num_topk", "explicitly_destroy"),
        "get_theoretical_num_sms": ("num_experts", "num_topk"),
        "dispatch": ("x", "topk_idx", "topk_weights", "num_experts", "num_sms", "handle"),
        "combine": ("x", "handle", "topk_weights"),
    },
    "Buffer": {
        "__init__": ("group", "num_nvl_bytes", "num_rdma_bytes", "explicitly_destroy"),
        "get_dispatch_config": ("num_ranks",),
        "get_combine_config": ("num_ranks",),
        "get_dispatch_layout": ("topk_idx", "num_experts"),
        "dispatch": (
            "x", "handle", "num_tokens_per_rank", "num_tokens_per_rdma_rank", "is_token_in_rank",
            "num_tokens_per_expert", "topk_idx", "topk_weights",
        ),
        "combine": ("x", "handle", "topk_weights"),
    },
    "HybridEPBuffer": {
        "__init__": ("group", "hidden_dim", "max_num_of_tokens_per_rank", "num_local_experts"),
        "dispatch_with_permute": (
            "hidden", "routing_map", "probs", "num_of_experts_per_rank", "handle", "num_permuted_tokens",
        ),
        "combine_with_unpermute": ("hidden", "probs", "handle"),
    },
}  # fmt: skip
"""Every parameter that the dispatchers pass, by class and method. A version without one of them cannot be used."""


class Library(NamedTuple):
    """What importing deep_ep in a process of its own showed. ``lacks``: by class that it offers, what is missing."""

    importable: bool
    why: str = ""
    version: str = ""
    distributions: tuple[str, ...] = ()
    lacks: "dict[str, list[str]]" = {}  # noqa: RUF012 (never written)


@cache
def probe() -> Library:
    """Import deep_ep in another process, on this one's search path, and tell what it offers. Never raises."""
    with tempfile.TemporaryFile() as output:
        # A session of its own, so that whatever it started is ended with it; a file, which nobody can hold open.
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, *sys.path],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            child.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return Library(False, f"the import was still running after {TIMEOUT_S:.0f} s")
        output.seek(0)
        lines = output.read().splitlines()
    if child.returncode < 0:
        names = {each.value: each.name for each in signal.Signals}  # real-time signals have none
        return Library(False, f"the import was ended by {names.get(-child.returncode, f'signal {-child.returncode}')}")
    try:
        answer = json.loads(lines[-1])
        return Library(**{**answer, "distributions": tuple(answer["distributions"])})
    except (IndexError, ValueError, TypeError, KeyError):
        return Library(False, f"the import ended the process with exit code {child.returncode}")


_CHILD = "import sys; sys.path[:] = sys.argv[1:]; from regbot_guest.library import tell; tell()"


def tell() -> None:
    """What the other process does: one line of JSON, the last one on its standard output."""
    print(json.dumps(_look()._asdict()), flush=True)
    os._exit(0)  # what an extension does at the end of its process is not the question


def _look() -> Library:
    try:
        module = importlib.import_module("deep_ep")
    except (Exception, SystemExit) as error:  # the boundary to code that may raise anything; it becomes the answer
        return Library(False, f"{type(error).__name__}: {error}"[:300])
    return Library(
        True,
        "",
        str(getattr(module, "__version__", "of unknown version"))[:50],
        tuple(sorted(metadata.packages_distributions().get("deep_ep", []))),
        {name: lacking(getattr(module, name), needs) for name, needs in NEEDS.items() if hasattr(module, name)},
    )


def lacking(kind: Any, needs: "dict[str, tuple[str, ...]]") -> list[str]:
    """What of ``needs`` a class does not have, as 'method' or 'method(parameter)'."""
    missing = []
    for method, parameters in needs.items():
        if not hasattr(kind, method):
            missing.append(method)
            continue
        known = inspect.signature(getattr(kind, method)).parameters
        if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values()):
            missing += [f"{method}({name})" for name in parameters if name not in known]
    return missing
