"""A pull request that is aimed at another branch than the default one: its job and regbot-post judge by one text."""

import subprocess
from pathlib import Path

import pytest

from forge_cases import TOML, Bench
from github_fake import FakeGitHub
from github_fake.fixtures import hub as hub
from regbot.check import CheckOptions, find_config
from regbot.checkout import resolve_arms
from regbot.config import Config
from regbot.forge.basis import basis_of
from regbot.forge.metadata import MEASURE, STATIC, identify
from timed_builder import noisy
from workflow_rules import ROOT

LENIENT = TOML + "[throughput]\nindifference_pct = 45.0\nthreshold_pct = 50.0\n"
SLOWER = noisy(1.10, 0.002)


@pytest.fixture
def bench(hub: FakeGitHub, tmp_path: Path) -> Bench:
    """main without a configuration, and then with one."""
    bench = Bench.make(hub, tmp_path)
    bench.repo.commit({"regbot.toml": None})
    return bench


def aimed(bench: Bench, base: str, parent: str) -> int:
    """A pull request into ``base`` that left ``parent``."""
    bench.repo.commit({"moe.py": "x = 2\n"}, "topic", parent=parent)
    bench.update()
    return bench.repo.open_pull(head="topic", base=base, author="bob")


def of_the_job(bench: Bench, number: int, base: str, tip: str, tier: str) -> Config:
    """What the job of a workflow plans and judges by, with the options that its script gives."""
    code = bench.folder / "code"
    subprocess.run(["git", "clone", "--quiet", str(bench.repo.git.path), str(code)], check=True)
    subprocess.run(["git", "-C", str(code), "checkout", "--quiet", bench.head(number)], check=True)
    config, against = None, tip
    if tier == "measured":
        script = (ROOT / "workflows" / "regbot-measure.yml").read_text()
        (choice,) = (line.strip() for line in script.splitlines() if "cat-file -e" in line)
        asked = subprocess.run(
            ["bash", "-ec", f'config=()\n{choice}\necho "${{config[@]}}"'],
            cwd=bench.folder,
            env={"PATH": "/usr/bin:/bin", "BASE": base},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        assert asked in ([], ["--config", "trusted/regbot.toml"])
        config, against = (bench.checkout / "regbot.toml" if asked else None), base
    options = CheckOptions(repo=code, cache=code, out=code, base=against, head=bench.head(number), config=config)
    ours, theirs, _ = resolve_arms(code, against, bench.head(number), {}, {})
    assert ours.commit == base
    return find_config(options, ours, theirs)[0]


@pytest.mark.parametrize("tier", ["static", "measured"])
@pytest.mark.parametrize("at_base", [True, False])
def test_the_job_and_the_post_go_by_one_configuration(bench: Bench, tier: str, at_base: bool) -> None:
    old = str(bench.repo.git.branch("main"))
    release = bench.repo.commit({"regbot.toml": LENIENT}, "release", parent=old)
    bench.repo.commit({"regbot.toml": TOML})
    number = aimed(bench, "release", release if at_base else old)
    base = release if at_base else old
    bench.approve(number)
    session = bench.session(bench.head(number), base=base, timed=SLOWER if tier == "measured" else None)
    run = bench.measured(number, session) if tier == "measured" else bench.static(number, session)
    assert run.path == (MEASURE if tier == "measured" else STATIC)
    subjects = identify(bench.forge, bench.forge.run(run.id), "github-actions[bot]", bench.checkout)
    assert isinstance(subjects, list)
    target = subjects[0].target if tier == "static" else None
    judged = basis_of(bench.checkout, base, target).config
    assert judged == of_the_job(bench, number, base, release, tier)
    lenient = at_base or tier == "static"
    assert judged.throughput.indifference_pct == (45.0 if lenient else 1.0)


@pytest.mark.parametrize("own", [True, False])
def test_a_branch_of_somebodys_own_does_not_judge_what_left_the_default_branch(bench: Bench, own: bool) -> None:
    """Its commit is one of the default branch, from before there was a configuration: no maintainer was asked."""
    old = str(bench.repo.git.branch("main"))
    bench.repo.commit({"regbot.toml": LENIENT}, "soft", parent=old)
    bench.repo.commit({"regbot.toml": TOML})
    number = aimed(bench, "soft" if own else "main", old)
    bench.approve(number)
    posted = bench.post(bench.measured(number, bench.session(bench.head(number), base=old, timed=SLOWER)))
    assert isinstance(posted, list)
    assert [each.status for each in posted] == ["FAIL"]
    assert bench.check(number).conclusion == "failure"


def test_a_reviewed_base_of_its_own_judges_its_pull_requests(bench: Bench) -> None:
    release = bench.repo.commit({"regbot.toml": LENIENT}, "release")
    bench.repo.commit({"regbot.toml": TOML})
    number = aimed(bench, "release", release)
    bench.approve(number)
    session = bench.session(bench.head(number), base=release, timed=SLOWER)
    posted = bench.post(bench.measured(number, session))
    assert isinstance(posted, list)
    assert [each.status for each in posted] == ["PASS"]
