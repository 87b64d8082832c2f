"""Checkouts that ask for a GPU when they are imported, or have a module ``torch`` of their own."""

from pathlib import Path

import pytest

from support.guest_runs import MIXTRAL, TINY, answer, ask, counts, run_guest
from support.layers import GOOD_LAYER, write_repository

FORWARD = "    def forward(self, x):\n"
ASKING_LAYER = GOOD_LAYER.replace(
    "class Exchange", "ON_GPU = torch.cuda.is_available()\n\n\nclass Exchange", 1
).replace(FORWARD, f"{FORWARD}        if not ON_GPU:\n            dist.all_reduce(torch.ones(1), group=self.group)\n")
"""A layer that chooses its program by an answer from the time of its import."""


def request_trace(root: Path, name: str, paper: Path | None) -> Path:
    """Write the request of a trace of the layer in ``root``, on the library ``paper`` or as a CPU program."""
    settings = {"root": str(root), "entry": "userpkg.moe:build_layer", "paper": str(paper or "")}
    return ask(root.parent, name, MIXTRAL, "cpu", geometry=TINY, **settings)


@pytest.mark.slow
def test_a_module_that_asks_for_a_gpu_at_import_runs_its_program_for_gpus(tmp_path: Path, paper_library: Path) -> None:
    """A folder ``torch`` without __init__.py lies beside it, and hides nothing."""
    root = write_repository(tmp_path / "repository", ASKING_LAYER)
    (root / "torch").mkdir()
    (root / "torch" / "nn.pyi").touch()
    done = run_guest(request_trace(root, "trace", paper_library))
    assert done.returncode == 0, done.stderr
    kinds = counts(answer(tmp_path, "trace"))
    assert (kinds["all_to_all"], kinds.get("all_reduce", 0)) == (4, 0)


@pytest.mark.parametrize("stub", ["torch/__init__.py", "torch.py"])
@pytest.mark.parametrize("on_paper", [True, False], ids=["paper", "cpu"])
def test_a_torch_of_the_checkout_is_refused_by_name(
    tmp_path: Path, paper_library: Path, stub: str, on_paper: bool
) -> None:
    root = write_repository(tmp_path / "repository")
    (root / stub).parent.mkdir(exist_ok=True)
    (root / stub).write_text("__version__ = '0.0'\n")
    done = run_guest(request_trace(root, "trace", paper_library if on_paper else None))
    assert done.returncode == 10, done.stderr
    record = answer(tmp_path, "trace")
    assert record["refusal"]["kind"] == "no_torch"
    assert record["refusal"]["message"].startswith(f"{stub} in the checkout hides the installed torch; rename it")
    assert "ledger" not in record
