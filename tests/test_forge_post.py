"""From a workflow run that ended to the comment and the check run, on the fake GitHub."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from baseline_builder import put
from baseline_cases import NOW, asked, block_runs, header_of
from forge_cases import A2A, BOT, FALLBACK, NONCE, OTHER_PROGRAM, TOML, Bench, lines_of, zipped
from github_fake import FakeGitHub
from github_fake import Run as FakeRun
from github_fake.fixtures import hub as hub
from regbot.baselines import Store
from regbot.baselines.intake import distil
from regbot.forge.client import AwayError, Forge, RefusedError
from regbot.forge.events import EventError
from regbot.forge.metadata import MEASURE, Ignored, run_of_event
from regbot.forge.post import Posted, post
from regbot.records.run import Position, Run
from regbot.records.session import Session
from regbot.session import Slot
from regbot.stored import with_references
from timed_builder import NODE, PLAN, noisy, statics, timed_run

SLOWER = noisy(1.10, 0.002)
SAME = noisy(1.0, 0.002)


@pytest.fixture
def bench(hub: FakeGitHub, tmp_path: Path) -> Bench:
    return Bench.make(hub, tmp_path)


def only(found: list[Posted] | Ignored) -> Posted:
    assert isinstance(found, list), found
    (one,) = found
    assert not one.fault, one.fault
    return one


def headline(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("### "))


# What is shown


def test_a_static_result_of_a_fork_is_shown_as_self_reported(bench: Bench) -> None:
    number = bench.pull(fork="mallory")
    run = bench.static(number, bench.session(bench.head(number)))
    posted = only(bench.post(run))
    assert posted.shown
    text = bench.comment(number)
    assert text.startswith(f'<!-- regbot:verdict {{"pr":{number},"head":"{bench.head(number)}","tier":"static"')
    assert headline(text).startswith("### ✅ PASS: the sharding is unchanged")
    assert "**Self-reported:**" in text
    assert f"/regbot run {bench.head(number)}" in text
    check = bench.check(number)
    assert (check.status, check.conclusion) == ("completed", "neutral")
    assert str(check.title).startswith("self-reported PASS: the sharding is unchanged")
    assert check.external_id == f"{number}:{bench.head(number)}:static"


def test_a_regression_of_the_sharding_fails_the_check_and_says_what_can_be_typed(bench: Bench) -> None:
    number = bench.pull()
    posted = only(bench.post(bench.static(number, bench.session(bench.head(number), theirs=FALLBACK))))
    assert posted.status == "FAIL"
    text = bench.comment(number)
    assert headline(text).startswith("### ❌ FAIL: expert axis mapped twice")
    assert "/regbot expect expert axis mapped twice@ep@*: why this is meant" in text
    assert bench.check(number).conclusion == "failure"


def test_a_measured_result_replaces_the_static_one_in_the_same_comment(bench: Bench) -> None:
    number = bench.pull()
    session = bench.session(bench.head(number))
    only(bench.post(bench.static(number, session)))
    first = bench.repo.comments(number)[0].id
    bench.approve(number)
    posted = only(bench.post(bench.measured(number, bench.session(bench.head(number), timed=SLOWER))))
    assert posted.status == "FAIL"
    assert [comment.id for comment in bench.repo.comments(number)] == [first]
    text = bench.comment(number)
    assert "slower" in headline(text)
    assert "Self-reported" not in text
    assert f"/regbot bisect {session.header.base.commit}..{bench.head(number)}" in text
    check = bench.check(number)
    assert (check.conclusion, check.external_id) == ("failure", f"{number}:{bench.head(number)}:{NONCE}")


def test_no_change_of_throughput_is_a_success(bench: Bench) -> None:
    number = bench.pull()
    bench.approve(number)
    posted = only(bench.post(bench.measured(number, bench.session(bench.head(number), timed=SAME))))
    assert posted.status == "PASS"
    assert "is excluded in" in headline(bench.comment(number))


def test_a_static_run_that_comes_after_a_measured_one_changes_nothing(bench: Bench) -> None:
    number = bench.pull()
    bench.approve(number)
    only(bench.post(bench.measured(number, bench.session(bench.head(number), timed=SLOWER))))
    before = bench.comment(number), bench.check(number).conclusion
    posted = only(bench.post(bench.static(number, bench.session(bench.head(number)))))
    assert not posted.shown
    assert (bench.comment(number), bench.check(number).conclusion) == before


def test_the_job_summary_and_the_check_show_what_the_comment_shows(bench: Bench) -> None:
    number = bench.pull()
    posted = only(bench.post(bench.static(number, bench.session(bench.head(number)))))
    assert bench.comment(number).partition("\n")[2].strip() == posted.text.strip()
    assert str(bench.check(number).summary).strip() == bench.comment(number).strip()


def test_shadow_mode_is_neutral_and_says_what_would_have_been(hub: FakeGitHub, tmp_path: Path) -> None:
    bench = Bench.make(hub, tmp_path, TOML + "[github]\nshadow = true\n")
    number = bench.pull()
    only(bench.post(bench.static(number, bench.session(bench.head(number), theirs=FALLBACK))))
    check = bench.check(number)
    assert check.conclusion == "neutral"
    assert str(check.title).startswith("shadow, nothing is blocked: self-reported FAIL")
    assert "**Shadow mode:** nothing is blocked. regbot would have stopped this change." in bench.comment(number)


def test_the_table_of_the_default_branch_rules_although_the_base_is_older(bench: Bench) -> None:
    number = bench.pull()
    table = '[github]\nconclusions = {FAIL = "action_required"}\nlabels = {FAIL = "perf: worse", PASS = "perf: ok"}\n'
    bench.repo.commit({"regbot.toml": TOML + table})
    bench.update()
    bench.repo.label(number, "ann", "perf: OK")
    only(bench.post(bench.static(number, bench.session(bench.head(number), theirs=FALLBACK))))
    assert bench.check(number).conclusion == "action_required"
    assert bench.repo.labels(number) == ["perf: worse"]


def test_a_comment_and_a_summary_stay_below_what_github_takes(bench: Bench) -> None:
    number = bench.pull(title="x" * 200)
    layers = [
        A2A.model_copy(update={"entries": [e.model_copy(update={"where": f"{n}" * 400}) for e in A2A.entries]})
        for n in "12"
    ]
    warnings = ["w" * 3000 + str(n) for n in range(400)]
    session = bench.session(bench.head(number), *layers, warnings=warnings)
    only(bench.post(bench.static(number, session)))
    assert len(bench.comment(number)) < 65_536
    assert len(str(bench.check(number).summary)) < 65_536


def test_every_pull_request_of_one_branch_with_the_compared_base_is_told(bench: Bench) -> None:
    number = bench.pull()
    bench.repo.commit({"other.py": "1"}, branch="release")
    second = bench.repo.open_pull(head="topic", base="release", author="ann")
    posted = bench.post(bench.static(number, bench.session(bench.head(number))))
    assert isinstance(posted, list)
    assert {each.number for each in posted} == {number, second}  # the merge base is the same commit
    assert len(bench.repo.comments(second)) == 1


# A merge group


def test_a_merge_group_gets_a_check_run_and_no_comment(bench: Bench) -> None:
    number = bench.pull()
    group = bench.repo.event_of("merge_group", number=number)["merge_group"]
    session = bench.session(group["head_sha"], base=group["base_sha"])
    branch = group["head_ref"].removeprefix("refs/heads/")
    run = bench.static(number, session, event="merge_group", head_branch=branch, head_sha=group["head_sha"])
    only(bench.post(run))
    (check,) = bench.repo.check_runs(group["head_sha"])
    assert check.conclusion == "success"
    assert "this merge group" in str(check.summary)
    assert "/regbot" not in str(check.summary)
    assert bench.repo.comments(number) == []


def test_a_merge_group_is_held_against_the_commit_that_it_is_put_on(bench: Bench) -> None:
    number = bench.pull()
    older = str(bench.repo.git.branch("main"))
    bench.repo.commit({"other.py": "1"})
    bench.update()
    group = bench.repo.event_of("merge_group", number=number)["merge_group"]
    branch = group["head_ref"].removeprefix("refs/heads/")
    session = bench.session(group["head_sha"], base=older)
    run = bench.static(number, session, event="merge_group", head_branch=branch, head_sha=group["head_sha"])
    assert only(bench.post(run)).status == "INVALID"


def accepting(bench: Bench) -> tuple[int, str, FakeRun]:
    """A pull request that has to be reviewed, its head, and the run of the merge group that ends with it."""
    number, _ = reviewed(bench)
    group = bench.repo.event_of("merge_group", number=number)["merge_group"]
    session = bench.session(group["head_sha"], theirs=MORE, base=group["base_sha"])
    branch = group["head_ref"].removeprefix("refs/heads/")
    run = bench.static(number, session, event="merge_group", head_branch=branch, head_sha=group["head_sha"])
    return number, group["head_sha"], run


def test_a_review_of_a_merge_group_is_accepted_on_the_pull_request_that_it_ends_with(bench: Bench) -> None:
    number, sha, run = accepting(bench)
    assert only(bench.post(run)).status == "REVIEW"
    (check,) = bench.repo.check_runs(sha)
    assert check.conclusion == "action_required"
    line = f"/regbot accept {bench.head(number)}: why"
    assert f"accepts it in #{number}, before that is queued again, with\n\n```text\n{line}\n```" in str(check.summary)
    bench.repo.comment(number, "bob", line)
    bench.repo.comment(number, "ann", f"/regbot accept {sha}: the group")
    bench.repo.comment(number, "ann", f"/regbot accept {'0' * 40}: another head")
    assert only(bench.post(run)).status == "REVIEW"
    bench.repo.comment(number, "ann", line)
    assert only(bench.post(run)).status == "PASS"
    (check,) = bench.repo.check_runs(sha)
    assert check.conclusion == "success"
    assert "PASS, accepted" in str(check.title)


def test_an_acceptance_ends_with_the_head_that_it_was_of_in_a_merge_group_too(bench: Bench) -> None:
    number, _, run = accepting(bench)
    bench.repo.comment(number, "ann", f"/regbot accept {bench.head(number)}: fine")
    assert only(bench.post(run)).status == "PASS"
    bench.push(number, "x = 7\n")
    assert only(bench.post(run)).status == "REVIEW"


# Whose run it is


def test_a_run_of_another_workflow_event_or_branch_is_not_posted(bench: Bench) -> None:
    number = bench.pull()
    bench.approve(number)
    session = bench.session(bench.head(number))
    runs = [
        bench.static(number, session, path=".github/workflows/evil.yml"),
        bench.static(number, session, path=".github/workflows/regbot-static.yml@evil.yml"),
        bench.static(number, session, event="push"),
        bench.static(number, session, event="workflow_dispatch"),
        bench.static(number, session, status="in_progress", conclusion=None),
        bench.static(number, session, conclusion="action_required"),
        bench.measured(number, session, event="pull_request"),
        bench.measured(number, session, head_branch="topic"),
        bench.measured(number, session, title=f"regbot {number} {bench.head(number)}"),
        bench.measured(number, session, title=f"regbot {number} {bench.head(number)} {NONCE} more"),
        bench.measured(number, session, head_repository=bench.repo.fork("eve")),
        bench.static(number, session, event="merge_group", head_branch="gh-readonly-queue"),
    ]
    for run in runs:
        assert isinstance(bench.post(run), Ignored), run
    assert bench.repo.comments(number) == []
    assert bench.check(number).status == "in_progress"


def test_a_measurement_that_nobody_approved_is_not_posted(bench: Bench) -> None:
    number = bench.pull()
    run = bench.measured(number, bench.session(bench.head(number), timed=SAME))
    assert isinstance(bench.post(run), Ignored)
    assert bench.repo.comments(number) == []


def test_a_measurement_of_a_tag_that_is_called_like_the_default_branch_is_not_posted(bench: Bench) -> None:
    number = bench.pull()
    bench.approve(number)
    evil = bench.repo.commit({".github/workflows/regbot-measure.yml": "jobs: {}\n"}, branch="evil")
    run = bench.measured(number, bench.session(bench.head(number), timed=SAME), head_sha=evil)
    assert isinstance(bench.post(run), Ignored)
    assert bench.check(number).status == "in_progress"


def test_a_measurement_that_was_asked_for_again_is_superseded(bench: Bench) -> None:
    number = bench.pull()
    bench.approve(number)
    first = bench.measured(number, bench.session(bench.head(number), timed=SLOWER))
    bench.approve(number, "f" * 16)
    assert isinstance(bench.post(first), Ignored)
    assert bench.check(number).status == "in_progress"


def test_an_approval_of_one_commit_is_none_of_another(bench: Bench) -> None:
    """A push between approval and measurement: the run names the old commit, and only its check run ends."""
    number = bench.pull()
    old = bench.head(number)
    bench.approve(number)
    new = bench.push(number, "import os\n")
    only(bench.post(bench.measured(number, bench.session(old, timed=SAME), sha=old)))
    assert bench.check(number, old).conclusion == "success"
    assert bench.repo.check_runs(new) == []
    assert "**Stale:**" in bench.comment(number)
    run = bench.measured(number, bench.session(new, timed=SAME), sha=new)
    assert isinstance(bench.post(run), Ignored)


def test_the_artifact_names_no_pull_request_and_no_commit(bench: Bench) -> None:
    """Mallory's job leaves a fine session of ann's commit: it is not posted there, and is INVALID where it ran."""
    ann, mallory = bench.pull(), bench.pull(fork="mallory", text="evil = 1\n")
    run = bench.static(mallory, bench.session(bench.head(ann)))
    posted = only(bench.post(run))
    assert (posted.number, posted.status) == (mallory, "INVALID")
    assert "it is of another head" in bench.comment(mallory)
    assert bench.repo.comments(ann) == []
    assert bench.repo.check_runs(bench.head(ann)) == []


def test_the_base_is_the_merge_base_by_github_and_not_what_the_artifact_says(bench: Bench) -> None:
    number = bench.pull()
    bench.repo.commit({"other.py": "1"}, branch="elsewhere")
    session = bench.session(bench.head(number), base=str(bench.repo.git.branch("elsewhere")))
    assert only(bench.post(bench.static(number, session))).status == "INVALID"
    assert "it is of another base" in bench.comment(number)


def test_a_target_that_moves_on_does_not_make_a_result_invalid(bench: Bench) -> None:
    number = bench.pull()
    session = bench.session(bench.head(number))
    bench.repo.commit({"other.py": "1"})
    bench.repo.close(number, merge=True)
    bench.repo.pulls[number].state = "open"  # what is left of an ended one is judged as if it were
    bench.update()
    run = bench.static(number, session)
    assert only(bench.post(run)).status in ("PASS", "INVALID")


# What the base decides


def test_a_header_cannot_soften_its_judge(bench: Bench) -> None:
    number = bench.pull()
    honest = bench.session(bench.head(number), theirs=FALLBACK)
    soft = {
        "sharding": honest.header.sharding.model_copy(update={"bytes_rise_pct": 1e6, "wire_rise_pct": 1e6}),
        "wire": honest.header.wire.model_copy(update={"node_local_gb_s": 1e9, "inter_node_gb_s": 1e9}),
        "expectations": ["expert axis mapped twice@*@*: trust me"],
    }
    session = bench.session(bench.head(number), theirs=FALLBACK, **soft)
    posted = only(bench.post(bench.static(number, session)))
    assert posted.status == "FAIL"
    assert posted.text == only(bench.post(bench.static(number, honest))).text


def test_thresholds_of_the_base_judge_step_times(bench: Bench) -> None:
    number = bench.pull()
    bench.approve(number)
    honest = bench.session(bench.head(number), timed=SLOWER)
    lax = honest.header.throughput.model_copy(update={"threshold_pct": 50.0, "indifference_pct": 50.0})
    header = honest.header.model_copy(update={"throughput": lax})
    assert only(bench.post(bench.measured(number, Session(header=header, runs=honest.runs)))).status == "FAIL"


@pytest.mark.parametrize("workloads", [["easy"], ["qwen3-30b-a3b@1/ep", "easy"]])
def test_the_workloads_are_those_of_the_base(hub: FakeGitHub, tmp_path: Path, workloads: list[str]) -> None:
    bench = Bench.make(hub, tmp_path, TOML.replace('["ep"]', '["ep", "ep-dp"]'))
    number = bench.pull()
    session = bench.session(bench.head(number), workloads=workloads)
    posted = only(bench.post(bench.static(number, session)))
    assert posted.status == "INVALID"
    assert "qwen3-30b-a3b@1/ep-dp" in posted.text
    assert "easy" not in posted.text


def changed(session: Session, change: Callable[[Run], Run | None], **header: object) -> Session:
    runs = [new for run in session.runs if (new := change(run)) is not None]
    return Session(header=session.header.model_copy(update=header), runs=runs)


def test_a_workload_without_runs_is_invalid(bench: Bench) -> None:
    number = bench.pull()
    session = changed(bench.session(bench.head(number)), lambda run: None if run.arm.name == "head" else run)
    posted = only(bench.post(bench.static(number, session)))
    assert posted.status == "INVALID"
    assert "there is no run of head" in posted.text


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"shape": "mixtral-8x7b@1"}, "has the shape"),
        ({"variant": "cpu"}, "has the variant"),
        ({"adapter": "command"}, "has the adapter"),
        ({"ledger": A2A.model_copy(update={"world_size": 2})}, "has the world size"),
        ({"ledger": A2A.model_copy(update={"world_size": None})}, "has the world size"),
    ],
)
def test_a_run_of_another_question_is_refused(bench: Bench, change: dict[str, object], told: str) -> None:
    number = bench.pull()
    session = changed(bench.session(bench.head(number)), lambda run: run.model_copy(update=change))
    posted = only(bench.post(bench.static(number, session)))
    assert posted.status == "INVALID"
    assert told in posted.text


def test_overrides_are_no_part_of_a_commit(bench: Bench) -> None:
    number = bench.pull()
    session = bench.session(bench.head(number))
    head = session.header.head.model_copy(update={"overrides": {"dispatcher": "allgather"}})
    told = changed(
        session, lambda run: run.model_copy(update={"arm": head}) if run.arm.name == "head" else run, head=head
    )
    posted = only(bench.post(bench.static(number, told)))
    assert "head was run with overrides" in posted.text
    assert posted.status == "INVALID"


def test_a_static_run_has_no_step_times(bench: Bench) -> None:
    number = bench.pull()
    posted = only(bench.post(bench.static(number, bench.session(bench.head(number), timed=SLOWER))))
    assert posted.status == "PASS"
    assert posted.text == only(bench.post(bench.static(number, bench.session(bench.head(number))))).text


def test_a_plan_that_was_not_timed_is_refused(bench: Bench) -> None:
    number = bench.pull()
    bench.approve(number)
    session = changed(
        bench.session(bench.head(number), timed=SLOWER), lambda run: run if run.tier == "static" else None, timed=[]
    )
    posted = only(bench.post(bench.measured(number, session)))
    assert posted.status == "INVALID"
    assert "was to be timed, and was not" in posted.text


@pytest.mark.parametrize("plan", [{"steps": 7}, {"cut": 1}, {"world_size": 1}, {"injected_pct": 5.0}, {"variant": "x"}])
def test_a_plan_of_other_runs_is_refused(bench: Bench, plan: dict[str, object]) -> None:
    number = bench.pull()
    bench.approve(number)
    session = bench.session(bench.head(number), timed=SAME)
    timed = [each.model_copy(update=plan) for each in session.header.timed]
    posted = only(bench.post(bench.measured(number, changed(session, lambda run: run, timed=timed))))
    assert posted.status == "INVALID"
    assert "in another way than" in posted.text


def screened() -> list[Run]:
    """Head alone, as fast as what ``stored`` holds."""
    slots = [Slot(Position(block=0, slot=n, order="screen"), 1, "head", PLAN.steps) for n in range(4)]
    return [timed_run(each, 0.1 * (1 + 0.001 * n)) for n, each in enumerate(slots)]


def stored(folder: Path) -> dict[str, str]:
    """Files of a store with twenty nights of this node class."""
    for n in range(20):
        night = Session(header=header_of(n), runs=[*statics(), *block_runs(n, 2)])
        put(Store(folder), *(each for each in distil(night, asked(), NOW).baselines if each.tier == "timed"))
    files = [file for file in folder.rglob("*.json") if ".index" not in file.parts]
    return {f"baselines/{file.relative_to(folder)}": file.read_text() for file in files}


def test_what_is_stored_at_the_base_judges_a_change(bench: Bench, tmp_path: Path) -> None:
    bench.repo.commit(stored(tmp_path / "store"))
    bench.update()
    number = bench.pull()
    bench.approve(number)
    posted = only(bench.post(bench.measured(number, bench.session(bench.head(number), timed=screened()))))
    assert posted.status == "PASS"
    assert "20 stored sessions" in posted.text


def test_what_a_change_brings_into_the_store_does_not_judge_it(bench: Bench, tmp_path: Path) -> None:
    files = stored(tmp_path / "store")
    bench.repo.commit({**files, "moe.py": "x = 2\n"}, branch="topic")
    number = bench.repo.open_pull(head="topic", author="ann")
    bench.approve(number)
    session = bench.session(bench.head(number), timed=screened())
    plan, _ = with_references(
        session.header.timed[0], Store(tmp_path / "store"), session.header.throughput, NODE.node_class
    )
    assert plan.references, "what a hostile header would claim"
    session = changed(session, lambda run: run, timed=[plan])
    posted = only(bench.post(bench.measured(number, session)))
    assert posted.status == "INCONCLUSIVE"
    assert "no session of it is stored" in posted.text


def test_step_times_that_cannot_be_true_are_refused(bench: Bench) -> None:
    number = bench.pull()
    bench.approve(number)

    def faster(run: Run) -> Run:
        if run.timing is None or run.arm.name == "base":
            return run
        return run.model_copy(update={"timing": run.timing.model_copy(update={"harness_s": 30.0})})

    posted = only(bench.post(bench.measured(number, changed(bench.session(bench.head(number), timed=SAME), faster))))
    assert posted.status == "INVALID"
    assert "its times cannot be true" in posted.text


@pytest.mark.parametrize(("spare_s", "status"), [(-100.0, "PASS"), (-140.0, "INVALID")])
def test_runs_cannot_take_longer_than_the_job_that_made_them(bench: Bench, spare_s: float, status: str) -> None:
    """By more than two machines' clocks may be apart."""
    number = bench.pull()
    bench.approve(number)
    session = changed(
        bench.session(bench.head(number), timed=SAME),
        lambda run: run.model_copy(update={"wall_s": 600.0}) if run.tier == "timed" else run,
    )
    claimed_s = 600.0 * sum(run.tier == "timed" for run in session.runs)
    posted = only(bench.post(bench.measured(number, session, seconds=claimed_s + spare_s)))
    assert posted.status == status
    assert ("the whole job took" in posted.text) == (status == "INVALID")


