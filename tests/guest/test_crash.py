"""Whose fault a crash of a trace is: real guests crash, and the judge decides from their records.

``small_torchtitan/`` is a training program with torchtitan's names. Some tests repeat what real pull requests did. They
were right, and regbot's own code made the trace crash.
"""

import shutil
from pathlib import Path

import pytest

from regbot.engines import LocalEngine
from regbot.judge import judge
from regbot.records.config import Config, Workload
from regbot.records.run import Run
from regbot.records.verdict import Validity
from regbot.workloads.guest import Checkout, Scratch, trace
from regbot.workloads.shapes import load_shape
from regbot.workloads.task import single_task
from support.judge_cases import A2A, BASE, HEAD
from support.judged_heads import judge_head
from support.layers import BUILD, GOOD_LAYER, layer_task, replace_text, write_repository
from support.ledger_builder import WORKLOAD, smoke_run, smoke_session

SMALL_TORCHTITAN = Path(__file__).parent / "small_torchtitan"
TRAINER, CONFIG = "torchtitan/trainer.py", "torchtitan/config.py"
REGISTRY = "torchtitan/models/qwen3/config_registry.py"


def judge_crash(run: Run, changed_files: list[str] | None) -> Validity:
    """Return the validity of a check whose head crashed twice as ``run`` did, and whose base ran."""
    attempts = [run.model_copy(update={"workload": WORKLOAD, "attempt": attempt}) for attempt in (1, 2)]
    session = smoke_session(smoke_run(BASE, A2A), *attempts)
    header = session.header.model_copy(update={"changed_files": changed_files})
    (workload,) = judge(session.model_copy(update={"header": header}), Config()).workloads
    return workload.validity


def trace_torchtitan(folder: Path, library: Path, *edits: tuple[str, str, str], recipe: str = "qwen3_moe_debug") -> Run:
    """Trace the small torchtitan after ``edits``: each a file, a text in it, and the text that replaces it."""
    root = folder / "checkout"
    shutil.copytree(SMALL_TORCHTITAN, root, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in edits:
        replace_text(root / file, old, new)
    workload = Workload(adapter="torchtitan", shapes=["mixtral-8x7b"], variant="cpu", recipe=recipe)
    task = single_task("titan", workload, load_shape("mixtral-8x7b"), "ep", 2, 2)
    return trace(task, Checkout(HEAD, root), LocalEngine(), Scratch(folder / "scratch"), paper=library)


@pytest.mark.slow
def test_a_recipe_is_found_in_the_module_that_defines_it(tmp_path: Path, paper_library: Path) -> None:
    renamed = (REGISTRY, "qwen3_moe_debug", "moonlight")  # its name does not begin with the module's
    run = trace_torchtitan(tmp_path, paper_library, renamed, recipe="moonlight")
    assert run.outcome == "ok", run.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edits", "recipe", "named"),
    [
        (
            [(CONFIG, "moe_force_load_balance", "force_moe_balance")],
            "qwen3_moe_debug",
            "no key 'debug.moe_force_load_balance', which regbot sets; the nearest keys are debug.force_moe_balance",
        ),
        (
            [(CONFIG, "    seq_len: int = 16", "    context: int = 16"), (REGISTRY, "moe_debug", "30b_a3b")],
            "",
            "training configuration has neither seq_len and local_batch_size",
        ),
    ],
    ids=["key", "fields of a shape"],
)
def test_what_regbot_needs_and_the_head_moved_is_invalid_by_its_name(
    edits: list[tuple[str, str, str]], recipe: str, named: str, tmp_path: Path, paper_library: Path
) -> None:
    """pytorch/torchtitan #4121 also renamed the fields that hold the numbers of a shape."""
    run = trace_torchtitan(tmp_path, paper_library, *edits, recipe=recipe)
    assert run.outcome == "refused"
    validity = judge_head(run)
    assert validity.status == "INVALID"
    assert "regbot does not support this revision" in validity.reasons[0]
    assert named in validity.reasons[0]


@pytest.mark.slow
def test_a_package_that_a_recipe_imports_and_nobody_installed_is_the_refusal(
    tmp_path: Path, paper_library: Path
) -> None:
    imports = (REGISTRY, "from torchtitan.config", "import vision_of_nobody\nfrom torchtitan.config")
    run = trace_torchtitan(tmp_path, paper_library, imports)
    assert run.outcome == "refused"
    assert run.reason is not None
    assert "cannot be imported: No module named 'vision_of_nobody'; install" in run.reason


CALL = "        return Exchange.apply(F"
CRASHES = {
    "an error inside of torch": (
        GOOD_LAYER.replace(BUILD, f"torch.nn.utils.parameters_to_vector([])\n    {BUILD}"),
        "INVALID",
        "the error was raised in torch/_refs/__init__.py:",
        "called from userpkg/moe.py:",
    ),
    "an error of a changed file": (
        GOOD_LAYER.replace(CALL, "        raise ValueError('no such kernel')"),
        "FAIL",
        "",
        "userpkg/moe.py",
    ),
    "an error in a call that regbot only counts": (
        GOOD_LAYER.replace(CALL, f"        dist.all_to_all_single(torch.empty_like(x), x, ['1'], ['1'])\n{CALL}"),
        "INVALID",
        "the error was raised in torch/",
        "called from userpkg/moe.py:29 in forward",
    ),
    "a process that dies without a traceback": (
        "import os; os.kill(os.getpid(), 11)\n",
        "INVALID",
        "the process left no traceback",
        "killed by signal 11",
    ),
}
"""By cause of the crash: the layer, the status, the beginning of the reason, and other words of it."""


@pytest.mark.slow
@pytest.mark.parametrize("cause", CRASHES)
def test_only_an_error_of_a_changed_file_is_the_heads_fault(cause: str, tmp_path: Path) -> None:
    layer, status, beginning, words = CRASHES[cause]
    root = write_repository(tmp_path / "checkout", layer)
    run = trace(layer_task(), Checkout(HEAD, root), LocalEngine(), Scratch(tmp_path / "scratch"))
    assert run.outcome == "crashed", run.reason
    validity = judge_crash(run, ["README.md", "userpkg/moe.py"])
    assert validity.status == status, validity.reasons
    assert validity.reasons[0].startswith(beginning)
    assert words in validity.reasons[0]
    assert "regbot_guest" not in validity.reasons[0]


@pytest.mark.slow
def test_a_key_that_regbot_sets_and_the_head_refuses_is_not_the_heads_fault(
    tmp_path: Path, paper_library: Path
) -> None:
    refuse = "raise ValueError('disable_cuda_graphs is gone')"
    run = trace_torchtitan(tmp_path, paper_library, (TRAINER, "        pass", f"        {refuse}"))
    validity = judge_crash(run, [TRAINER])
    assert validity.status == "INVALID"
    assert "the error names training.disable_cuda_graphs, which regbot sets" in validity.reasons[0]
