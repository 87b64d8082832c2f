"""The demo: three pull requests whose effect is known.

The command runs once on the ``smoke`` variant, whose output equals that of the full variant except for numbers. The
full shape and the step times of the slow pull request are long tests.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import regbot.cli.demo.run as demo_run
from regbot.cli.app import app
from regbot.cli.demo import build_repository
from regbot.records.session import read_session
from support.guest_runs import Shared

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ENTRIES = ["qwen3-30b-a3b@1/ep-dp", "mixtral-8x7b@1/ep-dp"]
"""Entries on the mesh that the default demo leaves out."""
BY_DEFAULT = ["qwen3-30b-a3b@1/ep", "mixtral-8x7b@1/ep"]


SMALL = """\
version = 1
[workloads.moe]
adapter = "module"
entry = "moetrain.moe:build_layer"
source_roots = ["src"]
variant = "{variant}"
[session]
steps = 15
warmup = 3
"""


@dataclass(frozen=True)
class Demo:
    """Exit code and output of one ``regbot demo``, and its files in ``out``."""

    code: int
    stdout: str
    stderr: str
    out: Path

    @property
    def comment(self) -> str:
        return (self.out / "comment.md").read_text(encoding="utf-8")

    @property
    def verdict(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.out / "verdict.json").read_text(encoding="utf-8"))
        return document


def small_demo(folder: Path, *arguments: str, variant: str) -> Demo:
    """Run ``regbot demo`` in ``folder`` on a small variant of the shapes."""
    config = folder / "small.toml"
    config.write_text(SMALL.format(variant=variant))
    run_demo = demo_run.run_demo
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("REGBOT_CACHE", str(folder / "cache"))
        patch.setattr(demo_run, "run_demo", lambda options, watch: run_demo(replace(options, config=config), watch))
        result = CliRunner().invoke(app, ["demo", *arguments])
    return Demo(result.exit_code, result.stdout, result.stderr, folder / "demo-out")


@pytest.fixture
def demo(shared: Shared) -> Demo:
    """The default demo on the ``smoke`` variant, run once for all tests."""

    def make(folder: Path) -> None:
        result = small_demo(folder, variant="smoke")
        (folder / "printed.json").write_text(json.dumps([result.code, result.stdout, result.stderr]))

    folder = shared("demo", make)
    return Demo(*json.loads((folder / "printed.json").read_text()), folder / "demo-out")


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of an output, one line each, with numbers replaced by N and without table rules."""
    plain = re.sub(r"\d[\d.]*(?:\s+(?:[mµ]?s|[KMGT]?i?B)\b)?", "N", re.sub(r"--+", "", text))
    for remark in demo_run.PAPER_GPU_REMARKS.values():
        plain = plain.replace(remark, "") if remark else plain
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", plain.strip())]


def on_a_terminal(demo: Demo) -> str:
    """Return the text that remains on a terminal: the two lines before the traces, and standard output."""
    return "\n".join([*demo.stderr.splitlines()[:2], "", demo.stdout])


def readme_output() -> str:
    (blocks,) = re.findall(r"<!-- output: demo -->\n```text\n(.*?)```", README, re.DOTALL)
    return str(blocks)


def test_the_demo_sees_the_planted_fallback_and_exits_with_0(demo: Demo) -> None:
    assert demo.code == 0, demo.stdout + demo.stderr
    assert demo.verdict["verdict"] == "FAIL"
    assert "regbot saw it, so the demo exits with 0" in demo.stdout


def test_the_demo_traces_every_shape_on_one_mesh_and_the_comment_names_the_other(demo: Demo) -> None:
    assert [entry["name"] for entry in demo.verdict["workloads"]] == BY_DEFAULT
    assert "Sharding: traced only on the mesh `ep`; `--timed` also traces `ep-dp`." in demo.comment
    assert "traced only on the mesh ep; --timed also traces ep-dp" in demo.stdout


def test_the_demo_prints_its_cost_before_it_starts(demo: Demo) -> None:
    task_line, cost_line, *progress_lines = demo.stderr.splitlines()
    assert "Unify the token exchange" in task_line
    assert re.match(
        r"It traces 4 programs, (?:2|1) at a time, without a GPU: about \d+ s on (?:2 free cores|1 free core)",
        cost_line,
    )
    assert sum(line.endswith(": ok") for line in progress_lines) == 4


def test_the_readme_shows_the_output_of_the_demo(demo: Demo) -> None:
    if "traced as a CPU program" in demo.stdout:
        pytest.skip("without a C++ compiler the demo traces CPU programs, and prints that too")
    printed = [part for part in paragraphs(on_a_terminal(demo)) if not part.startswith("sharding of the smoke variant")]
    assert printed == paragraphs(readme_output())


@pytest.mark.long
def test_the_timed_demo_traces_both_meshes_and_times_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_run, "BUDGET_MIN", 0.5)
    result = small_demo(tmp_path, "--harmless", "--timed", variant="cpu")
    assert [entry["name"] for entry in result.verdict["workloads"]] == [
        name for pair in zip(BY_DEFAULT, ENTRIES, strict=True) for name in pair
    ]
    assert any(run.tier == "timed" for run in read_session(result.out / "session.jsonl").runs)
    assert any(entry["throughput"] for entry in result.verdict["workloads"])
    assert "not measured" not in result.comment
    assert "traces 8 programs" in result.stderr
    assert "then it times base and head" in result.stderr


SHORT = SMALL.format(variant="cpu").replace("[session]", 'shapes = ["mixtral-8x7b"]\nmeshes = ["ep"]\n[session]')


@pytest.mark.long
def test_the_slow_pull_request_is_slower_outside_of_its_collectives(tmp_path: Path) -> None:
    """Other tests use the same cores, so the interval may be open, but the estimate is clear."""
    (tmp_path / "short.toml").write_text(SHORT)
    repository = build_repository(tmp_path / "repository", "slow")
    arms = ("--base", repository.base, "--head", repository.head)
    options = ("--json", "--out", str(tmp_path), "--config", str(tmp_path / "short.toml"), "--budget", "6")
    command = [str(Path(sys.executable).with_name("regbot")), "check", *arms, *options]
    env = {**os.environ, "REGBOT_CACHE": str(tmp_path / "cache")}
    result = subprocess.run(command, cwd=repository.path, env=env, capture_output=True, text=True, check=False)
    assert result.returncode in (1, 3), result.stdout + result.stderr
    (entry,) = json.loads(result.stdout)["workloads"]
    throughput = entry["throughput"]
    assert (entry["sharding"]["status"], entry["validity"]["status"]) == ("PASS", "PASS")
    assert throughput["decision"] in ("regressed", "undecided")
    assert throughput["pairs"] >= 4
    assert throughput["estimate_pct"] > 15
    assert throughput["decision"] == "undecided" or throughput["wall"].startswith("compute or host")
