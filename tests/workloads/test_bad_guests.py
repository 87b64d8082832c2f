"""Traces whose code under test writes the record itself. What else a layer does wrong is in ``guest/test_contract.py``
and ``guest/test_crash.py``.
"""

from pathlib import Path

import pytest

from regbot.engines import LocalEngine
from regbot.workloads.guest import Checkout, Limits, Scratch, trace
from support.layers import ARM, layer_task, write_repository

LIMITS = Limits(max_output_bytes=64 * 1024, max_record_bytes=4 * 2**20)

WRITE_RECORD = """
import json, os, sys
request = json.load(open(sys.argv[-1]))
record = {"schema": "regbot/raw-run@1", "request": request["request"], "workload": request["workload"],
          "variant": request["variant"], "rank": 0}
def leave(text):
    with open(request["record"], "w") as file:
        file.write(text)
    os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ("leave('{\"rank\": 0, ' + json.dumps(record)[1:])", "'rank' appears twice"),
        ("record['request'] = 'old'; leave(json.dumps(record))", "answers another request"),
        ("os.symlink('/etc/passwd', request['record']); os._exit(0)", "cannot be read"),
        ("leave('x' * 100_000_000)", "100,000,000 bytes|more into its record folder"),
    ],
)
def test_a_bad_record_is_not_used(tmp_path: Path, record: str, reason: str) -> None:
    root = write_repository(tmp_path / "repository", f"{WRITE_RECORD}{record}\n")
    run = trace(layer_task(), Checkout(ARM, root), LocalEngine(), Scratch(tmp_path / "scratch", LIMITS))
    assert run.outcome == "bad_record", run.reason
    assert any(part in run.reason for part in reason.split("|")), run.reason
    assert run.ledger is None
