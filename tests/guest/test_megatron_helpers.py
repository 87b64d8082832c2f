"""Megatron compiles its dataset helpers when it starts, and exits without a reason if pybind11 is missing."""

import importlib.util
from pathlib import Path

import pytest

from support.guest_runs import TINY, answer, ask, run_together


@pytest.mark.skipif(importlib.util.find_spec("pybind11") is not None, reason="pybind11 is installed")
def test_a_missing_pybind11_is_named_before_megatron_starts(tmp_path: Path, paper_library: Path) -> None:
    (tmp_path / "megatron/core/datasets").mkdir(parents=True)
    (tmp_path / "megatron/core/datasets/Makefile").write_text("default:\n")
    (tmp_path / "pretrain_gpt.py").write_text("raise SystemExit(1)\n")
    settings = {"geometry": TINY, "adapter": "megatron", "program": "pretrain_gpt.py", "source_roots": ["."]}
    run_together([ask(tmp_path, "trace", paper=str(paper_library), **settings)])
    refusal = answer(tmp_path, "trace")["refusal"]
    assert refusal["kind"] == "no_framework"
    assert "compiles its dataset helpers with pybind11" in refusal["message"]