def test_a_pull_request_that_brings_the_first_configuration_does_not_judge_itself(
    hub: FakeGitHub, tmp_path: Path
) -> None:
    bench = Bench.make(hub, tmp_path)
    bench.repo.commit({"regbot.toml": None})
    bench.update()
    bench.repo.commit({"regbot.toml": TOML}, branch="topic")
    number = bench.repo.open_pull(head="topic", author="ann")
    posted = only(bench.post(bench.static(number, bench.session(bench.head(number)))))
    assert posted.status == "INVALID"
    assert "merge one first" in posted.text


def test_a_base_without_a_configuration_is_judged_by_that_of_its_target(hub: FakeGitHub, tmp_path: Path) -> None:
    bench = Bench.make(hub, tmp_path)
    bench.repo.commit({"regbot.toml": None})
    number = bench.pull()
    bench.repo.commit({"regbot.toml": TOML})
    bench.update()
    posted = only(bench.post(bench.static(number, bench.session(bench.head(number)))))
    assert posted.status == "PASS"
    assert (
        "the base commit has no regbot&#46;toml" in posted.text or "the base commit has no regbot.toml" in posted.text
    )


def test_a_broken_configuration_of_the_base_is_told(bench: Bench) -> None:
    bench.repo.commit({"regbot.toml": TOML + "[sharding]\nbytes = 3\n"})
    number = bench.pull()
    bench.repo.commit({"regbot.toml": TOML})
    bench.update()
    posted = only(bench.post(bench.static(number, bench.session(bench.head(number)))))
    assert posted.status == "INVALID"
    assert "sharding.bytes" in posted.text


