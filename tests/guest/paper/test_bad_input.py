"""Refusals of a paper GPU with their names and lines, and its answers to reads of unknown values."""

import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.guest_runs import MIXTRAL, Shared, ask, run_guest
from support.guest_runs import answer as record_of
from support.layers import GOOD_LAYER, write_repository
from support.paper_runs import read_answer, run_program

Answer = dict[str, Any]

CONDITION = "a condition that depends on real data was read"
REFUSED = {
    "an integer as a list": "copied to the host (Long[4])",
    "a condition": CONDITION,
    "isfinite of a row of a large mask": CONDITION,
    "comparison of masked floats": CONDITION,
    "a mask": "depends on real data",  # the words differ between versions of torch
    "no shape function": "aten::_masked_softmax has no shape function",
    "storage[i]": "the bytes of a storage were read or written (__getitem__)",
    "array interface": "__cuda_array_interface__",
}
ANSWERED = {
    "a float": 1.0,
    "floats": [1.0, 1.0, 1.0],
    "isfinite": True,
    "isfinite of one float": True,
    "isnan": False,
    "isinf": False,
    "comparisons with infinity": [False, False, True, True, False, True, True, True, False, False, False, True],
    "finite beside masks": [True, False, False],
    "offloaded is known": False,
    "aliases": [[9, 2, 3, 4], [2, 3, 4, 5], [1, 2, 3, 4], [0, 1, 2, 3]],
}
RAISED = {
    "two GPUs": "Expected all tensors to be on the same device",
    "a wrong assertion": "the assertion failed",
}
EXTENSION = 'extern "C" float first(const float* values) { return values[0]; }\n'
CALL = """\
import ctypes, sys, torch
first = ctypes.CDLL(sys.argv[1]).first
first.restype, first.argtypes = ctypes.c_float, [ctypes.c_void_p]
first(torch.randn(4, device="cuda").data_ptr())
"""


@pytest.fixture
def answer(shared: Shared, paper_library: Path) -> Answer:
    def make(folder: Path) -> None:
        (folder / "answer.json").write_text(json.dumps(read_answer(paper_library, "bad_input.py")))

    recorded: Answer = json.loads((shared("bad_input", make) / "answer.json").read_text())
    return recorded


@pytest.mark.slow
def test_unknown_values_and_bytes_are_refused_by_name(answer: Answer) -> None:
    for name, words in REFUSED.items():
        case = answer["cases"][name]
        assert case.get("error") == "Untraceable", (name, case)
        assert words in case["text"], (name, case)
        assert case["refused"] == 1, name


def test_an_unknown_integer_names_the_line_that_reads_it(answer: Answer) -> None:
    (refusal,) = answer["cases"]["an integer in a layer"]["refusals"]
    assert refusal.endswith(f"bad_input.py:{answer['line']} in forward")


def test_all_other_cases_return_an_answer(answer: Answer) -> None:
    assert {name: answer["cases"][name].get("answer", answer["cases"][name]) for name in ANSWERED} == ANSWERED
    assert not any(answer["cases"][name]["refused"] for name in ANSWERED)


def test_errors_of_a_real_gpu_are_errors_here(answer: Answer) -> None:
    for name, words in RAISED.items():
        assert words in answer["cases"][name].get("text", ""), (name, answer["cases"][name])


KINDS = {
    "was read and answered with 1.0": ["value"],
    "were copied to the host": ["value"],
    "(isfinite)": ["finite", "value"],
    "(isnan)": ["value"],
    "compared with infinity": ["finite"],
}


def test_the_kind_of_an_assumption_says_whether_it_can_decide_a_size(answer: Answer) -> None:
    """The flags of several floats can select some of them; the flag of one float cannot."""
    kinds = {words: [kind for note, kind in answer["notes"].items() if words in note] for words in KINDS}
    assert kinds == KINDS


@pytest.mark.slow
def test_an_extension_that_reads_raw_pointers_crashes_with_an_explanation(paper_library: Path, tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    assert compiler is not None
    (tmp_path / "extension.cpp").write_text(EXTENSION)
    (tmp_path / "call.py").write_text(CALL)
    library = tmp_path / "extension.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "extension.cpp"], check=True)
    done = run_program(paper_library, tmp_path / "call.py", library)
    assert done.returncode == -signal.SIGSEGV
    assert "paper GPU: code read or wrote GPU memory through a raw pointer" in done.stderr


SOFTMAX = "torch.ops.aten._masked_softmax(x, x > 0)"
BACKWARD = "        return Exchange.apply(grad, ctx.group), None\n"


@pytest.mark.slow
def test_an_operator_without_a_shape_function_is_named_with_its_module(tmp_path: Path, paper_library: Path) -> None:
    layer = GOOD_LAYER.replace(BACKWARD, f"        x = grad; {SOFTMAX}\n{BACKWARD}")
    root = str(write_repository(tmp_path / "repository", layer))
    request = ask(
        tmp_path, "traced", MIXTRAL, root=root, paper=str(paper_library), entry="userpkg.moe:build_layer",
        dtype="bfloat16",
    )  # fmt: skip
    assert run_guest(request).returncode != 0
    refusal = record_of(tmp_path, "traced")["refusal"]
    assert refusal["kind"] == "untraceable"
    assert "aten::_masked_softmax has no shape function in this torch" in refusal["message"]
    assert "; in module layers.1.moe" in refusal["message"]
