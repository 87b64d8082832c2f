"""MaxText: its own ahead-of-time compilation (``train_compile``) of one train step for CPU devices that XLA makes up.

No step runs, no weight exists: XLA partitions the program for as many devices as were asked for and writes down what it
compiled. That text is what is left behind, beside a planted program of known collectives that went the same way; the
trusted side counts in both. Nothing is counted here.

Two hooks into ``train_compile``, both of which only look: the resolved configuration is checked before anything is
compiled, and the mesh tells which devices each axis spans. Imports no torch: this interpreter may have none.
"""

import importlib
import importlib.util
import os
import re
import resource
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from regbot_guest.frameworks import maxtext_planted
from regbot_guest.frameworks.maxtext_config import FORCED, Refused, Resolved, arguments, check, complaint, flat
from regbot_guest.request import Request

__all__ = ["Refused", "work"]

STEP = "jit_train_step"
PROGRAM, PLANTED = "program.hlo.txt", "planted.hlo.txt"
TOPOLOGY = "a3"
"""The one target of MaxText's table that takes the devices that are there (``jax.devices()``) as they are."""
AXIS_WORDS = {
    "expert": "ep",
    "data": "dp",
    "stage": "pp",
    "tensor": "tp",
    "tensor_sequence": "sp",
    "context": "cp",
    "context_usp_ulysses": "ulysses",
}
"""MaxText's mesh axes in regbot's words; an axis that is not here keeps MaxText's name (``fsdp``)."""

_AFTER = re.compile(r"module_[0-9]+\.(.+?)\.(?:[a-z0-9_]+_)?after_optimizations\.txt")