def test_a_checkout_without_history_is_told(bench: Bench) -> None:
    number = bench.pull()
    session = bench.session(bench.head(number))
    run = bench.static(number, session)
    empty = bench.folder / "empty"
    import subprocess

    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{bench.repo.git.path}", str(empty)], check=True)
    bench.repo.commit({"other.py": "1"})
    (posted,) = post(bench.forge, run.id, empty)  # type: ignore[misc]
    assert posted.status in ("PASS", "INVALID")
    subprocess.run(["rm", "-rf", str(empty)], check=True)
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{bench.repo.git.path}", str(empty)], check=True)
    (posted,) = post(bench.forge, run.id, empty)  # type: ignore[misc]
    assert "fetch-depth: 0" in posted.text


# What people say


def expect(bench: Bench, number: int, login: str) -> int:
    rule = "expert axis mapped twice@ep@qwen3-30b-a3b@1/ep: the new router"
    return bench.repo.comment(number, login, f"/regbot expect {rule}")


def failing(bench: Bench) -> tuple[int, Callable[[], Posted]]:
    number = bench.pull()
    run = bench.static(number, bench.session(bench.head(number), theirs=FALLBACK))
    return number, lambda: only(bench.post(run))


def test_a_change_that_was_declared_by_somebody_who_may_passes(bench: Bench) -> None:
    number, again = failing(bench)
    assert again().status == "FAIL"
    expect(bench, number, "bob")
    posted = again()
    assert posted.status == "PASS"
    assert "the new router (bob)" in posted.text
    assert bench.check(number).conclusion == "neutral"


