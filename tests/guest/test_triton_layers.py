"""Own layers that launch Triton kernels. Without an installed Triton, a small one of the tests takes its place."""

from pathlib import Path
from typing import Any

import pytest

from support.guest_runs import TINY, Shared, answer, ask, counts, run_script
from support.layers import EXCHANGE, GOOD_LAYER
from support.paper_runs import PROGRAMS, run_program

TRITON = Path(__file__).parent / "small_triton"
"""The installed Triton, if any, precedes it."""

KERNEL = """\
import triton


@triton.jit
def scale(x, y, n, BLOCK):  # twice the rows
    y.store(x.load() * 2)


"""
CALL = "scale[(x.numel() // 64,)](x, y, x.numel(), BLOCK=64)"
PLAIN = KERNEL + GOOD_LAYER.replace(EXCHANGE, f"        y = torch.empty_like(x)\n        {CALL}\n        return y\n")
TUNED = (
    PLAIN.replace(
        "@triton.jit",
        "def helper(x):\n    return x\n\n\n"
        '@triton.autotune(configs=[triton.Config({"BLOCK": 64})], key=["n"])\n'
        '@triton.heuristics({"EVEN": lambda args: True})\n@triton.jit',
    )
    .replace("y = torch.empty_like(x)", "y = torch.zeros(x.shape, dtype=torch.int32, device=x.device)")
    .replace(
        CALL,
        "active = triton.runtime.driver.active\n"
        "        assert active.get_current_target().arch == 90\n"
        "        programs = active.utils.get_device_properties(x.device.index)['multiprocessor_count']\n"
        "        scale[lambda meta: (programs,)](x, y, x.numel())\n"
        "        y = x * programs",
    )
)
CONSTANT = PLAIN.replace("* 2", "* WIDTH").replace("@triton.jit", "WIDTH = 2\n\n\n@triton.jit")
LAYERS = {
    "plain": PLAIN,
    "plain again": PLAIN.replace("  # twice the rows", ""),
    "another number in the kernel": PLAIN.replace("* 2", "* 3"),
    "another block": PLAIN.replace("BLOCK=64", "BLOCK=128"),
    "constant 2": CONSTANT,
    "constant 3": CONSTANT.replace("WIDTH = 2", "WIDTH = 3"),
    "tuned": TUNED,
    "another tuning": TUNED.replace('{"BLOCK": 64}', '{"BLOCK": 128}'),
    "reads what a kernel wrote": PLAIN.replace(
        CALL,
        "rows = torch.zeros(4, dtype=torch.int64, device=x.device)\n"
        "        scale[(1,)](x, rows)\n        rows.tolist()",
    ),
}  # fmt: skip


@pytest.fixture
def traces(shared: Shared, paper_library: Path) -> Path:
    def trace(folder: Path) -> None:
        settings: dict[str, Any] = {"geometry": TINY, "adapter": "module"}
        requests = []
        for name, source in LAYERS.items():
            module = f"layer_{name.replace(' ', '_')}"
            (folder / f"{module}.py").write_text(source)
            requests.append(ask(folder, name, entry=f"{module}:build_layer", paper=str(paper_library), **settings))
        run_program(paper_library, "late_packages.py", TRITON, *requests)
        on_cpu = ask(folder, "CPU", entry="layer_plain:build_layer", **settings)
        run_script(str(PROGRAMS / "late_packages.py"), TRITON, on_cpu)

    return shared("triton-layers", trace)


@pytest.mark.parametrize("name", ["plain", "tuned"])
def test_a_layer_with_triton_kernels_is_counted_on_a_paper_gpu(traces: Path, name: str) -> None:
    assert counts(answer(traces, name), "kind", "axis") == {("all_gather", "dp"): 3, ("reduce_scatter", "dp"): 2}


def test_the_fingerprint_includes_the_code_of_a_kernel_and_its_settings_but_no_comments(traces: Path) -> None:
    programs = {name: answer(traces, name).get("ledger", {}).get("fingerprint") for name in LAYERS}
    assert programs["plain"]
    assert programs["tuned"]
    assert programs["plain again"] == programs["plain"]
    assert programs["another number in the kernel"] != programs["plain"]
    assert programs["another block"] != programs["plain"]
    assert programs["constant 2"] != programs["constant 3"]
    assert programs["another tuning"] != programs["tuned"]


def test_values_that_a_kernel_may_have_written_are_unknown(traces: Path) -> None:
    refusal = answer(traces, "reads what a kernel wrote")["refusal"]
    assert refusal["kind"] == "untraceable"


def test_a_cpu_program_refuses_the_kernel_by_name(traces: Path) -> None:
    refusal = answer(traces, "CPU")["refusal"]
    assert refusal["kind"] == "untraceable"
    assert "the Triton kernel scale was launched" in refusal["message"]
