"""``regbot doctor``: dispatchers that need a library, and the torch that it advises where static traces fail."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomllib

from regbot.cli.doctor import diagnosis as doctor
from regbot.cli.doctor.diagnosis import NOT_YET_RUN, Capability, examine, guest_checks
from regbot.engines import Launch, LaunchResult, LocalEngine
from regbot.workloads.framework_needs import TESTED_TORCH

MISSING = {
    "importable": False, "version": "", "distributions": [], "usable": False, "buffer": "",
    "why": "deep_ep cannot be imported: AssertionError: set CUDA_HOME",
}  # fmt: skip
USABLE = {
    "importable": True, "version": "2.1.0", "distributions": ["sgl-deep-ep"], "usable": True,
    "buffer": "ElasticBuffer", "why": "",
}  # fmt: skip


def _check(library: dict[str, Any]) -> Capability:
    checks = doctor.check_dispatchers({"torch": "2.13.0", "dispatchers": {"deepep": library, "hybridep": MISSING}})
    return next(check for check in checks if check.name == "dispatcher deepep")


def test_a_library_that_cannot_be_imported_is_reported_with_the_reason() -> None:
    check = _check(MISSING)
    assert check.detail == (
        "importable: no; usable: no (deep_ep cannot be imported: AssertionError: set CUDA_HOME); not yet run on a GPU: "
        "checked only against its published interface"
    )
    assert check.fix == "use alltoall; a check with this dispatcher is INVALID here (docs/frameworks.md)"


def test_a_usable_library_is_still_not_called_proven() -> None:
    check = _check(USABLE)
    assert check.ok is False
    assert check.detail == (
        f"importable: yes (deep_ep 2.1.0 of sgl-deep-ep); usable: yes (ElasticBuffer); {NOT_YET_RUN}"
    )
    assert check.fix == ""


def test_the_implementation_of_grouped_products_is_listed_or_why_it_fails() -> None:
    products = {
        "bfloat16": {"runs": True, "path": "sm90_kernel"},
        "float32": {"runs": False, "path": "loop_over_experts"},
        "float16": {"runs": False, "why": "CUDA error: unspecified launch failure"},
    }
    checks = doctor.guest_checks({"torch": "2.13.0", "python": "3.12", "grouped_mm": products}, "python")
    details = {check.name: (check.ok, check.detail) for check in checks if check.name.startswith("grouped GEMM")}
    assert details["grouped GEMM bfloat16"] == (True, "runs, forward and backward: sm90_kernel")
    assert details["grouped GEMM float32"] == (False, "does not run here; experts are computed one by one")
    assert details["grouped GEMM float16"] == (False, "CUDA error: unspecified launch failure")


REPOSITORY = Path(__file__).parents[3]


def test_the_advised_versions_of_torch_are_those_of_the_extra_and_of_the_tests() -> None:
    guest = {"torch": "2.8.0", "python": "3.11.7", "static": "RuntimeError: no fake backend"}
    (advice,) = (check.fix for check in guest_checks(guest, "python") if check.name == "static ledger")
    oldest, newest = TESTED_TORCH
    assert advice == f"use a torch from {oldest} to {newest}"
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"torch>={oldest}" in extras["smoke"]
    (tried,) = re.findall(r"versions=\((2[\d. ]+)\)", (REPOSITORY / ".ci" / "torches").read_text())
    newest_tried, *_, oldest_tried = tried.split()
    assert (oldest_tried, newest_tried.rpartition(".")[0]) == (f"{oldest}.0", newest)
    page = " ".join((REPOSITORY / "docs" / "paper-gpu.md").read_text().split())
    assert f"The tests of the paper GPU pass on torch {oldest}.0," in page
    assert f"requires {oldest} or newer" in page
    assert f" and {newest_tried}. No older version passes them" in page


class WithLibrary(LocalEngine):
    """The local engine, with the test's deep_ep on the path of guests."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def run(self, launch: Launch) -> LaunchResult:
        return super().run(replace(launch, env={**launch.env, "PYTHONPATH": str(self.folder)}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "the import ended the process with exit code -11"),
        ("__version__ = '2.1.0'\nclass Buffer: ...", "importable: yes (deep_ep 2.1.0); usable: no (deep_ep 2.1.0: it"),
    ],
)
def test_the_library_is_really_imported(source: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "deep_ep.py").write_text(source)
    checks = {check.name: check for check in examine(sys.executable, WithLibrary(tmp_path)).checks}
    assert expected in checks["dispatcher deepep"].detail
    assert checks["static ledger"].ok
