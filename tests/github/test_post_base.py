"""The base's configuration and references judge a change, whatever the pull request's own job claims."""

import subprocess
from pathlib import Path

import pytest

from github_fake import FakeGitHub
from regbot.baselines import Store
from regbot.baselines.intake import environment_of
from regbot.check.references import with_references
from regbot.check.sessions.schedule import Slot
from regbot.github.metadata import Subject, identify_subject
from regbot.github.post import PostedResult, post_run
from regbot.github.trusted_runs import build_trusted_session
from regbot.records.changed_lines import ChangedLines
from regbot.records.config import GitHub, parse_config
from regbot.records.run import Position, Run
from regbot.records.session import Session, SessionHeader, StoredTrace, UnconcernedWorkload
from regbot.workloads.task import plan, plan_of, timed_tasks
from support.baseline_builder import distilled, put
from support.baseline_cases import block_runs, header_of
from support.forge_cases import (
    A2A,
    FALLBACK,
    SAME,
    SLOWER,
    TOML,
    Bench,
    changed,
    only,
    zipped,
)
from support.timed_builder import NODE, PLAN, statics, timed_run


def test_a_header_cannot_soften_its_judge(bench: Bench) -> None:
    number = bench.pull()
    honest = bench.session(bench.head(number), theirs=FALLBACK)
    soft = {
        "sharding": honest.header.sharding.model_copy(update={"bytes_rise_pct": 1e6, "wire_rise_pct": 1e6}),
        "wire": honest.header.wire.model_copy(update={"node_local_gb_s": 1e9, "inter_node_gb_s": 1e9}),
        "expectations": ["all-to-all replaced by gather and sum@*@*: trust me"],
    }
    run = bench.static(number, bench.session(bench.head(number), theirs=FALLBACK, **soft))
    posted = only(bench.post(run))
    assert posted.status == "FAIL"
    run.artifact("regbot-session", zipped(honest))
    assert posted.text == only(bench.post(run)).text


def measured_identity(bench: Bench, number: int, **header: object) -> PostedResult:
    """Post a measurement that timed nothing, because both arms run the same program. ``header``: its claims."""
    session = bench.session(bench.head(number), theirs=A2A, timed=SAME)
    untimed = changed(session, lambda run: run if run.tier == "static" else None, **header)
    return bench.judged(number, untimed)


@pytest.mark.parametrize(
    "claim",
    [
        {"changed_files": []},
        {"changed_files": ["README.md"], "inert_files": ["README.md"]},
        {"changed_files": ["moe.py"], "inert_files": ["moe.py"]},
    ],
)
def test_no_artifact_says_which_files_changed(bench: Bench, claim: dict[str, object]) -> None:
    posted = measured_identity(bench, bench.pull(), **claim)
    assert posted.status == "INCONCLUSIVE"
    assert "moe.py differs" in posted.text


