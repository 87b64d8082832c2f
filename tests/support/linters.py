"""The linters of workflows and actions, as ``.ci/run`` calls them. A test is skipped where one is not installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.workflow_rules import ROOT


def linter(program: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    path = Path(sys.executable).parent / program
    if not path.exists():
        pytest.skip(f"there is no {program} beside {sys.executable}; it comes with regbot's extra dev")
    return subprocess.run([path, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT)


def zizmor(*files: Path) -> "subprocess.CompletedProcess[str]":
    return linter("zizmor", "--offline", "--no-progress", "--persona", "auditor", *files)


def actionlint(*files: Path) -> "subprocess.CompletedProcess[str]":
    return linter("actionlint", "-shellcheck=", "-pyflakes=", *files)


def schema(*files: Path) -> "subprocess.CompletedProcess[str]":
    return linter("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *files)


def action_schema(*files: Path) -> "subprocess.CompletedProcess[str]":
    return linter("check-jsonschema", "--builtin-schema", "vendor.github-actions", *files)