@pytest.mark.parametrize("login", ["mallory", "carol", BOT])
def test_a_change_that_was_declared_by_others_is_none(bench: Bench, login: str) -> None:
    bench.repo.member("carol", "triage")
    number, again = failing(bench)
    expect(bench, number, login)
    assert again().status == "FAIL"


def test_a_declaration_that_was_edited_or_deleted_is_none(bench: Bench) -> None:
    number, again = failing(bench)
    id = bench.repo.comment(number, "bob", "looks fine")
    bench.repo.edit_comment(id, "/regbot expect expert axis mapped twice@ep@*: looks fine")
    assert again().status == "FAIL"
    id = expect(bench, number, "bob")
    assert again().status == "PASS"
    del bench.repo.all_comments[id]
    assert again().status == "FAIL"


def test_somebody_who_lost_the_right_has_declared_nothing(bench: Bench) -> None:
    number, again = failing(bench)
    expect(bench, number, "bob")
    assert again().status == "PASS"
    bench.repo.member("bob", "read")
    assert again().status == "FAIL"


CONTROL = A2A.entries[0].model_copy(update={"role": "control", "where": "layers.0.moe", "dtype": "int64", "axis": "ep"})
MORE = OTHER_PROGRAM.model_copy(update={"entries": [*A2A.entries, CONTROL]})
"""Something new, which a person has to look at."""


