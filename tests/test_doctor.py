"""What ``regbot doctor`` says of dispatchers that need a library: importable, usable, proven by a run, and why not."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regbot import doctor
from regbot.doctor import NOT_YET_RUN, Check, examine
from regbot.engines import Ended, Launch, LocalEngine

MISSING = {
    "importable": False, "version": "", "distributions": [], "usable": False, "buffer": "",
    "why": "deep_ep cannot be imported: AssertionError: set CUDA_HOME",
}  # fmt: skip
THERE = {
    "importable": True, "version": "2.1.0", "distributions": ["sgl-deep-ep"], "usable": True,
    "buffer": "ElasticBuffer", "why": "",
}  # fmt: skip


def _check(told: dict[str, Any]) -> Check:
    checks = doctor._dispatchers({"torch": "2.13.0", "dispatchers": {"deepep": told, "hybridep": MISSING}})
    return next(check for check in checks if check.name == "dispatcher deepep")


def test_a_library_that_cannot_be_imported_is_told_with_the_reason() -> None:
    check = _check(MISSING)
    assert check.detail == (
        "importable: no; usable: no (deep_ep cannot be imported: AssertionError: set CUDA_HOME); not yet run: checked "
        "against its published interface only, regbot has no run of it on a GPU on record"
    )
    assert check.fix == "ask for alltoall; a check that asks for this one is INVALID here (docs/dispatchers.md)"


def test_a_library_that_is_usable_is_still_not_called_proven() -> None:
    check = _check(THERE)
    assert check.ok is False
    assert check.detail == (
        f"importable: yes (deep_ep 2.1.0 of sgl-deep-ep); usable: yes (ElasticBuffer); {NOT_YET_RUN}"
    )
    assert check.fix == ""


def test_a_library_on_a_machine_without_gpus_is_importable_and_not_usable() -> None:
    why = "it runs on GPUs, and this run is on the CPU"
    check = _check(THERE | {"usable": False, "buffer": "", "why": why})
    assert check.detail == f"importable: yes (deep_ep 2.1.0 of sgl-deep-ep); usable: no ({why}); {NOT_YET_RUN}"


def test_without_torch_nothing_is_said_to_have_been_tried() -> None:
    checks = {check.name: check for check in doctor._dispatchers({"why": "no torch"})}
    assert "usable: no (needs torch)" in checks["dispatcher hybridep"].detail
    assert checks["dispatcher alltoall"].ok is False


class WithLibrary(LocalEngine):
    """The local engine, with a deep_ep of ours where guests look for one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, launch: Launch) -> Ended:
        return super().run(replace(launch, env={**launch.env, "PYTHONPATH": str(self.folder)}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "the import was ended by SIGSEGV"),
        ("__version__ = '2.1.0'\nclass Buffer: ...", "importable: yes (deep_ep 2.1.0); usable: no (deep_ep 2.1.0: it"),
    ],
)
def test_the_library_is_really_imported(source: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "deep_ep.py").write_text(source)
    checks = {check.name: check for check in examine(sys.executable, WithLibrary(tmp_path)).checks}
    assert expected in checks["dispatcher deepep"].detail
    assert checks["static ledger"].ok
