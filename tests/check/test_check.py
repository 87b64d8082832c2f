"""The whole check on small real repositories: verdicts, bad input, exit codes, and cleanup."""

import json
from pathlib import Path

import pytest

from regbot.check.configuration import find_config
from regbot.workloads.checkout.arms import resolve_arms
from support.check_cases import Case, only
from support.layers import CONFIG, GOOD_LAYER

EXCHANGE = """\
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out
"""
FALLBACK = """\
        everyone = x.new_empty(x.shape[0] * group.size(), x.shape[1])
        dist.all_gather_into_tensor(everyone, x.contiguous(), group=group)
        out = torch.empty_like(x)
        dist.reduce_scatter_tensor(out, everyone, group=group)
        return out
"""
FALLBACK_LAYER = GOOD_LAYER.replace(EXCHANGE, FALLBACK)
"""A meaningless model with exactly the collectives of a fallback: two for every all-to-all."""


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_a_comment_is_no_change_of_the_program(case: Case) -> None:
    case.pull_request("# why\n" + GOOD_LAYER)
    code, verdict = case.check()
    assert (code, verdict["verdict"]) == (0, "PASS")
    assert only(verdict)["sharding"]["identical_program"] is True


def test_a_fallback_on_two_ranks_is_detected_accepted_and_judged_again(case: Case) -> None:
    case.pull_request(FALLBACK_LAYER)
    code, verdict = case.check()
    sharding = only(verdict)["sharding"]
    assert sharding["base"]["all_to_all"] == {"payload": 8, "control": 0}
    assert sharding["head"]["all_to_all"] == {"payload": 0, "control": 0}
    (finding,) = [f for f in sharding["findings"] if f["pattern"] == "all-to-all replaced by gather and sum"]
    assert finding["axis"] == "ep"
    assert finding["modules"] == ["layers.*.moe"]
    assert code == {"FAIL": 1, "REVIEW": 5}[verdict["verdict"]]

    again = case.regbot("judge", str(case.home / "out" / "session.jsonl"), "--json")
    assert json.loads(again.stdout) == verdict, "the verdict depends on the records alone"
    assert again.returncode == code

    rule = "all-to-all replaced by gather and sum@ep@mixtral-8x7b@1/*: two ranks gather less"
    accepted = case.regbot("judge", str(case.home / "out" / "session.jsonl"), "--expect", rule, "--json")
    assert accepted.returncode == 0, accepted.stdout
    assert json.loads(accepted.stdout)["workloads"][0]["sharding"]["findings"][0]["accepted"] == "two ranks gather less"


@pytest.mark.slow
def test_a_build_that_fails_in_the_head_is_the_heads_fault(case: Case) -> None:
    config = CONFIG + 'build = ["test ! -e broken || { echo the compiler says no >&2; exit 3; }"]\n'
    case.commit(GOOD_LAYER, config)
    case.repository.git("checkout", "-q", "-b", "pr")
    case.commit(GOOD_LAYER, config, broken="yes")
    code, verdict = case.check()
    assert (code, verdict["verdict"]) == (1, "FAIL")
    assert "the compiler says no" in only(verdict)["validity"]["reasons"][0]


@pytest.mark.slow
def test_a_pull_request_cannot_soften_its_own_judge(case: Case) -> None:
    soft = CONFIG.replace('meshes = ["ep"]', 'meshes = ["ep-dp"]') + "[sharding]\nwire_rise_pct = 100000\n"
    case.pull_request(FALLBACK_LAYER, head_config=soft)
    _, verdict = case.check()
    assert only(verdict)["name"] == "mixtral-8x7b@1/ep"
    assert any("regbot.toml differs" in warning for warning in verdict["warnings"])


def test_declared_stand_ins_are_those_of_the_base(case: Case) -> None:
    config = CONFIG.replace("[workloads.moe]", '[workloads.moe]\nstand_ins = "stand_ins.py"')
    case.commit(config=config, **{"stand_ins.py": "STAND_INS = {}\n"})
    case.repository.git("checkout", "-q", "-b", "pr")
    case.commit(config=None, **{"stand_ins.py": "STAND_INS = 1\n"})
    base, head, _ = resolve_arms(case.repository.path, "main", "HEAD", {}, {})
    loaded = find_config(case.repository.path, base.commit, head.commit, target="main", exact=False)
    assert loaded.config.workloads["moe"].stand_ins_text == "STAND_INS = {}\n"