def reviewed(bench: Bench) -> tuple[int, Callable[[], Posted]]:
    number = bench.pull()
    run = bench.static(number, bench.session(bench.head(number), theirs=MORE))
    return number, lambda: only(bench.post(run))


def test_a_review_is_accepted_for_one_commit_by_a_maintainer(bench: Bench) -> None:
    number, again = reviewed(bench)
    assert again().status == "REVIEW"
    assert bench.check(number).conclusion == "action_required"
    assert f"/regbot accept {bench.head(number)}: why" in bench.comment(number)
    bench.repo.comment(number, "bob", f"/regbot accept {bench.head(number)}: I think so")
    assert again().status == "REVIEW"
    bench.repo.comment(number, "ann", f"/regbot accept {bench.head(number)}: counts are *needed* @here")
    assert again().status == "PASS"
    text = bench.comment(number)
    assert headline(text) == "### ✅ PASS: accepted by `ann`"
    assert "&#42;needed&#42;" in text
    assert "⚠️ REVIEW" in text
    assert bench.check(number).conclusion == "neutral"
    assert "PASS, accepted" in str(bench.check(number).title)


def test_an_acceptance_of_another_commit_is_none(bench: Bench) -> None:
    number, again = reviewed(bench)
    bench.repo.comment(number, "ann", f"/regbot accept {'0' * 40}: fine")
    assert again().status == "REVIEW"


