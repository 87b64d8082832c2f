"""What the installed deep_ep offers, found by importing it in a separate process with a time limit: the import can
raise any exception, hang, or end the process.
"""

import importlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from importlib import metadata
from typing import Any, NamedTuple

TIMEOUT_S = 60.0

REQUIRED_PARAMETERS: dict[str, dict[str, tuple[str, ...]]] = {
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
"""Every parameter that the dispatchers pass, by class and method. A version without one cannot be used."""


class DeepEPInstallation(NamedTuple):
    """The installed deep_ep."""

    importable: bool
    reason: str = ""  # why it cannot be imported
    version: str = ""
    distributions: tuple[str, ...] = ()  # names of the installed packages that provide it
    missing_by_class: "dict[str, list[str]]" = {}  # noqa: RUF012 (never written)
    """Required methods and parameters that each class of deep_ep lacks. [] means that it can be used."""


@cache
def inspect_deep_ep() -> DeepEPInstallation:
    """Import deep_ep in another process, with this process's search path, and return what it offers. Never raises."""
    command = [sys.executable, "-c", _CHILD, *sys.path]
    # The output goes to a file and not to a pipe, which a child of the child could keep open.
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return DeepEPInstallation(importable=False, reason=f"the import was still running after {TIMEOUT_S:.0f} s")
        output.seek(0)
        lines = output.read().splitlines()
    try:
        answer = json.loads(lines[-1])
        return DeepEPInstallation(**{**answer, "distributions": tuple(answer["distributions"])})
    except (IndexError, ValueError, TypeError, KeyError):
        reason = f"the import ended the process with exit code {child.returncode}"
        return DeepEPInstallation(importable=False, reason=reason)


_CHILD = "import sys; sys.path[:] = sys.argv[1:]; from regbot_guest import deepep_installation as d; d.print_result()"
"""Program of the other process. Its arguments are the search path of this process."""


def print_result() -> None:
    """Print the result as one line of JSON and exit. The other process runs this function."""
    print(json.dumps(_import_deep_ep()._asdict()), flush=True)
    os._exit(0)  # skips exit handlers, because the extension may crash in them


def _import_deep_ep() -> DeepEPInstallation:
    try:
        module = importlib.import_module("deep_ep")
    except (Exception, SystemExit) as error:  # code of others may raise anything; the error is the result
        return DeepEPInstallation(importable=False, reason=f"{type(error).__name__}: {error}"[:300])
    missing_by_class = {
        class_name: list_missing(getattr(module, class_name), required)
        for class_name, required in REQUIRED_PARAMETERS.items()
        if hasattr(module, class_name)
    }
    return DeepEPInstallation(
        importable=True,
        version=str(getattr(module, "__version__", "of unknown version"))[:50],
        distributions=tuple(sorted(metadata.packages_distributions().get("deep_ep", []))),
        missing_by_class=missing_by_class,
    )


def list_missing(buffer_class: Any, required: "dict[str, tuple[str, ...]]") -> list[str]:
    """Return the methods and parameters that a class lacks, as 'method' or 'method(parameter)'."""
    missing = []
    for method, parameters in required.items():
        if not hasattr(buffer_class, method):
            missing.append(method)
            continue
        accepted_parameters = inspect.signature(getattr(buffer_class, method)).parameters
        accepts_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted_parameters.values())
        if not accepts_all:
            missing += [f"{method}({name})" for name in parameters if name not in accepted_parameters]
    return missing
