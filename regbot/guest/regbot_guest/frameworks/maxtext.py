"""MaxText: ahead-of-time compilation of one train step by its own ``train_compile``, for CPU devices that XLA emulates.

No step runs. The guest keeps the compiled text, and that of a planted program with known collectives; the trusted side
counts the collectives in both. This module does not import torch.
"""

import importlib
import importlib.util
import os
import re
import resource
import shutil
from pathlib import Path
from typing import Any

from regbot_guest.contract import ContractError, refuse_revision
from regbot_guest.crash import regbot_keys
from regbot_guest.frameworks import maxtext_planted
from regbot_guest.frameworks.maxtext_config import (
    FORCED_KEYS,
    OWNED_KEYS,
    ResolvedConfig,
    check_shape,
    compile_arguments,
    explain_refusal,
    list_warnings,
    record_config,
)
from regbot_guest.origin import path_in_checkout
from regbot_guest.replaced import replaced
from regbot_guest.request import Request
from regbot_guest.software import module_versions

STEP = "jit_train_step"
"""Name that XLA gives to the compiled train step."""
PACKAGE = "maxtext"
ENTRY_MODULE = "maxtext.trainers.pre_train.train_compile"
ENTRY = Path("trainers", "pre_train", "train_compile.py")
"""Entry point in the package, of revisions since 20 February 2026."""
OLD_ENTRIES = (Path("src", "MaxText", ENTRY.name), Path("MaxText", ENTRY.name))
"""Entry points of older revisions, in the checkout."""
TARGETS_MODULE = "maxtext.utils.accelerator_to_spec_map"
PROGRAM, PLANTED = "program.hlo.txt", "planted.hlo.txt"
TOPOLOGY = "a3"
"""The only target in MaxText's table that uses the devices which exist on this machine (``jax.devices()``)."""
AXIS_NAMES = {
    "expert": "ep",
    "data": "dp",
    "stage": "pp",
    "tensor": "tp",
    "tensor_sequence": "sp",
    "context": "cp",
    "context_usp_ulysses": "ulysses",
}
"""Names that regbot uses for MaxText's mesh axes. All other axes keep MaxText's names, such as ``fsdp``."""

NO_RAGGED_CODE = re.compile(r"UNIMPLEMENTED: .*`ragged-all-to-all`")
"""XLA's error for the exchange of the sparse MoE path. XLA has then written the optimized program, and fails to make
CPU code from it."""
RAGGED = "the program is read before code is made from it, because XLA has no ragged all-to-all for CPUs"

_PROGRAM_FILE = re.compile(r"module_[0-9]+\.(?P<module>.+?)\.(?:[a-z0-9_]+_)?after_optimizations\.txt")


def run_request(request: Request) -> dict[str, Any]:
    """Compile the requested step and the planted program. Return the request's part of the raw record. Raises
    ContractError.
    """
    _check_request(request)
    regbot_keys.extend([*FORCED_KEYS, *OWNED_KEYS])
    folder = Path(request.record).parent
    dump = folder / "dump"
    # jax and MaxText read these variables while they are imported.
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["DECOUPLE_GCLOUD"] = "TRUE"  # MaxText then works without Google Cloud
    os.environ["XLA_FLAGS"] = (
        f'--xla_force_host_platform_device_count={request.world} --xla_dump_to="{dump}" --xla_dump_hlo_as_text'
    )
    try:
        package = find_checkout_package(request)
        jax, train_compile = _import_maxtext()
        config, mesh, patches = _compile(train_compile, compile_arguments(request, package, dump), request)
        maxtext_planted.compile_on(jax, mesh)
        move_program(dump, STEP, folder / PROGRAM)
        move_program(dump, f"jit_{maxtext_planted.NAME}", folder / PLANTED)
    finally:
        shutil.rmtree(dump, ignore_errors=True)
    return {
        "compiled": {
            "program": PROGRAM,
            "planted": PLANTED,
            "target": "cpu",
            "mesh": [{"name": AXIS_NAMES.get(name, name), "size": size} for name, size in _list_axes(mesh)],
            "config": record_config(config.get_keys()),
            # The imported MaxText is the checkout's, and another one may be installed.
            "software": module_versions(("maxtext", "jax", "jaxlib", "flax", "optax")),
            "patches": [
                f"the target {TOPOLOGY} has as many devices as were asked for: CPU devices that XLA makes up",
                *(f"{key}={value}" for key, value in FORCED_KEYS.items()),
                *patches,
            ],
            "warnings": list_warnings(request, config),
        },
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,  # Linux reports KiB
    }