def test_a_failure_is_not_accepted(bench: Bench) -> None:
    number, again = failing(bench)
    bench.repo.comment(number, "ann", f"/regbot accept {bench.head(number)}: fine")
    assert again().status == "FAIL"


# What cannot be judged


@pytest.mark.parametrize(
    ("conclusion", "told"),
    [("failure", "failed"), ("cancelled", "was cancelled"), ("timed_out", "ran into its time limit")],
)
def test_a_job_that_did_not_end_well_is_invalid(bench: Bench, conclusion: str, told: str) -> None:
    number = bench.pull()
    bench.approve(number)
    posted = only(bench.post(bench.measured(number, None, conclusion=conclusion)))
    assert posted.status == "INVALID"
    assert headline(bench.comment(number)) == f"### ⛔ INVALID: the job that was to measure it {told}"
    assert (bench.check(number).status, bench.check(number).conclusion) == ("completed", "failure")
    assert f"/regbot run {bench.head(number)}" in bench.comment(number)


def test_a_job_that_left_nothing_is_invalid(bench: Bench) -> None:
    number = bench.pull()
    assert "left no artifact" in only(bench.post(bench.static(number, None))).text


def test_an_artifact_that_has_expired_is_none(bench: Bench) -> None:
    number = bench.pull()
    run = bench.static(number, bench.session(bench.head(number)))
    run.artifacts[0].expired = True
    assert "left no artifact" in only(bench.post(run)).text


def test_an_artifact_that_claims_or_has_too_many_bytes_is_not_read(bench: Bench) -> None:
    number = bench.pull()
    run = bench.static(number, None)
    run.artifact("regbot-session", b"x", size=10**9)
    assert "was not read" in only(bench.post(run)).text
    assert not any(path.startswith("/artifacts/") for _, path, _ in bench.hub.requests)
    run = bench.static(number, None)
    run.artifact("regbot-session", b"x" * (33 * 1024 * 1024), size=10)
    assert "was not read" in only(bench.post(run)).text


def test_other_artifacts_are_left_alone_and_the_newest_counts(bench: Bench) -> None:
    number = bench.pull()
    run = bench.static(number, b"no zip")
    run.artifact("logs", b"y")
    run.artifact("regbot-session", zipped(bench.session(bench.head(number))))
    assert only(bench.post(run)).status == "PASS"


HOSTILE = "</details><img src=x onerror=alert(1)> @ann [x](http://evil) `|` \u202eabc \x1b[31m"


def hostile_archives(bench: Bench, number: int) -> dict[str, bytes]:
    lines = lines_of(bench.session(bench.head(number)))
    header = json.loads(lines[0])
    return {
        "no zip": b"PK nothing",
        "another member": zipped(lines, "../../etc/passwd"),
        "a named member": zipped(lines, HOSTILE[:30]),
        "nothing": zipped([]),
        "cut off": zipped([*lines[:-1], lines[-1][:-5]]),
        "no json": zipped([b"{" + HOSTILE.encode() + b"}\n"]),
        "nan": zipped([lines[0], lines[1].replace(b'"wall_s":1.0', b'"wall_s":NaN')]),
        "a key twice": zipped([lines[0].replace(b"{", b'{"regbot":"1","regbot":"2",', 1)]),
        "a key too many": zipped([json.dumps({**header, HOSTILE: 1}).encode() + b"\n"]),
        "another schema": zipped([lines[0].replace(b"regbot/session@1", b"regbot/session@9")]),
        "deep": zipped([b"[" * 100_000 + b"\n"]),
        "a number too long": zipped([b'{"seed":' + b"9" * 5000 + b"}\n"]),
    }


REFUSED = [
    "no zip",
    "another member",
    "a named member",
    "nothing",
    "cut off",
    "no json",
    "nan",
    "a key twice",
    "a key too many",
    "another schema",
    "deep",
    "a number too long",
]


@pytest.mark.parametrize("name", REFUSED)
def test_an_artifact_that_is_refused_is_told_in_our_words(bench: Bench, name: str) -> None:
    number = bench.pull(fork="mallory")
    run = bench.static(number, hostile_archives(bench, number)[name])
    posted = only(bench.post(run))
    assert posted.status == "INVALID"
    text = bench.comment(number)
    assert "cannot be read" in headline(text)
    assert "<img" not in text
    assert "](http://evil)" not in text
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert bench.check(number).conclusion == "failure"


