"""A check of a training script for Megatron on the paper GPU. The script in ``tests/guest/own_program`` is small."""

from pathlib import Path

import pytest

from support.check_cases import Case

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
    case = Case(tmp_path)
    case.repository.commit("start", {**files, "regbot.toml": CONFIG})
    case.repository.git("checkout", "-q", "-b", "pr")
    model = "megatron/training/model.py"
    case.repository.commit("change", {model: files[model] + "# a comment\n"})
    _, verdict = case.check()
    assert verdict["verdict"] == "PASS", verdict
    assert len(verdict["workloads"]) == 2
    starts = processes.read_text(encoding="utf-8").split()
    assert len(starts) == len(set(starts)) == 4, "two arms with two meshes"
