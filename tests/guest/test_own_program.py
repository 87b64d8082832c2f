"""A framework's own training program on the paper GPU: what is counted, and what is refused by name.

The program in ``own_program/`` is small and has the names of Megatron-LM's. It is copied to a checkout for each test.
"""

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from regbot.engines import LocalEngine
from regbot.records.run import Run
from regbot.workloads.guest import Checkout, Limits, Scratch
from regbot.workloads.guest import trace as run_trace
from support.framework_traces import make_task
from support.guest_runs import MIXTRAL, TINY, answer, ask, run_guest
from support.judged_heads import judge_head
from support.layers import ARM, replace_text

SOURCE = Path(__file__).parent / "own_program"
WORLD, EP, LAYERS = 8, 4, 2
GEOMETRY = {**TINY, "layers": LAYERS}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    shutil.copytree(SOURCE, root, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def trace(root: Path, library: Path, **changes: Any) -> dict[str, Any]:
    """Return the record of one trace of the program in ``root``."""
    settings = {"root": str(root), "adapter": "megatron", "program": "pretrain_gpt.py", "dispatcher": "alltoall"}
    mesh: dict[str, Any] = {"geometry": GEOMETRY, "world": WORLD, "ep": EP}
    done = run_guest(ask(root.parent, "own", MIXTRAL, **{**settings, **mesh, "paper": str(library), **changes}))
    assert (root.parent / "own.rank0.json").exists(), done.stderr[-3000:]
    return answer(root.parent, "own")


def trace_as_check(root: Path, library: Path) -> Run:
    """Return the run of one trace of the program in ``root``, as a check makes it."""
    program = {"program": "pretrain_gpt.py", "timed": [], "dispatcher": "alltoall"}
    task = make_task("megatron", "", MIXTRAL, "cpu", WORLD, EP, GEOMETRY, **program)
    return run_trace(
        task, Checkout(ARM, root), LocalEngine(), Scratch(root.parent / "scratch", Limits()), paper=library
    )


def exchanges(record: dict[str, Any]) -> dict[tuple[str, str, str, str], int]:
    """Calls by kind, axis, phase and library."""
    assert "refusal" not in record, record["refusal"]
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for entry in record["ledger"]["entries"]:
        counts[entry["kind"], entry["axis"], entry["phase"], entry["via"]] += entry["count"]
    return dict(counts)


def test_one_step_of_the_program_is_counted(checkout: Path, paper_library: Path) -> None:
    record = trace(checkout, paper_library)
    assert exchanges(record) == {
        ("all_to_all", "ep", "forward", "fake"): 2 * LAYERS,
        ("all_to_all", "ep", "backward", "fake"): 2 * LAYERS - 1,  # nobody needs the gradient of the first input
        ("all_reduce", "dp", "optimizer", "fake"): 2 * LAYERS,
    }
    ledger = record["ledger"]
    assert {axis: entry["size"] for axis, entry in ledger["axes"].items()} == {"ep": EP, "dp": WORLD}
    assert ledger["liveness"]["planted"] == ledger["liveness"]["seen"] > 0
    assert {entry["where"] for entry in ledger["entries"] if entry["axis"] == "ep"} == {"layers.0.mlp", "layers.1.mlp"}
    assert ledger["config"]["num_layers"] == LAYERS
    assert record["backends"]["dispatcher"]["executed"] == "alltoall"
    assert record["ledger"]["program"]["peak_bytes"] > 0


@pytest.mark.skipif(
    shutil.which("nvcc") is not None or "CUDA_HOME" in os.environ or Path("/usr/local/cuda").exists(),
    reason="this machine has a CUDA toolkit",
)
def test_a_release_that_asks_for_nvcc_starts_without_it(checkout: Path, paper_library: Path) -> None:
    legacy = checkout / "megatron" / "legacy"
    legacy.mkdir()
    (legacy / "fused_kernels.py").write_text("def load(args):\n    raise TypeError('there is no nvcc')\n")
    replace_text(
        checkout / "pretrain_gpt.py", "set_args(arguments)\n",
        "set_args(arguments)\nfrom megatron.legacy import fused_kernels\nfused_kernels.load(arguments)\n",
    )  # fmt: skip
    record = trace(checkout, paper_library)
    assert exchanges(record)
    assert any("asks nvcc for its version" in patch for patch in record["ledger"]["patches"])


@pytest.mark.slow
def test_an_unknown_flag_of_the_user_is_named(checkout: Path, paper_library: Path) -> None:
    refusal = trace(checkout, paper_library, config={"moe-router-type": "fp32"})["refusal"]
    assert refusal["kind"] == "config"
    expected = "pretrain_gpt.py refused its command line: unrecognized arguments: --moe-router-type fp32"
    assert refusal["message"] == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        (
            "pretrain_gpt.py",
            '"moe-router-dtype"',
            '"moe-router-precision"',
            "pretrain_gpt.py does not accept --moe-router-dtype, which regbot sets, as before: unrecognized arguments",
        ),
        (
            "pretrain_gpt.py",
            'parser.add_argument("--train-iters", type=int)',
            'parser.add_argument("--train-iters", choices=["all"])',
            "pretrain_gpt.py does not accept --train-iters, which regbot sets, as before: argument --train-iters",
        ),
        (
            "megatron/training/training.py",
            "train_step",
            "run_one_step",
            "there is no megatron.training.training.train_step",
        ),
    ],
    ids=["flag", "value", "function"],
)
def test_what_regbot_needs_and_the_revision_lacks_is_invalid_by_its_name(
    file: str, old: str, new: str, words: str, checkout: Path, paper_library: Path
) -> None:
    replace_text(checkout / file, old, new)
    run = trace_as_check(checkout, paper_library)
    assert run.outcome == "refused"
    validity = judge_head(run)
    assert validity.status == "INVALID"
    assert f"regbot does not support this revision: {words}" in validity.reasons[0]


@pytest.mark.slow
def test_a_program_that_changes_a_number_of_the_shape_is_refused(checkout: Path, paper_library: Path) -> None:
    replace_text(checkout / "pretrain_gpt.py", "set_args(arguments)", "arguments.num_layers += 1\nset_args(arguments)")
    refusal = trace(checkout, paper_library)["refusal"]
    assert refusal["kind"] == "shape"
    assert f"num_layers is {LAYERS + 1}, not {LAYERS}" in refusal["message"]


@pytest.mark.slow
def test_an_error_that_names_a_flag_of_regbot_reports_the_flag(checkout: Path, paper_library: Path) -> None:
    refused = "raise ValueError('--overlap-grad-reduce is gone')\n        order = chosen"
    replace_text(checkout / "megatron/training/model.py", "order = chosen", refused)
    assert trace(checkout, paper_library)["refusal"]["crash"]["keys"] == ["overlap_grad_reduce"]
    by_user = trace(checkout, paper_library, config={"overlap_grad_reduce": False})
    assert by_user["refusal"]["crash"]["keys"] == []