def find_checkout_package(request: Request) -> Path:
    """Return the folder of the package ``maxtext`` that Python will import, without importing it.

    Python imports an installed MaxText if the checkout has none, or has no ``__init__.py`` in it, as before 30 April
    2026. Counts of the installed one would say nothing about the checkout. Raises ContractError.
    """
    root = Path(request.root).resolve()
    spec = importlib.util.find_spec(PACKAGE)
    locations = spec.submodule_search_locations if spec is not None else None
    folder: Any = Path(next(iter(locations))).resolve() if locations else None
    is_own = folder is not None and path_in_checkout(folder, root) is not None
    if is_own and (folder / ENTRY).is_file():
        return folder
    if is_own or any((root / entry).is_file() for entry in OLD_ENTRIES):
        raise refuse_revision(f"it has no maxtext/{ENTRY}, which compiles the train step since 20 February 2026")
    raise ContractError(
        "no_framework",
        f"Python imports maxtext from {folder or 'nowhere'}, which is not the checkout's code; set 'source_roots' of "
        "this workload to the folder that holds it, such as src, and uninstall MaxText from its 'python'",
    )


def _check_request(request: Request) -> None:
    refusals = (
        (request.mode != "static", "MaxText is compiled, not run; remove this workload's shapes from 'timed'"),
        (
            request.mlp != "moe",
            f"MaxText has no control with a {request.mlp} MLP instead of the MoE; choose another variant",
        ),
        (
            request.routing == "skewed",
            "a compiled program does not depend on the routing; choose a variant that is not skewed",
        ),
        (
            bool(request.dispatcher),
            f"dispatcher {request.dispatcher!r} cannot be set for MaxText; set MaxText's keys in 'config' instead",
        ),
        (
            request.world % request.ep > 0,
            f"EP {request.ep} does not divide {request.world} ranks; choose another --ep or --world",
        ),
    )
    for is_refused, message in refusals:
        if is_refused:
            raise ContractError("config", message)


def _import_maxtext() -> tuple[Any, Any]:
    """If a module or a name of MaxText itself is missing, the ImportError is raised as it is: the code under test
    causes it.
    """
    try:
        jax = importlib.import_module("jax")
        train_compile = importlib.import_module(ENTRY_MODULE)
    except ImportError as error:
        if (error.name or "").partition(".")[0] == PACKAGE:
            raise
        raise ContractError(
            "no_framework",
            f"MaxText cannot be imported: {error}; install requirements/maxtext.txt in this workload's 'python', or "
            "set it to an interpreter that has it",
        ) from error
    return jax, train_compile


def _compile(train_compile: Any, argv: list[str], request: Request) -> tuple[ResolvedConfig, Any, list[str]]:
    """Run ``main`` of MaxText's ``train_compile``. It returns neither configuration nor mesh, so both are recorded on
    the way. The last item has what differs from a compile for accelerators.
    """
    targets = importlib.import_module(TARGETS_MODULE).UserFacingNameToSystemCharacteristics
    targets[TOPOLOGY].devices_per_slice = request.world
    results: dict[str, Any] = {}
    initialize, get_mesh = train_compile.pyconfig.initialize, train_compile.get_topology_mesh

    def initialize_and_check(*args: Any, **kwargs: Any) -> Any:
        try:
            config = initialize(*args, **kwargs)
        except (SystemExit, ValueError, TypeError) as error:
            raise explain_refusal(error, request) from error
        check_shape(config, request)
        results["config"] = config
        return config

    def record_mesh(*args: Any, **kwargs: Any) -> Any:
        mesh = get_mesh(*args, **kwargs)
        sizes = dict(_list_axes(mesh))
        if mesh.devices.size != request.world or sizes.get("expert", 1) != request.ep:
            raise ContractError(
                "config", f"MaxText made the mesh {sizes}, not {request.world} ranks with EP {request.ep}"
            )
        results["mesh"] = mesh
        return mesh

    with (
        replaced(train_compile.pyconfig, "initialize", initialize_and_check),
        replaced(train_compile, "get_topology_mesh", record_mesh),
    ):
        try:
            train_compile.main(argv)
        except RuntimeError as error:
            if not NO_RAGGED_CODE.search(str(error)):
                raise
            return results["config"], results["mesh"], [RAGGED]
    return results["config"], results["mesh"], []


def _list_axes(mesh: Any) -> list[tuple[str, int]]:
    """Return the axes with a size above 1. Device numbers are row-major over them."""
    return [(str(name), int(size)) for name, size in mesh.shape.items() if size > 1]


def move_program(dump: Path, name: str, target: Path) -> None:
    """Move the text of the program ``name`` to the file ``target``. Raises ContractError if there is not one."""
    matches = ((path, _PROGRAM_FILE.fullmatch(path.name)) for path in sorted(dump.glob("*.txt")))
    paths = [path for path, match in matches if match is not None and match["module"] == name]
    if len(paths) != 1:
        raise ContractError("untraceable", f"{len(paths)} programs called {name} were compiled instead of one")
    paths[0].replace(target)