def work(request: Request) -> dict[str, Any]:
    """The part of the raw record that was asked for: where the program's text lies, and what it is of."""
    _possible(request)
    folder = Path(request.record).parent
    dump = folder / "dump"
    seconds: dict[str, float] = {}
    _set_variables(dump, request.world)
    try:
        with _timed(seconds, "import"):
            package, jax, train_compile = _imported()
        with _timed(seconds, "compile"):
            config, mesh = _compiled(train_compile, arguments(request, Path(package), dump), request)
        with _timed(seconds, "planted"):
            maxtext_planted.compile_on(jax, mesh)
        keep(dump, STEP, folder / PROGRAM)
        keep(dump, f"jit_{maxtext_planted.NAME}", folder / PLANTED)
    finally:
        shutil.rmtree(dump, ignore_errors=True)
    return {
        "compiled": {
            "program": PROGRAM,
            "planted": PLANTED,
            "target": "cpu",
            "mesh": [{"name": AXIS_WORDS.get(name, name), "size": size} for name, size in _axes(mesh)],
            "config": flat(config.get_keys()),
            "software": _software(),
            "patches": [
                f"the target {TOPOLOGY} has as many devices as were asked for: CPU devices that XLA makes up",
                *(f"{key}={value}" for key, value in FORCED.items()),
            ],
            "warnings": [],
        },
        "phases_s": seconds,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _possible(request: Request) -> None:
    if request.mode != "static":
        raise Refused("config", "MaxText is compiled, not run; take this workload's shapes out of 'timed'")
    if request.mlp != "moe":
        raise Refused("config", f"MaxText has no {request.mlp} control of a shape; choose the variant without it")
    if request.routing == "skewed":
        raise Refused(
            "routing", "a compiled program is the same whatever the routing; choose the variant without skewed"
        )
    if request.dispatcher:
        raise Refused(
            "config", f"MaxText has no dispatcher {request.dispatcher!r} to choose; its keys go into 'config'"
        )
    if request.world % request.ep:
        raise Refused("config", f"EP {request.ep} does not divide {request.world} ranks; choose --ep and --world so")


def _set_variables(dump: Path, world: int) -> None:
    """Environment variables that jax and MaxText read once, when they are imported."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["DECOUPLE_GCLOUD"] = "TRUE"
    os.environ["XLA_FLAGS"] = (
        f'--xla_force_host_platform_device_count={world} --xla_dump_to="{dump}" --xla_dump_hlo_as_text'
    )


def _imported() -> tuple[str, Any, Any]:
    """MaxText's folder, jax, and the module that compiles. A package that is missing is no fault of the code under
    test; an error in MaxText itself is."""
    install = "install requirements/maxtext.txt there, or set 'python' of this workload to an interpreter that has it"
    found = importlib.util.find_spec("maxtext")
    if found is None or not found.submodule_search_locations:
        raise Refused("no_framework", f"there is no package maxtext in the source roots or installed; {install}")
    try:
        jax = importlib.import_module("jax")
        train_compile = importlib.import_module("maxtext.trainers.pre_train.train_compile")
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "maxtext":
            raise
        raise Refused("no_framework", f"MaxText cannot be imported: {error}; {install}") from error
    if lacking := [name for name in ("main", "pyconfig", "get_topology_mesh") if not hasattr(train_compile, name)]:
        raise Refused("untraceable", f"train_compile has no {', '.join(lacking)}; regbot knows that of MaxText 0.2.5")
    return next(iter(found.submodule_search_locations)), jax, train_compile


def _compiled(train_compile: Any, argv: list[str], request: Request) -> tuple[Resolved, Any]:
    """Runs MaxText's own ``main``; the configuration it resolved and the mesh it compiled for."""
    topologies = importlib.import_module("maxtext.utils.accelerator_to_spec_map").UserFacingNameToSystemCharacteristics
    topologies[TOPOLOGY].devices_per_slice = request.world
    found: dict[str, Any] = {}
    initialize, get_mesh = train_compile.pyconfig.initialize, train_compile.get_topology_mesh

    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            config = initialize(*args, **kwargs)
        except (SystemExit, ValueError, TypeError) as error:
            raise Refused("config", complaint(error)) from error
        check(config, request)
        found["config"] = config
        return config

    def seen(*args: Any, **kwargs: Any) -> Any:
        mesh = get_mesh(*args, **kwargs)
        sizes = dict(_axes(mesh))
        if mesh.devices.size != request.world or sizes.get("expert", 1) != request.ep:
            raise Refused("config", f"MaxText made the mesh {sizes}, not {request.world} ranks with EP {request.ep}")
        found["mesh"] = mesh
        return mesh

    with _replaced(train_compile.pyconfig, "initialize", checked), _replaced(train_compile, "get_topology_mesh", seen):
        train_compile.main(argv)
    return found["config"], found["mesh"]


def _axes(mesh: Any) -> list[tuple[str, int]]:
    """The axes that split anything, slowest first: device number is their row-major index."""
    return [(str(name), int(size)) for name, size in mesh.shape.items() if size > 1]


def keep(dump: Path, name: str, target: Path) -> None:
    """Move the optimized text of the module ``name`` out of the dump. Raises Refused unless there is exactly one."""
    texts = [(match[1], path) for path in sorted(dump.glob("*.txt")) if (match := _AFTER.fullmatch(path.name))]
    mine = [path for module, path in texts if module == name]
    if len(mine) != 1:
        modules = ", ".join(sorted({module for module, _ in texts})[:20]) or "none at all"
        raise Refused(
            "untraceable", f"{len(mine)} programs called {name} were compiled, and there must be one; found: {modules}"
        )
    mine[0].replace(target)


def _software() -> dict[str, str]:
    """Versions by the modules that were imported; MaxText's may come from the checkout."""
    modules = {name: importlib.import_module(name) for name in ("maxtext", "jax", "jaxlib", "flax", "optax")}
    return {name: str(module.__version__) for name, module in modules.items() if hasattr(module, "__version__")}


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - start, 3)


@contextmanager
def _replaced(owner: ModuleType, name: str, by: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, by)
    try:
        yield
    finally:
        setattr(owner, name, original)