def test_no_field_of_the_header_is_taken_from_the_artifact_but_what_is_only_shown(bench: Bench) -> None:
    number = bench.pull()
    bench.approve(number)
    honest = bench.session(bench.head(number), theirs=A2A, timed=SAME)
    header = honest.header
    arm, plan, digest = (
        {"subject": "trust me", "behaviour": "c" * 64},
        {"even_if_identical": True, "max_pairs": 2},
        "c" * 40,
    )
    trace = StoredTrace(
        entry=header.workloads[0],
        commit=digest,
        tree=digest,
        measured=header.created,
        environment=environment_of(honest.runs[0]),
        ledger=FALLBACK,
    )
    claims: dict[str, object] = {
        "created": "2020-01-01T00:00:00Z",
        "base": header.base.model_copy(update=arm | {"tree": header.head.tree}),
        "head": header.head.model_copy(update=arm | {"tree": header.base.tree}),
        "workloads": ["easy"],
        "untraced": header.workloads,
        "left_out": ["hard"],
        "timing": False,
        "command": "demo",
        "expectations": ["all-to-all replaced by gather and sum@*@*: trust me"],
        "timed": [timed_plan.model_copy(update=plan) for timed_plan in header.timed],
        "stored": [trace],
        "seed": 99,
        "budget_min": 1.0,
        "changed_files": [],
        "changed_lines": ChangedLines(files=[]),
        "repository": "https://github.com/mallory/moe",
        "inert_files": ["moe.py"],
        "stand_ins": ["none.py"],
        "unconcerned": [UnconcernedWorkload(entry=header.workloads[0], proof=digest, reason="trust me")],
        "throughput": header.throughput.model_copy(update={"threshold_pct": 50.0}),
        "program": header.program.model_copy(update={"flops_fail_pct": 1e6}),
        "sharding": header.sharding.model_copy(update={"wire_rise_pct": 1e6}),
        "wire": header.wire.model_copy(update={"inter_node_gb_s": 1e9}),
    }
    only_shown = {"regbot", "warnings"}
    assert claims.keys() | only_shown | {"schema"} == {
        field.alias or name for name, field in SessionHeader.model_fields.items()
    }
    lying = Session(header=header.model_copy(update=claims), runs=honest.runs)
    run = bench.forge.run(bench.measured(number, honest).id)
    subject = identify_subject(bench.forge, run, GitHub(), bench.checkout)
    assert isinstance(subject, Subject)
    config, base, trees = parse_config(TOML, "regbot.toml"), bench.merge_base(number), bench.repo.git.path
    trusted = [build_trusted_session(each, config, subject, base, trees).header for each in (honest, lying)]
    assert trusted[0] == trusted[1]
    for name, claim in claims.items():
        assert claim not in (getattr(header, name), getattr(trusted[1], name)), f"{name} is no lie"


def test_only_the_base_says_which_files_are_inert(hub: FakeGitHub, tmp_path: Path) -> None:
    listed = TOML.replace("version = 1\n", 'version = 1\ninert = ["moe.py", "regbot.toml"]\n')
    bench = Bench.make(hub, tmp_path)
    bench.repo.commit({"moe.py": "x = 2\n", "regbot.toml": listed}, branch="topic")
    number = bench.repo.open_pull(head="topic", author="ann")
    claim = {"changed_files": ["moe.py", "regbot.toml"], "inert_files": ["moe.py", "regbot.toml"]}
    assert measured_identity(bench, number, **claim).status == "INCONCLUSIVE"
    other = Bench.make(hub, tmp_path, listed, name="acme/other")
    assert measured_identity(other, other.pull(), changed_files=["moe.py"], inert_files=[]).status == "PASS"


@pytest.mark.parametrize("gpus", [None, 0])
def test_a_workload_that_only_a_large_node_can_time_is_not_left_out(
    hub: FakeGitHub, tmp_path: Path, gpus: int | None
) -> None:
    toml = TOML.replace("[session]", 'timed_variant = "smoke"\n[session]')
    bench = Bench.make(hub, tmp_path, toml)
    number = bench.pull()
    session = bench.session(bench.head(number), theirs=A2A, timed=[])
    node = NODE.model_copy(update={"gpus": []}) if gpus is not None else None
    posted = bench.judged(number, changed(session, lambda run: run.model_copy(update={"node": node})))
    assert posted.status == "INCONCLUSIVE"


@pytest.mark.parametrize("workloads", [["easy"], ["qwen3-30b-a3b@1/ep", "easy"]])
def test_the_workloads_are_those_of_the_base(hub: FakeGitHub, tmp_path: Path, workloads: list[str]) -> None:
    bench = Bench.make(hub, tmp_path, TOML.replace('["ep"]', '["ep", "ep-dp"]'))
    number = bench.pull()
    session = bench.session(bench.head(number), workloads=workloads)
    posted = only(bench.post(bench.static(number, session)))
    assert posted.status == "INVALID"
    assert "qwen3-30b-a3b@1/ep-dp" in posted.text
    assert "easy" not in posted.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"shape": "mixtral-8x7b@1"}, "has the shape"),
        ({"variant": "cpu"}, "has the variant"),
        ({"adapter": "command"}, "has the adapter"),
        ({"ledger": A2A.model_copy(update={"world_size": 2})}, "has the world size"),
        ({"ledger": A2A.model_copy(update={"world_size": None})}, "has the world size"),
    ],
)
def test_a_run_of_another_workload_is_refused(bench: Bench, change: dict[str, object], reason: str) -> None:
    number = bench.pull()
    session = changed(bench.session(bench.head(number)), lambda run: run.model_copy(update=change))
    posted = only(bench.post(bench.static(number, session)))
    assert posted.status == "INVALID"
    assert reason in posted.text