def test_words_of_a_pull_request_are_inert_wherever_they_stand(bench: Bench) -> None:
    number = bench.pull(fork="mallory", title=HOSTILE)
    session = bench.session(bench.head(number), warnings=[HOSTILE])
    head = session.header.head.model_copy(update={"subject": HOSTILE, "revision": HOSTILE})
    session = changed(session, lambda run: run.model_copy(update={"warnings": [HOSTILE]}))
    session = Session(header=session.header.model_copy(update={"head": head}), runs=session.runs)
    only(bench.post(bench.static(number, session)))
    text = bench.comment(number)
    assert "<img" not in text.replace("`", "") or "`</details><img" in text
    assert "\u202e" not in text + str(bench.check(number).title)
    cmarkgfm = pytest.importorskip("cmarkgfm")
    rendered = cmarkgfm.github_flavored_markdown_to_html(text)
    assert "<img" not in rendered
    assert "evil</a>" not in rendered
    assert 'href="http://evil' not in rendered


def test_records_that_break_the_judge_are_invalid_and_told_in_the_log(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a hostile number")

    monkeypatch.setattr("regbot.forge.post.judge", broken)
    number = bench.pull()
    found = bench.post(bench.static(number, bench.session(bench.head(number))))
    assert isinstance(found, list)
    assert found[0].status == "INVALID"
    assert "ZeroDivisionError" in found[0].fault
    assert "hostile number" not in bench.comment(number)
    assert bench.check(number).conclusion == "failure"


# Events


def test_the_run_is_taken_from_either_event_and_from_nothing_else(bench: Bench, tmp_path: Path) -> None:
    number = bench.pull()
    run = bench.static(number, bench.session(bench.head(number)))
    file = tmp_path / "event.json"
    for event in (
        bench.repo.event_of("workflow_run", run=run),
        bench.repo.event_of("workflow_dispatch", workflow="regbot-post.yml", inputs={"run": str(run.id)}),
    ):
        file.write_text(json.dumps(event))
        assert run_of_event(file, 5) == run.id
    asked = {"pr": "1", "good": "a", "bad": "b", "nonce": NONCE}
    file.write_text(json.dumps(bench.repo.event_of("workflow_dispatch", workflow="regbot-bisect.yml", inputs=asked)))
    assert run_of_event(file, 5) == 5
    for bad in ({}, [], {"inputs": {"run": "7; rm"}}, {"inputs": None}, {"workflow_run": {"id": True}}, {"inputs": {}}):
        file.write_text(json.dumps(bad))
        with pytest.raises(EventError, match="names no workflow run"):
            run_of_event(file)


def test_events_that_come_twice_or_in_another_order_end_the_same(bench: Bench) -> None:
    number = bench.pull()
    old = bench.head(number)
    first = bench.static(number, bench.session(old, theirs=FALLBACK))
    new = bench.push(number, "x = 3\n")
    second = bench.static(number, bench.session(new))
    rerun = bench.static(number, bench.session(new), attempt=2)
    rerun.id = second.id + 10**6
    bench.repo.runs[rerun.id] = rerun
    for run in (rerun, second, first, rerun, first, second, second):
        bench.post(run)
    text = bench.comment(number)
    assert f'"head":"{new}"' in text
    assert '"attempt":2' in text
    assert "Stale" not in text
    assert bench.check(number, new).conclusion == "neutral"


def test_a_run_of_a_head_that_moved_before_it_ended_is_of_its_own_commit(bench: Bench) -> None:
    number = bench.pull()
    old = bench.head(number)
    run = bench.static(number, bench.session(old, theirs=FALLBACK))
    new = bench.push(number, "x = 3\n")
    only(bench.post(run))
    assert bench.check(number, old).conclusion == "failure"
    assert bench.repo.check_runs(new) == []
    assert "**Stale:**" in bench.comment(number)


def test_a_trace_that_was_given_up_for_a_newer_head_leaves_the_verdict_that_stands(bench: Bench) -> None:
    number = bench.pull()
    only(bench.post(bench.static(number, bench.session(bench.head(number)))))
    stands = bench.comment(number)
    bench.push(number, "x = 3\n")
    given_up = bench.static(number, None, conclusion="cancelled")
    bench.push(number, "x = 4\n")
    assert isinstance(bench.post(given_up), Ignored)
    assert bench.comment(number) == stands


def test_a_pull_request_that_was_closed_gets_no_static_result(bench: Bench) -> None:
    number = bench.pull()
    run = bench.static(number, bench.session(bench.head(number)))
    bench.repo.close(number)
    assert isinstance(bench.post(run), Ignored)


def test_a_measurement_that_ends_after_the_merge_ends_its_check(bench: Bench) -> None:
    number = bench.pull()
    bench.approve(number)
    run = bench.measured(number, bench.session(bench.head(number), timed=SAME))
    bench.repo.close(number)
    assert only(bench.post(run)).status == "PASS"
    assert bench.check(number).status == "completed"


# A comment of ours that somebody has edited


def edited(bench: Bench, number: int, old: str, new: str) -> None:
    (comment,) = bench.repo.comments(number)
    assert old in comment.body
    bench.repo.edit_comment(comment.id, comment.body.replace(old, new))


def test_a_comment_that_claims_a_measurement_turns_no_check_green(bench: Bench) -> None:
    """Of a measurement that is there and was not asked for last, of one of another commit, and of none at all."""
    number = bench.pull()
    run = bench.static(number, bench.session(bench.head(number), theirs=FALLBACK))
    only(bench.post(run))
    text = bench.comment(number)
    fine = bench.measured(number, bench.session(bench.head(number), timed=SAME))
    other = bench.pull("other", "x = 9\n")
    bench.approve(other)
    theirs = bench.measured(other, bench.session(bench.head(other), timed=SAME))
    only(bench.post(theirs))
    for claimed in (fine.id, theirs.id, run.id, 10**9, 2**63, 0):
        ((comment, _),) = [(each, each.id) for each in bench.repo.comments(number)]
        stamp = text.splitlines()[0].replace("static", "measured").replace(str(run.id), str(claimed))
        bench.repo.edit_comment(comment.id, stamp.replace("FAIL", "PASS") + "\n### ✅ PASS: trust me\n")
        assert only(bench.post(run)).shown
        assert bench.comment(number) == text
        assert bench.check(number).conclusion == "failure"
        assert "trust me" not in str(bench.check(number).summary)


def test_what_a_weaker_poster_overwrites_late_is_judged_again_from_its_own_run(bench: Bench) -> None:
    """The comment says that there is a measurement, GitHub that it was asked for, and its artifact what it came to."""
    number = bench.pull()
    static = bench.static(number, bench.session(bench.head(number)))
    only(bench.post(static))
    weak = bench.static(number, bench.session(bench.head(number)))
    strong = bench.measured(number, bench.session(bench.head(number), timed=SLOWER))

    class Late(Forge):
        waiting = True

        def update_check(self, id: int, check) -> None:  # type: ignore[no-untyped-def]
            if Late.waiting:
                Late.waiting = False
                bench.approve(number)
                only(bench.post(strong))
                text.append(bench.comment(number))
            super().update_check(id, check)

    text: list[str] = []
    forge = bench.forge
    forge.__class__ = Late
    (posted,) = post(forge, weak.id, bench.checkout)  # type: ignore[misc]
    assert not posted.shown
    assert bench.check(number).conclusion == "failure"
    assert str(bench.check(number).summary) == bench.comment(number) == text[0]


# A bad day


def test_github_that_is_down_for_an_hour_leaves_nothing_half_done_and_a_rerun_completes(bench: Bench) -> None:
    number = bench.pull()
    bench.approve(number)
    run = bench.measured(number, bench.session(bench.head(number), timed=SLOWER))
    for end in ("*/check-runs/*", "*/comments"):  # goes down while the check run, or the comment, is written
        bench.hub.faults.next("503-after", "*", end, times=1000)
        with pytest.raises(AwayError, match="nothing is posted twice"):
            bench.post(run)
        bench.hub.faults.stop()
    assert only(bench.post(run)).status == "FAIL"
    assert bench.check(number).conclusion == "failure"
    assert "slower" in bench.comment(number)


def test_an_expired_token_is_told(bench: Bench) -> None:
    number = bench.pull()
    run = bench.static(number, bench.session(bench.head(number)))
    token = bench.hub.token(BOT, actions="read", checks="write", pull_requests="write", contents="read")
    bench.hub.expire(token)
    with pytest.raises(RefusedError, match="expired"):
        post(Forge(token, "acme/moe", bench.hub.url, lambda _: None), run.id, bench.checkout)


@pytest.mark.long
def test_a_fault_storm_over_200_posts_loses_nothing_and_doubles_nothing(hub: FakeGitHub, tmp_path: Path) -> None:
    """30% of all requests: 5xx before and after they took effect, resets, 403 and 429 with Retry-After."""
    bench = Bench.make(hub, tmp_path, TOML.replace('meshes = ["ep"]', 'meshes = ["ep"]\ntimed = []'))
    numbers = [bench.pull(branch=f"topic-{n}", text=f"x = {n}\n") for n in range(40)]
    last: dict[int, str] = {}
    posts = []
    for n, number in enumerate(numbers):
        head = bench.head(number)
        good, bad = zipped(bench.session(head)), zipped(bench.session(head, theirs=FALLBACK))
        left = [good, bad, b"no zip", good, bad][n % 5 :] + [good, bad, b"no zip", good, bad][: n % 5]
        posts += [bench.static(number, each) for each in left]
        if n % 2:  # half of them are measured in the end; static results come late, and again
            bench.approve(number)
            posts[-2] = bench.measured(number, left[-2])
        last[number] = {good: "PASS", bad: "FAIL", b"no zip": "INVALID"}[left[-2 if n % 2 else -1]]
    assert len(posts) == 200
    hub.faults.plan(0.3, seed=11)
    before = len(hub.requests)
    for run in posts:
        bench.post(run)
    hub.faults.stop()
    hit = len(hub.faults.happened) / (len(hub.requests) - before)
    assert 0.25 < hit < 0.35
    for n, number in enumerate(numbers):
        check, text = bench.check(number), bench.comment(number)  # one of each
        assert check.status == "completed"
        assert f'"tier":"{"measured" if n % 2 else "static"}"' in text, n
        assert f'"status":"{last[number]}"' in text, n
        passed = "success" if n % 2 else "neutral"
        assert check.conclusion == (passed if last[number] == "PASS" else "failure"), n


def test_posting_needs_no_more_than_its_workflow_gives(bench: Bench) -> None:
    """``bench.forge`` has the permissions of regbot-post; without any one of them it is refused."""
    number = bench.pull()
    run = bench.static(number, bench.session(bench.head(number)))
    all_of = {"actions": "read", "checks": "write", "pull_requests": "write", "contents": "read"}
    for lacking in all_of:
        token = bench.hub.token(BOT, **{key: value for key, value in all_of.items() if key != lacking})
        with pytest.raises(RefusedError):
            post(Forge(token, "acme/moe", bench.hub.url, lambda _: None), run.id, bench.checkout)
    assert only(bench.post(run)).status == "PASS"
    assert run.path != MEASURE
