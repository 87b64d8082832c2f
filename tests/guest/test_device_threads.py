"""Real ranks on the paper GPU: as on a GPU, backward runs on autograd's device thread."""

from pathlib import Path
from typing import Any

import pytest

from support.guest_runs import MIXTRAL, answer, ask, rows, run_guest
from support.layers import GOOD_LAYER, write_repository
from support.paper_runs import read_answer

CALL = "dist.all_to_all_single(out, x.contiguous(), group=group)"
THREAD = (
    "import threading\n"
    "        thread = threading.Thread(target=dist.all_to_all_single, args=(out, x.contiguous(), None, None, group))\n"
    "        thread.start(); thread.join()"
)
ENTRY: dict[str, Any] = {"entry": "userpkg.moe:build_layer", "dtype": "bfloat16", "device": "cuda"}


def test_collectives_of_the_device_thread_are_counted(tmp_path: Path, paper_library: Path) -> None:
    root = str(write_repository(tmp_path / "repository"))
    traced = ask(tmp_path, "traced", MIXTRAL, root=root, paper=str(paper_library), **ENTRY)
    assert run_guest(traced).returncode == 0
    timed = ask(tmp_path, "timed", MIXTRAL, root=root, mode="timed", warmup=1, **ENTRY)
    (part,) = read_answer(paper_library, "ranks.py", timed)
    expected = rows(answer(tmp_path, "traced"))
    assert ("all_to_all", "ep", 2, "bfloat16", "backward", "payload", "layers.0.moe") in expected
    assert rows(part) == expected


def test_collectives_of_a_thread_that_the_layer_starts_are_refused(tmp_path: Path, paper_library: Path) -> None:
    root = str(write_repository(tmp_path / "repository", GOOD_LAYER.replace(CALL, THREAD)))
    timed = ask(tmp_path, "timed", MIXTRAL, root=root, mode="timed", warmup=1, **ENTRY)
    (part,) = read_answer(paper_library, "ranks.py", timed)
    assert part["refusal"]["kind"] == "liveness"
    assert "all_to_all_single from thread" in part["refusal"]["message"]


@pytest.mark.slow
def test_a_timed_run_waits_for_its_device_at_the_marks_only(tmp_path: Path, paper_library: Path) -> None:
    root = str(write_repository(tmp_path / "repository"))
    timed = ask(tmp_path, "timed", MIXTRAL, root=root, mode="timed", steps=4, warmup=2, **ENTRY)
    (part,) = read_answer(paper_library, "ranks.py", timed)
    assert part["observed"]["marks_at_waits"] == [[], ["steps.begun"], ["steps.begun", "steps.steady"]]
    assert part["observed"]["device_ids"] == ["cuda:0"], "NCCL connects at once, on the rank's own GPU"
    assert part["observed"]["frozen_in_steps"] == [True] * 4, "the collector of cycles leaves the model alone"
    assert not part["observed"]["frozen_at_end"]
