"""The linters of workflows and actions, as ``.ci/run`` calls them. A test is skipped where one is not installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.workflow_rules import ROOT


def linter(program: str, arguments: str, files: tuple[Path, ...], at: Path) -> "subprocess.CompletedProcess[str]":
    path = Path(sys.executable).parent / program
    if not path.exists():
        pytest.skip(f"there is no {program} beside {sys.executable}; it comes with regbot's extra dev")
    return subprocess.run([path, *arguments.split(), *files], capture_output=True, text=True, cwd=at)


def zizmor(*files: Path, at: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return linter("zizmor", "--offline --no-progress --persona auditor", files, at)


def actionlint(*files: Path, at: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return linter("actionlint", "-shellcheck= -pyflakes=", files, at)


def schema(*files: Path, at: Path = ROOT, name: str = "workflows") -> "subprocess.CompletedProcess[str]":
    return linter("check-jsonschema", f"--builtin-schema vendor.github-{name}", files, at)


def action_schema(*files: Path) -> "subprocess.CompletedProcess[str]":
    return schema(*files, name="actions")