def test_a_session_with_overrides_is_refused(bench: Bench) -> None:
    number = bench.pull()
    session = bench.session(bench.head(number))
    head = session.header.head.model_copy(update={"overrides": {"dispatcher": "allgather"}})
    changed_session = changed(
        session, lambda run: run.model_copy(update={"arm": head}) if run.arm.name == "head" else run, head=head
    )
    posted = only(bench.post(bench.static(number, changed_session)))
    assert "head ran with overrides" in posted.text
    assert posted.status == "INVALID"


def test_a_static_run_has_no_step_times(bench: Bench) -> None:
    number = bench.pull()
    run = bench.static(number, bench.session(bench.head(number), timed=SLOWER))
    posted = only(bench.post(run))
    assert posted.status == "PASS"
    run.artifact("regbot-session", zipped(bench.session(bench.head(number))))
    assert posted.text == only(bench.post(run)).text


def test_a_plan_that_was_not_timed_is_refused(bench: Bench) -> None:
    number = bench.pull()
    session = changed(
        bench.session(bench.head(number), timed=SLOWER), lambda run: run if run.tier == "static" else None, timed=[]
    )
    posted = bench.judged(number, session)
    assert posted.status == "INVALID"
    assert "should have been timed, but was not" in posted.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [{"steps": 7}, {"cut": 1}, {"world_size": 1}, {"injected_pct": 5.0}, {"measures_luck": True}, {"variant": "x"}],
)
def test_a_plan_that_differs_from_the_base_is_refused(bench: Bench, plan: dict[str, object]) -> None:
    number = bench.pull()
    session = bench.session(bench.head(number), timed=SAME)
    timed = [timed_plan.model_copy(update=plan) for timed_plan in session.header.timed]
    posted = bench.judged(number, changed(session, lambda run: run, timed=timed))
    assert posted.status == "INVALID"
    assert "was not timed as" in posted.text


@pytest.mark.parametrize(("seat", "listed", "refused"), [(1, 8, False), (2, 8, False), (4, 8, False), (4, 2, True)])
def test_a_run_with_fewer_gpus_than_its_node_lists_may_use_the_mesh_of_a_small_node(
    bench: Bench, seat: int, listed: int, refused: bool
) -> None:
    """With ``slurm.gpus_per_node = 2``, and without device cgroups, a run sees all GPUs of the node."""
    number = bench.pull()
    config = parse_config(TOML, "regbot.toml")
    [timed_plan] = [plan_of(task, config.session) for task in timed_tasks(config, plan(config), seat)]
    assert (timed_plan.variant, timed_plan.world_size) == ("smoke", seat)
    node = NODE.model_copy(update={"gpus": ["NVIDIA H100"] * listed})
    session = changed(
        bench.session(bench.head(number), timed=SAME),
        lambda run: run.model_copy(update={"node": node}) if run.tier == "timed" else run,
        timed=[timed_plan],
    )
    posted = bench.judged(number, session)
    assert ("was not timed as" in posted.text) == refused


STORED_GATE = TOML + '[throughput]\ngate = "stored"\n'


def head_alone() -> list[Run]:
    """Return runs of head alone, as fast as the sessions in ``stored``."""
    slots = [Slot(Position(block=0, slot=n, order="head"), 1, "head", PLAN.steps) for n in range(4)]
    return [timed_run(slot, 0.1 * (1 + 0.001 * n)) for n, slot in enumerate(slots)]


