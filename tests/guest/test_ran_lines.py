"""Lines of functions of the checkout that ran and that did not, on Python versions that can tell."""

import subprocess
import sys
from pathlib import Path

import pytest

from regbot.engines.guest import guest_folder

MODULE = """\
LIMIT = 3


def used(flag):
    if flag:
        return LIMIT
    return 0


def unused():
    return 1
"""
SCRIPT = """\
import json, sys
from pathlib import Path

root = Path(sys.argv[1])
from regbot_guest.ran_lines import describe_lines, record_lines

record_lines(root)
sys.path.insert(0, str(root))
import layer

layer.used(True)
print(json.dumps(describe_lines(root)))
"""


def test_lines_that_ran_are_told_from_idle_ones(tmp_path: Path) -> None:
    (tmp_path / "layer.py").write_text(MODULE)
    if sys.version_info < (3, 12):
        pytest.skip("Python before 3.12 cannot report lines at no cost")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, env={"PYTHONPATH": str(guest_folder())}, capture_output=True, text=True, check=True)
    assert done.stdout == '{"layer.py": {"ran": [[5, 6]], "idle": [[4, 4], [7, 7], [10, 11]]}}\n'
