"""Building the paper GPU: once for each torch, whole or not at all, and never by code under test."""

import stat
import sys
from pathlib import Path

import pytest

from regbot.workloads.paper import library_for
from regbot.workloads.paper.build import PaperLibrary

COMPILER = """#!{python}
import pathlib, sys
target = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
with open({log!r}, "a") as log:
    log.write("compiled\\n")
target.write_bytes(b"library " * 1000)
"""


@pytest.fixture(autouse=True)
def _no_shared_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REGBOT_PAPER_CACHE", raising=False)


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter of the node, whose torch has one header and two empty libraries."""
    torch, program = tmp_path / "torch", tmp_path / "python"
    for name in ("lib/libc10.so", "lib/libtorch_cpu.so", "include/ATen/ATen.h"):
        file = torch / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"the content of {name}")
    program.write_text(f"#!/bin/sh\necho {torch / '__init__.py'}\n")
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of a compiler that writes what it is to write and compiles nothing: a line for each start."""
    log, program = tmp_path / "compiler.log", tmp_path / "c++"
    program.write_text(COMPILER.format(python=sys.executable, log=str(log)))
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    return log


def _build(python: str, cache: Path) -> PaperLibrary:
    return library_for(python, cache, cache / "logs")


def _times(log: Path) -> int:
    return len(log.read_text().splitlines())


def test_a_torch_is_built_for_once(python: str, compiled: Path, tmp_path: Path) -> None:
    first, second = _build(python, tmp_path / "cache"), _build(python, tmp_path / "cache")
    assert first.path == second.path
    assert (first.built_s is not None, second.built_s) == (True, None)
    assert _times(compiled) == 1
    assert not first.path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)


def test_a_torch_whose_headers_changed_is_another_one(python: str, compiled: Path, tmp_path: Path) -> None:
    first = _build(python, tmp_path / "cache")
    header = tmp_path / "torch" / "include" / "ATen" / "ATen.h"
    header.write_text("another content")
    assert _build(python, tmp_path / "cache").path != first.path
    header.write_text("the content of include/ATen/ATen.h")  # as before, at another time
    assert _build(python, tmp_path / "cache").path == first.path
    assert _times(compiled) == 2


def test_a_poisoned_entry_is_built_anew(python: str, compiled: Path, tmp_path: Path) -> None:
    library = _build(python, tmp_path / "cache")
    library.path.chmod(0o644)
    library.path.write_bytes(b"poison")
    again = _build(python, tmp_path / "cache")
    assert again.path.read_bytes().startswith(b"library ")
    assert again.built_s is not None
    assert _times(compiled) == 2
