"""Guest code that misbehaves: each ends with a message a person can act on, and leaves no process behind.

Every fault is planted in a real layer and met by a real process.
"""

from functools import partial
from pathlib import Path

import pytest

from regbot.engines import LocalEngine
from regbot.records.run import Arm, Run
from regbot.workloads.guest import Checkout, Limits, Scratch, trace
from support.layers import GOOD_LAYER, layer_task, write_repository

slow = partial(pytest.param, marks=pytest.mark.slow)
ARM = Arm(name="head", revision="x", commit="a" * 40, tree="b" * 40)
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


def run(
    tmp_path: Path, layer: str, entry: str = "userpkg.moe:build_layer", timeout_s: float = 60, python: str = ""
) -> Run:
    root = write_repository(tmp_path / "repository", layer)
    task = layer_task(entry, timeout_s / 60, python)
    return trace(task, Checkout(ARM, root), LocalEngine(), Scratch(tmp_path / "scratch", LIMITS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise RuntimeError('no such kernel')", "RuntimeError: no such kernel (userpkg/moe.py:1 in <module>)"),
        slow("import a_package_that_is_not_here", "No module named 'a_package_that_is_not_here' (userpkg/moe.py:1"),
    ],
)
def test_a_crash_at_import_is_reported_with_file_and_line(tmp_path: Path, fault: str, reason: str) -> None:
    found = run(tmp_path, fault + "\n" + GOOD_LAYER)
    assert found.outcome == "crashed"
    assert reason in found.reason
    assert found.ledger is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "reason"),
    [
        slow("leave('{\"rank\": 0, ' + json.dumps(record)[1:])", "'rank' appears twice"),
        ("record['request'] = 'old'; leave(json.dumps(record))", "answers another request"),
        slow("os.symlink('/etc/passwd', request['record']); os._exit(0)", "cannot be read"),
        slow("leave('x' * 100_000_000)", "100,000,000 bytes|more into its record folder"),
    ],
)
def test_a_bad_record_is_not_used(tmp_path: Path, record: str, reason: str) -> None:
    found = run(tmp_path, WRITE_RECORD + record + "\n")
    assert found.outcome == "bad_record", found.reason
    assert any(part in found.reason for part in reason.split("|")), found.reason
    assert found.ledger is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "layer", "reason"),
    [
        (
            "userpkg.moe:build_layer",
            GOOD_LAYER.replace("def forward(self, x):", "def forward(self, x):\n        x.sum().long().item()"),
            "depends on real data",
        ),
        slow(
            "userpkg.moe:build_layer",
            GOOD_LAYER.replace(
                "        dist.all_to_all_single(out, x.contiguous(), group=group)",
                "        import threading\n"
                "        thread = threading.Thread(target=dist.all_to_all_single, args=(out, x.contiguous()),"
                " kwargs={'group': group})\n"
                "        thread.start(); thread.join()",
            ),
            "it cannot be counted (all_to_all_single from thread",
        ),
        slow(
            "userpkg.moe:build_layer",
            GOOD_LAYER.replace("    def forward(self, x):", "    @torch.compile\n    def forward(self, x):"),
            "torch.compile",
        ),
    ],
)
def test_what_cannot_be_traced_says_why_and_what_to_do(tmp_path: Path, entry: str, layer: str, reason: str) -> None:
    found = run(tmp_path, layer, entry)
    assert found.outcome == "refused", found.reason
    assert reason in found.reason
