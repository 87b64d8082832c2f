"""A node with one GPU, made of stand-ins: an interpreter whose ``cuda`` is the paper GPU, and an ``nvidia-smi``.

The interpreter is a program that runs this file: ``gpu_stand_in.py LIBRARY COMMAND...``. Its processes are real ranks
for the guest. Events have the times of the host's clock, and the process groups have no peers.
"""

import os
import runpy
import sys
import time
import types
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

NVIDIA_SMI = """#!/bin/sh
case "$*" in
*noheader*) echo "NVIDIA H200, 575.57.08" ;;
*) printf 'index, name, driver_version\\n0, NVIDIA H200, 575.57.08\\n' ;;
esac
"""


def write_stand_ins(folder: Path, library: Path) -> Path:
    """Write ``python`` and ``nvidia-smi`` to ``folder``, and return the folder. ``library`` is the paper GPU's."""
    folder.mkdir(exist_ok=True)
    programs = {
        "python": f'#!/bin/sh\nPYTHON_EXEC="$0" exec {sys.executable} {Path(__file__).resolve()} {library} "$@"\n',
        "nvidia-smi": NVIDIA_SMI,
    }
    for name, text in programs.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


def main() -> None:
    library, *command = sys.argv[1:]
    if command[0] == "-u":  # torch's launcher adds it
        command = command[1:]
    if command[0] == "-m":  # the launcher itself, whose ranks run this file again
        os.execv(sys.executable, [sys.executable, *command])
    os._exit(run(Path(library), command))


def run(library: Path, command: list[str]) -> int:
    """Run a program on the paper GPU, and return its exit code."""
    sys.path.insert(0, os.environ.get("PYTHONPATH", "") or command[0])
    from regbot_guest import paper_library
    from regbot_guest.paper.loading import install

    paper_library.find_loaded_library = lambda: ""
    install(library)
    import torch._dynamo  # before the stand-in for triton, which lacks what dynamo looks up in it

    from regbot_guest.paper.groups import rank_zero_of
    from regbot_guest.paper.streams import PaperEvent

    torch.version.cuda = "13.0"
    PaperEvent.record = lambda event, stream=None: setattr(event, "host_s", time.perf_counter())  # type: ignore[method-assign,misc,assignment]
    PaperEvent.elapsed_time = lambda event, end: 1000 * (end.host_s - event.host_s)  # type: ignore[method-assign,misc,attr-defined]
    sys.modules["triton"], sys.modules["triton.language"] = make_triton()
    sys.argv = command
    sys.path.insert(0, str(Path(command[0]).parent))
    try:
        with rank_zero_of(int(os.environ["WORLD_SIZE"])) if "WORLD_SIZE" in os.environ else nullcontext():
            runpy.run_path(command[0], run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def make_triton() -> tuple[types.ModuleType, types.ModuleType]:
    """Return stand-ins for triton and its language. Their kernels compute nothing, as on a paper GPU."""

    class Kernel:
        def __init__(self, _: Callable[..., Any]) -> None: ...

        def __getitem__(self, _: Any) -> Callable[..., None]:
            return lambda *arguments, **options: None

    triton, language = types.ModuleType("triton"), types.ModuleType("triton.language")
    vars(triton).update(jit=Kernel, language=language)
    vars(language).update(constexpr=int)
    return triton, language


if __name__ == "__main__":
    main()
