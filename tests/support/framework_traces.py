"""Traces of installed training frameworks, each made once per test run and kept by its name."""

import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from regbot.engines import LocalEngine
from regbot.records.config import Workload
from regbot.records.files import read_record, write_record
from regbot.records.ledger import Ledger
from regbot.records.run import Arm, Run
from regbot.workloads.guest import Checkout, Limits, Scratch, trace
from regbot.workloads.shapes import load_shape
from regbot.workloads.task import Task, single_task
from support.guest_runs import Shared

ARM = Arm(name="head", revision="x", commit="a" * 40, tree="b" * 40)
Edit = tuple[str, str, str]
"""File, its original text, and the replacement."""
Sources = Callable[[Path], None]
"""Writes a checkout."""


def make_task(
    adapter: str, python: str, shape: str, variant: str, world: int, ep: int, geometry: dict[str, Any], **changes: Any
) -> Task:
    workload = Workload(adapter=adapter, python=python, shapes=[shape], variant=variant, **changes)
    chosen = single_task(adapter, workload, load_shape(shape), "ep", world, ep)
    numbers = chosen.variant.geometry.model_copy(update=geometry)
    return replace(chosen, variant=chosen.variant.model_copy(update={"geometry": numbers}))


def trace_once(shared: Shared, name: str, task: Task, sources: Sources, paper: Path | None = None) -> Run:
    """Trace the checkout that ``sources`` writes. ``name`` is that of the folder."""

    def make(folder: Path) -> None:
        root = folder / "checkout"
        root.mkdir()
        sources(root)
        scratch = Scratch(folder / "scratch", Limits())
        write_record(folder / "run.json", trace(task, Checkout(ARM, root), LocalEngine(), scratch, paper=paper))
        shutil.rmtree(root)

    return read_record(shared(name, make) / "run.json", Run)


def ledger_of(run: Run) -> Ledger:
    assert (run.outcome, run.reason) == ("ok", ""), run.log_tail
    assert run.ledger is not None
    assert run.ledger.liveness is not None
    assert run.ledger.liveness.proven
    return run.ledger


def copy_package(python: str, package: str, target: Path, edits: Iterable[Edit] = ()) -> None:
    """Copy a package that ``python`` has, with ``edits``, to the folder ``target``."""
    code = f"import importlib.util; print(importlib.util.find_spec({package!r}).submodule_search_locations[0])"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    shutil.copytree(found.stdout.strip(), target, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in edits:
        text = (target / file).read_text(encoding="utf-8")
        assert old in text, f"{file} has no {old!r}"
        (target / file).write_text(text.replace(old, new), encoding="utf-8")
