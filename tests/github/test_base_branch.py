"""Pull requests into a branch other than the default one: their job and regbot-post use the same configuration."""

import subprocess
from pathlib import Path

import pytest

from github_fake import FakeGitHub
from regbot.check.configuration import find_config
from regbot.github.base_branch import load_base_config, load_github_settings
from regbot.github.metadata import MEASURE, STATIC, Subject, identify_subject
from regbot.records.config import Config, GitHub
from regbot.workloads.checkout.arms import resolve_arms
from support.forge_cases import TOML, Bench
from support.timed_builder import noisy
from support.workflow_rules import ROOT

LENIENT = TOML + "[throughput]\nindifference_pct = 45.0\nthreshold_pct = 50.0\n"
SLOWER = noisy(1.10, 0.002)


@pytest.fixture
def bench(hub: FakeGitHub, tmp_path: Path) -> Bench:
    """Return a bench whose main has no configuration, then one."""
    bench = Bench.make(hub, tmp_path)
    bench.repo.commit({"regbot.toml": None})
    return bench


def aimed(bench: Bench, base: str, parent: str) -> int:
    """Open a pull request into ``base`` whose branch starts at ``parent``."""
    bench.repo.commit({"moe.py": "x = 2\n"}, "topic", parent=parent)
    bench.update()
    return bench.repo.open_pull(head="topic", base=base, author="bob")


def of_the_job(bench: Bench, number: int, base: str, tip: str, tier: str) -> Config:
    """Return the configuration that the workflow's job uses with the options of its script."""
    code = bench.folder / "code"
    subprocess.run(["git", "clone", "--quiet", str(bench.repo.git.path), str(code)], check=True)
    subprocess.run(["git", "-C", str(code), "checkout", "--quiet", bench.head(number)], check=True)
    config, against = None, tip
    if tier == "measured":
        script = (ROOT / "workflows" / "regbot-measure.yml").read_text()
        (choice,) = (line.strip() for line in script.splitlines() if "cat-file -e" in line)
        completed = subprocess.run(
            ["bash", "-ec", f'config=()\n{choice}\necho "${{config[@]}}"'],
            cwd=bench.folder,
            env={"PATH": "/usr/bin:/bin", "BASE": base},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        assert completed in ([], ["--config", "trusted/regbot.toml"])
        config, against = (bench.checkout / "regbot.toml" if completed else None), base
    ours, theirs, _ = resolve_arms(code, against, bench.head(number), {}, {})
    assert ours.commit == base
    return find_config(code, ours.commit, theirs.commit, target=against, exact=False, file=config).config


@pytest.mark.parametrize("tier", ["static", "measured"])
@pytest.mark.parametrize("at_base", [True, False])
def test_the_job_and_the_post_use_the_same_configuration(bench: Bench, tier: str, at_base: bool) -> None:
    old = str(bench.repo.git.branch("main"))
    release = bench.repo.commit({"regbot.toml": LENIENT}, "release", parent=old)
    bench.repo.commit({"regbot.toml": TOML})
    number = aimed(bench, "release", release if at_base else old)
    base = release if at_base else old
    bench.approve(number)
    session = bench.session(bench.head(number), base=base, timed=SLOWER if tier == "measured" else None)
    run = bench.measured(number, session) if tier == "measured" else bench.static(number, session)
    assert run.path == (MEASURE if tier == "measured" else STATIC)
    subject = identify_subject(bench.forge, bench.forge.run(run.id), GitHub(), bench.checkout)
    assert isinstance(subject, Subject)
    target = subject.target_branch if tier == "static" else None
    judged = load_base_config(bench.checkout, base, target).config
    assert judged == of_the_job(bench, number, base, release, tier)
    lenient = at_base or tier == "static"
    assert judged.throughput.indifference_pct == (45.0 if lenient else 1.0)


@pytest.mark.parametrize("own", [True, False])
def test_an_unreviewed_branch_does_not_judge_a_pull_request_from_the_default_branch(bench: Bench, own: bool) -> None:
    """The base commit is in the default branch before the first configuration, so no maintainer was needed."""
    old = str(bench.repo.git.branch("main"))
    bench.repo.commit({"regbot.toml": LENIENT}, "soft", parent=old)
    bench.repo.commit({"regbot.toml": TOML})
    number = aimed(bench, "soft" if own else "main", old)
    session = bench.session(bench.head(number), base=old, timed=SLOWER)
    assert bench.judged(number, session).status == "FAIL"
    assert bench.check(number).conclusion == "failure"


def test_a_reviewed_base_branch_judges_its_pull_requests(bench: Bench) -> None:
    release = bench.repo.commit({"regbot.toml": LENIENT}, "release")
    bench.repo.commit({"regbot.toml": TOML})
    number = aimed(bench, "release", release)
    session = bench.session(bench.head(number), base=release, timed=SLOWER)
    assert bench.judged(number, session).status == "PASS"


# The table [github] of regbot.toml


DOCS = Path(__file__).parents[1].parent / "docs" / "configuration.md"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "patterns"),
    [("./vendor/regbot", ["vendor/regbot/**"]), (".", []), ("regbot @ git+https://h.example/a/b@c", [])],
)
def test_what_the_workflows_install_regbot_from_is_protected(
    hub: FakeGitHub, tmp_path: Path, source: str, patterns: list[str]
) -> None:
    bench = Bench.make(hub, tmp_path)
    text = (DOCS.parents[1] / "workflows" / "regbot-post.yml").read_text(encoding="utf-8")
    bench.repo.commit({".github/workflows/regbot-post.yml": text.replace("/set/by/regbot-init", source)})
    bench.update()
    assert load_github_settings(bench.checkout).protected == [*GitHub().protected, *patterns]
    bench.repo.commit({"regbot.toml": None})
    bench.update()
    assert load_github_settings(bench.checkout).protected == [*GitHub().protected, *patterns]
