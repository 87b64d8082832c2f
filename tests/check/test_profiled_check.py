"""Whole checks of compiled steps: no trace can count them, so sharding is judged by profiles of the timed runs."""

from pathlib import Path

import pytest

from support.check_cases import Case, only
from support.guest_runs import Shared
from support.layers import TIMED_CONFIG, compiled_layer, genuine_runs, replay

CPU_PROGRAM = TIMED_CONFIG.replace("timeout_min = 1", 'timeout_min = 3\ndevice = "cpu"')
REPLAYED = TIMED_CONFIG.replace("[session]", 'python = "tools/python"\n[session]')
ONE_EXCHANGE = "return Exchange.apply(F.silu(self.experts(Exchange.apply(x, self.group))), self.group)"
TWO_EXCHANGES = f"x = Exchange.apply(Exchange.apply(x, self.group), self.group)\n        {ONE_EXCHANGE}"


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@pytest.mark.slow
def test_a_compiled_step_that_no_trace_counts_is_judged_by_its_profile(case: Case) -> None:
    """The budget pays for the warm launches only, whose profiles suffice."""
    head = compiled_layer().replace(ONE_EXCHANGE, TWO_EXCHANGES)
    case.pull_request(head, compiled_layer(), CPU_PROGRAM)
    code, verdict = case.check("--budget", "0.1")
    assert [(run["tier"], run["outcome"]) for run in case.runs()] == [("static", "refused")] * 2 + [("timed", "ok")] * 2
    entry = only(verdict)
    assert (code, verdict["verdict"], entry["validity"]["status"]) == (1, "FAIL", "PASS"), entry
    sharding = entry["sharding"]
    assert (sharding["status"], sharding["tier"]) == ("FAIL", "timed")
    assert sharding["source"] == "kineto:dispatcher, world of 2 ranks, one steady step"
    assert (sharding["base"]["all_to_all"]["payload"], sharding["head"]["all_to_all"]["payload"]) == (8, 16)
    code, verdict = case.check("--no-timing")
    assert (code, verdict["verdict"], only(verdict)["sharding"]) == (4, "INVALID", None)
    assert "base has no timed run, so the collectives of its step are unknown" in only(verdict)["validity"]["reasons"]


@pytest.mark.slow
def test_once_one_arm_is_profiled_both_are(case: Case, shared: Shared) -> None:
    """Head alone is compiled. The profiles are empty here, so the verdict is INVALID, and it names both reasons."""
    genuine = shared("genuine runs", genuine_runs)
    profile = "[r.pop('ledger') for r in records]; records[0]['profile'] = {{'reason': {}, 'problem': 'a test'}}"
    tool = case.repository.path / "tools" / "python"
    forced = profile.format("request['profile_reason']")
    replay(tool, genuine, f"if request['profile_reason']:\n    {forced}")
    case.commit(config=REPLAYED)
    case.repository.git("checkout", "-q", "-b", "pr")
    replay(tool, genuine, profile.format("'it is compiled'"))
    case.commit(config=REPLAYED, **{"kernels.cu": "// compiled\n"})
    code, verdict = case.check()
    assert (code, verdict["verdict"]) == (4, "INVALID")
    timed = [run for run in case.runs() if run["tier"] == "timed"]
    profiles = [run["profile"]["reason"] for run in timed if run["arm"]["name"] == "base" and run.get("profile")]
    assert set(profiles) == {"the steps of head are profiled: it is compiled"}
    assert len(profiles) >= 4
    reasons = "\n".join(only(verdict)["validity"]["reasons"])
    for name, reason in (("base", "the steps of head are profiled: it is compiled"), ("head", "it is compiled")):
        assert f"{name}: the collectives of its step are unknown. No step was counted ({reason})" in reasons
