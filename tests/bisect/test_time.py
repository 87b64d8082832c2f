"""``regbot bisect --on time`` on real gloo ranks: minutes of them, on cores that nothing else uses.

``REGBOT_LONG=1 python -m pytest tests/bisect/test_time.py`` runs it.
"""

from pathlib import Path

import pytest

from support.bisect_repository import build, run_bisect

TIMED = """\
[workloads.moe]
adapter = "module"
entry = "moetrain.moe:build_layer"
source_roots = ["src"]
shapes = ["mixtral-8x7b"]
meshes = ["ep"]
variant = "cpu"
[session]
steps = 15
warmup = 3
"""


@pytest.mark.long
def test_a_slowdown_among_200_commits_is_found_within_60_launches(tmp_path: Path) -> None:
    history = build(tmp_path / "repository")
    (tmp_path / "timed.toml").write_text(TIMED)
    asked = ("--on", "time", "--effect", "20", "--config", str(tmp_path / "timed.toml"))
    code, answer = run_bisect(tmp_path, history.path, history.good, history.bad, *asked)
    assert (code, answer["found"]) == (0, "culprit"), (answer["reasons"], answer["candidates"])
    named = {each["point"]["commit"]: each["measurable"] for each in answer["candidates"]}
    assert history.slow in named
    assert sum(named.values()) <= 3
    launches = answer["search_runs"] + answer["confirm_runs"]
    assert launches <= 60