def stored(folder: Path) -> dict[str, str]:
    """Return the files of a store with twenty nights of this node class."""
    for n in range(20):
        night = Session(header=header_of(n), runs=[*statics(), *block_runs(n, 2)])
        put(Store(folder), *(baseline for baseline in distilled(night).baselines if baseline.tier == "timed"))
    return {f"baselines/{file.relative_to(folder)}": file.read_text() for file in folder.rglob("*.json")}


def test_stored_references_of_the_base_judge_a_change(bench: Bench, tmp_path: Path) -> None:
    bench.repo.commit({**stored(tmp_path / "store"), "regbot.toml": STORED_GATE})
    bench.update()
    number = bench.pull()
    posted = bench.judged(number, bench.session(bench.head(number), timed=head_alone()))
    assert posted.status == "PASS"
    assert "20 stored sessions" in posted.text


def test_stored_references_of_the_change_do_not_judge_it(bench: Bench, tmp_path: Path) -> None:
    files = stored(tmp_path / "store")
    bench.repo.commit({"regbot.toml": STORED_GATE})
    bench.update()
    bench.repo.commit({**files, "moe.py": "x = 2\n"}, branch="topic")
    number = bench.repo.open_pull(head="topic", author="ann")
    session = bench.session(bench.head(number), timed=head_alone())
    plan, _ = with_references(session.header.timed[0], Store(tmp_path / "store"), NODE.node_class)
    assert plan.references, "what a hostile header would claim"
    session = changed(session, lambda run: run, timed=[plan])
    posted = bench.judged(number, session)
    assert posted.status == "INCONCLUSIVE"
    assert "no session of this workload is stored" in posted.text


@pytest.mark.parametrize(("spare_s", "status"), [(-100.0, "PASS"), (-140.0, "INVALID")])
def test_runs_cannot_take_longer_than_the_job_that_made_them(bench: Bench, spare_s: float, status: str) -> None:
    """The difference is larger than that of two machines' clocks."""
    number = bench.pull()
    session = changed(
        bench.session(bench.head(number), timed=SAME),
        lambda run: run.model_copy(update={"wall_s": 600.0}) if run.tier == "timed" else run,
    )
    claimed_s = 600.0 * sum(run.tier == "timed" for run in session.runs)
    posted = bench.judged(number, session, seconds=claimed_s + spare_s)
    assert posted.status == status
    assert ("the whole job took" in posted.text) == (status == "INVALID")


@pytest.mark.parametrize(("failed_only", "status"), [(True, "PASS"), (False, "INVALID")])
def test_running_only_the_posting_job_again_voids_no_measurement(bench: Bench, failed_only: bool, status: str) -> None:
    """GitHub moves the start of the run in both cases."""
    number = bench.pull()
    bench.approve(number)
    session = changed(
        bench.session(bench.head(number), timed=SAME),
        lambda run: run.model_copy(update={"wall_s": 600.0}) if run.tier == "timed" else run,
    )
    run = bench.measured(number, session, seconds=600.0 * sum(run.tier == "timed" for run in session.runs))
    assert only(bench.post(run)).status == "PASS"
    run.rerun(failed_only=failed_only)
    run.seconds = 0.0
    assert only(bench.post(run)).status == status


def test_a_pull_request_with_the_first_configuration_does_not_judge_itself(hub: FakeGitHub, tmp_path: Path) -> None:
    bench = Bench.make(hub, tmp_path)
    bench.repo.commit({"regbot.toml": None})
    bench.update()
    bench.repo.commit({"regbot.toml": TOML}, branch="topic")
    number = bench.repo.open_pull(head="topic", author="ann")
    posted = only(bench.post(bench.static(number, bench.session(bench.head(number)))))
    assert posted.status == "INVALID"
    assert "merge one first" in posted.text


def test_a_checkout_without_history_is_reported(bench: Bench) -> None:
    number = bench.pull()
    run = bench.static(number, bench.session(bench.head(number)))
    bench.repo.commit({"other.py": "1"})
    shallow = bench.folder / "shallow"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{bench.repo.git.path}", str(shallow)], check=True)
    assert "fetch-depth: 0" in only(post_run(bench.forge, run.id, shallow)).text
