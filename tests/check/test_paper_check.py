"""A check on a paper GPU: both arms use it, or both are CPU programs if one arm cannot be traced on it."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from regbot.workloads.paper.build import source_folder
from support.check_cases import Case
from support.layers import CONFIG, GOOD_LAYER

BRANCHING_LAYER = GOOD_LAYER.replace(
    "    def forward(self, x):\n        return Exchange.apply(F",
    "    def forward(self, x):\n        if x.sum() > 0:\n            x = x + 1\n        return Exchange.apply(F",
)
"""A layer that branches on a data-dependent value. A CPU trace without values guesses it; a paper GPU refuses it."""


pytestmark = pytest.mark.usefixtures("paper_library")


def check(folder: Path, head: str) -> tuple[int, dict[str, Any], list[Any]]:
    """Check a pull request whose layer is ``head``; return exit code, verdict and static runs."""
    case = Case(folder)
    case.pull_request(head)
    code, verdict = case.check("--no-timing")
    return code, verdict, case.runs()


def test_both_arms_are_traced_on_the_paper_gpu(tmp_path: Path) -> None:
    code, verdict, runs = check(tmp_path, GOOD_LAYER + "\n# a comment\n")
    assert (code, verdict["verdict"]) == (0, "PASS")
    assert [run["ledger"]["device"] for run in runs] == ["cuda", "cuda"]
    assert verdict["workloads"][0]["sharding"]["identical_program"] is True


@pytest.mark.slow
def test_an_arm_that_cannot_be_traced_on_paper_makes_both_cpu_programs(tmp_path: Path) -> None:
    _, verdict, runs = check(tmp_path, BRANCHING_LAYER)
    assert verdict["workloads"][0]["validity"]["status"] == "PASS", verdict
    counted = {run["arm"]["name"]: run["ledger"]["device"] for run in runs}  # the last run of an arm counts
    assert counted == {"base": "cpu", "head": "cpu"}
    (warning,) = {warning for run in runs for warning in run["warnings"] if "CPU program" in warning}
    assert "at head: a condition that depends on real data was read" in warning
    assert "userpkg/moe.py:29 in forward" in warning


@pytest.mark.slow
def test_a_layer_that_is_converted_after_it_is_built_has_one_ledger_on_both_devices(tmp_path: Path) -> None:
    layer = GOOD_LAYER.replace(", bias=False, device=device, dtype=dtype)", ")").replace(
        "return Layer(config, mesh, device, dtype)",
        "layer = Layer(config, mesh, device, dtype)\n    layer.register_buffer('scale', torch.ones(3))\n"
        "    return layer.double().to(device).to(dtype)",
    )
    case = Case(tmp_path)
    case.commit(layer)
    entries = {}
    for device in ("cuda", "cpu"):
        done = case.regbot("ledger", "trace", "moe", "--device", device, "--json")
        entries[device] = json.loads(done.stdout)["entries"]
    assert entries["cuda"] == entries["cpu"] != []


@pytest.mark.slow
def test_without_a_compiler_both_arms_are_cpu_programs_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "git").symlink_to(str(shutil.which("git")))
    for name, value in (("PATH", str(tools)), ("REGBOT_PAPER_CACHE", str(tmp_path / "empty")), ("CXX", "")):
        monkeypatch.setenv(name, value)
    code, verdict, runs = check(tmp_path, GOOD_LAYER + "\n# a comment\n")
    assert (code, verdict["verdict"]) == (0, "PASS")
    assert [run["ledger"]["device"] for run in runs] == ["cpu", "cpu"]
    assert all("there is no C++ compiler" in run["warnings"][-1] for run in runs)


@pytest.mark.slow
def test_nothing_that_a_compiler_prints_about_a_checkout_is_published(tmp_path: Path) -> None:
    """A compiler quotes the first line of a file that is no C++."""
    secret = tmp_path / "secret"
    secret.write_text("a line of the node\n")
    case = Case(tmp_path)
    torch = ".venv/lib/python3.11/site-packages/torch"
    python = case.repository.path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(Path(sys.base_prefix, "bin", "python3"))
    sources = "".join(path.read_text() for path in source_folder().iterdir() if path.is_file())
    headers = re.findall("#include <((?:ATen|c10|torch)/.*)>", sources)  # a missing one would be the only error
    names = ("lib/libc10.so", "lib/libtorch_cpu.so", *(f"include/{header}" for header in headers))
    config = CONFIG.replace('adapter = "module"', 'adapter = "module"\npython = ".venv/bin/python"')
    case.commit(config=config, **{f"{torch}/{name}": f'#include "{secret}"\n' for name in names})
    case.repository.git("checkout", "-q", "-b", "pr")
    case.commit(GOOD_LAYER + "\n# a comment\n", config)
    done = case.regbot("check", "--base", "main", "--no-timing", "--out", "../out")
    assert all("could not compile the paper GPU" in run["reason"] for run in case.runs())
    assert "a line of the node" not in done.stdout + done.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != secret]
    quoting = {path for path in files if b"a line of the node" in path.read_bytes()}
    assert quoting == set(tmp_path.glob("out/runs/paper/compiler-*.log"))
    assert quoting
