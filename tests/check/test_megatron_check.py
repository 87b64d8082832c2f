"""A check of a training script for Megatron on the paper GPU. The script in ``tests/guest/own_program`` is small."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.git_repos import Repository

REGBOT = str(Path(sys.executable).with_name("regbot"))
PROGRAM = Path(__file__).parents[1] / "guest" / "own_program"
CONFIG = """\
version = 1

[workloads.pretrain]
adapter = "megatron"
shapes = ["mixtral-8x7b"]
variant = "cpu"
meshes = [{world = 4, ep = 2}, {world = 8, ep = 4}]
timed = []
"""


@pytest.mark.slow
@pytest.mark.usefixtures("paper_library")
def test_every_mesh_of_a_training_script_is_traced_once_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Megatron keeps its arguments for the whole process, so a second run of its script fails there."""
    processes = tmp_path / "processes"
    files = {str(path.relative_to(PROGRAM)): path.read_text(encoding="utf-8") for path in sorted(PROGRAM.rglob("*.py"))}
    started = f"with open({str(processes)!r}, 'a') as file:\n    file.write(f'{{__import__(\"os\").getpid()}}\\n')\n"
    files["pretrain_gpt.py"] = files["pretrain_gpt.py"].replace("parser = argparse", f"{started}parser = argparse", 1)
    repository = Repository.create(tmp_path / "repository")
    repository.commit("start", {**files, "regbot.toml": CONFIG})
    repository.git("checkout", "-q", "-b", "pr")
    repository.commit("change", {"megatron/training/model.py": files["megatron/training/model.py"] + "# a comment\n"})
    done = subprocess.run(
        [REGBOT, "check", "--base", "main", "--json", "--out", str(tmp_path / "out")],
        cwd=repository.path,
        env={**os.environ, "REGBOT_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    verdict = json.loads(done.stdout)
    assert verdict["verdict"] == "PASS", done.stderr
    assert len(verdict["workloads"]) == 2
    starts = processes.read_text(encoding="utf-8").split()
    assert len(starts) == len(set(starts)) == 4, "two arms with two meshes"
