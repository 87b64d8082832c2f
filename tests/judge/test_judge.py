"""The verdict on a session: which runs count, when a run is distrusted, and the table of statuses."""

import pytest

from regbot.judge import judge, parse_expectation
from regbot.judge.validity import _is_idle
from regbot.ledgers import catalogue as names
from regbot.ledgers.rules import Circumstances, decide_status
from regbot.records.changed_lines import ChangedFile, ChangedLines, Hunk
from regbot.records.config import Config
from regbot.records.config import ShardingThresholds as Thresholds
from regbot.records.ledger import GuessKind, Ledger, Liveness
from regbot.records.run import CodeProof, FileLines, Outcome, Run
from regbot.records.session import Session
from regbot.records.verdict import Sharding, Status, Verdict, WireTime, WorkloadVerdict
from support.judge_cases import A2A, BASE, GATHERED, HEAD
from support.ledger_builder import WORKLOAD, backend, edited, entry, smoke_arm, smoke_ledger, smoke_run, smoke_session
from support.timed_builder import HEADER, PLAN, noisy, play, statics
from support.work import measure_work

TWO_AXES, IGNORES_MESH = smoke_ledger(world=64), smoke_ledger(world=64, dispatcher="local")
A_SCALAR, ANOTHER = "a float was read and answered with 1.0", "an int was read and answered with 2"
A_CHECK = "a float was compared with infinity and taken to be finite"


def verdict_of(session: Session, *rules: str) -> Verdict:
    return judge(session, Config(), [parse_expectation(rule) for rule in rules])


def pair(base: Ledger | None = A2A, head: Ledger | None = A2A, **of_head: object) -> Session:
    return smoke_session(smoke_run(BASE, base), smoke_run(HEAD, head, **of_head))  # type: ignore[arg-type]


def judged(session: Session, *rules: str) -> WorkloadVerdict:
    (workload,) = verdict_of(session, *rules).workloads
    return workload


def sharding(session: Session, *rules: str) -> Sharding:
    section = judged(session, *rules).sharding
    assert section is not None
    return section


def why_invalid(session: Session) -> str:
    verdict = verdict_of(session)
    (workload,) = verdict.workloads
    assert (verdict.verdict, workload.validity.status, workload.sharding) == ("INVALID", "INVALID", None)
    return "\n".join(workload.validity.reasons)


def failed(arm: str, outcome: Outcome, attempt: int = 1, reason: str = "") -> Run:
    return smoke_run(BASE if arm == "base" else HEAD, None, outcome, attempt=attempt, reason=reason)


# The sharding section


@pytest.mark.parametrize(
    ("head", "status", "identical", "reason"),
    [
        (A2A, "PASS", True, "device program identical"),
        (
            A2A.model_copy(update={"fingerprint": "b" * 64}),
            "PASS",
            False,
            "same collectives, but head runs other operators",
        ),
        (GATHERED.model_copy(update={"fingerprint": A2A.fingerprint}), "FAIL", False, names.ALL_TO_ALL_REPLACED),
    ],
)
def test_only_the_same_collectives_and_operators_are_identical(
    head: Ledger, status: str, identical: bool, reason: str
) -> None:
    section = sharding(pair(head=head))
    assert (section.status, section.identical_program, not section.findings) == (status, identical, status == "PASS")
    assert section.reasons[0].startswith(reason)


@pytest.mark.parametrize(("changed", "status"), [("tools/stand_ins.py", "REVIEW"), ("tools/other.py", "PASS")])
def test_a_change_of_the_declared_stand_ins_needs_review(changed: str, status: Status) -> None:
    session = pair()
    header = session.header.model_copy(update={"changed_files": [changed], "stand_ins": ["tools/stand_ins.py"]})
    (workload,) = judge(session.model_copy(update={"header": header}), Config()).workloads
    assert workload.sharding is not None
    assert workload.sharding.status == status
    assert (changed in workload.sharding.reasons[0]) == (status == "REVIEW")


def test_configurations_of_one_commit_are_compared_and_not_judged() -> None:
    overrides = {"dispatcher": "allgather"}
    head = smoke_arm("head", commit=BASE.commit, tree=BASE.tree, overrides=overrides)
    run = smoke_run(head, GATHERED, backends={"dispatcher": backend("allgather", "allgather")})
    verdict = verdict_of(smoke_session(smoke_run(BASE, A2A), run))
    (workload,) = verdict.workloads
    assert workload.sharding is not None
    assert (verdict.verdict, workload.sharding.status) == ("PASS", "PASS")
    assert workload.sharding.reasons[0] == "comparison of two configurations: differences are shown, not judged"
    assert [(f.pattern, f.status) for f in workload.sharding.findings] == [(names.ALL_TO_ALL_REPLACED, "PASS")]


# Values that were guessed while counting


def guessing(*guesses: str, program: str | None = "a" * 64, ledger: Ledger = A2A) -> Ledger:
    return ledger.model_copy(update={"guesses": list(guesses), "fingerprint": program})


def with_kinds(ledger: Ledger, kinds: dict[str, GuessKind]) -> Ledger:
    return ledger.model_copy(update={"guess_kinds": kinds})


@pytest.mark.parametrize(
    ("head", "status", "reason"),
    [
        (guessing(ANOTHER), "PASS", ""),  # the same program
        (
            guessing(ANOTHER, program="b" * 64),
            "REVIEW",
            f"which differ between the arms: {A_SCALAR} in base, {ANOTHER} in head",
        ),
        (guessing(ANOTHER, program="b" * 64, ledger=GATHERED), "FAIL", "which differ between the arms"),
    ],
)
def test_other_guesses_in_different_programs_need_review_and_do_not_soften_a_failure(
    head: Ledger, status: str, reason: str
) -> None:
    section = sharding(pair(guessing(A_SCALAR), head))
    guessed = [text for text in section.reasons if "guessed" in text]
    assert (section.status, len(guessed)) == (status, bool(reason))
    assert all(reason in text for text in guessed)
    assert (section.reasons[0] in guessed) == (status == "REVIEW")


@pytest.mark.parametrize(
    ("kinds", "status"),
    [
        ({A_CHECK: "finite"}, "PASS"),
        ({A_CHECK: "assertion"}, "PASS"),
        ({A_CHECK: "value"}, "REVIEW"),
        ({A_CHECK: "execution"}, "REVIEW"),
        ({}, "REVIEW"),
        ({ANOTHER: "finite"}, "REVIEW"),
    ],
)
def test_only_a_guess_that_decides_no_size_needs_no_review(kinds: dict[str, GuessKind], status: str) -> None:
    base = with_kinds(guessing(A_CHECK), kinds)
    assert sharding(pair(base, guessing(program="b" * 64))).status == status


# Declared changes


def test_a_declared_finding_passes_and_a_declaration_that_matched_nothing_is_a_warning() -> None:
    rule = f"{names.ALL_TO_ALL_REPLACED}@ep@{WORKLOAD}: small groups"
    verdict = verdict_of(pair(head=GATHERED), rule)
    assert (verdict.verdict, verdict.warnings) == ("PASS", [])
    reasons = sharding(pair(head=GATHERED), rule).reasons
    assert f"{names.ALL_TO_ALL_REPLACED}, accepted: small groups" in reasons
    verdict = verdict_of(pair(), rule)
    assert verdict.verdict == "PASS"
    assert "no finding matches" in verdict.warnings[0]


# The dispatcher gate


def test_a_dispatcher_that_head_silently_replaced_fails() -> None:
    section = sharding(pair(head=GATHERED, backends={"dispatcher": backend("allgather")}))
    assert [(f.pattern, f.status) for f in section.findings] == [(names.DISPATCHER_OFF, "FAIL")]


def test_times_of_a_node_on_which_a_requested_library_has_nothing_to_do_are_invalid() -> None:
    plan = PLAN.model_copy(update={"dispatcher": "deepep"})
    header = HEADER.model_copy(update={"timed": [plan]})
    traces = [run.model_copy(update={"backends": {"dispatcher": backend("alltoall", "deepep")}}) for run in statics()]
    local = {"dispatcher": backend("local", "local")}
    timed = [run.model_copy(update={"backends": local}) for run in play(noisy(1.0, 0.002), header)]
    verdict = judge(Session(header=header, runs=[*traces, *timed]), Config())
    assert verdict.workloads[0].validity.status == "INVALID"
    assert any("it ran nothing; time it on more GPUs" in reason for reason in verdict.workloads[0].validity.reasons)


# Validity


@pytest.mark.parametrize(
    ("outcomes", "status", "reason"),
    [
        (["crashed", "crashed"], "FAIL", "in both attempts, head crashed: because; base ran"),
        (["hung", "hung"], "FAIL", "in both attempts, head ran into the time limit: because; base ran"),
        (["no_record", "no_record"], "FAIL", "in both attempts, head ended without a result: because; base ran"),
        (["crashed"], "INVALID", "head crashed: because; base ran. Head was tried only once: run the check again"),
        (["crashed", "ok"], "PASS", "both arms ran their own commit's code"),
        (["bad_record", "bad_record"], "INVALID", "head left a result that cannot be used: because"),
        (["refused", "refused"], "INVALID", "head cannot be measured: because"),
    ],
)
def test_head_fails_if_it_breaks_twice_where_base_runs(outcomes: list[Outcome], status: str, reason: str) -> None:
    attempts = [
        smoke_run(HEAD, A2A, attempt=attempt) if outcome == "ok" else failed("head", outcome, attempt, "because")
        for attempt, outcome in enumerate(outcomes, 1)
    ]
    verdict = verdict_of(smoke_session(smoke_run(BASE, A2A), *attempts))
    (workload,) = verdict.workloads
    assert (verdict.verdict, workload.validity.status, workload.sharding is None) == (status, status, status != "PASS")
    assert workload.validity.reasons[0].startswith(reason)


def test_a_workload_that_hangs_twice_fails_the_check_although_others_are_skipped() -> None:
    other = "mixtral-8x7b@1/ep"
    hung = [failed("head", "hung", attempt) for attempt in (1, 2)]
    theirs = A2A.model_copy(update={"workload": other})
    skipped = [smoke_run(BASE, theirs), failed("head", "skipped").model_copy(update={"workload": other})]
    verdict = verdict_of(smoke_session(smoke_run(BASE, A2A), *hung, *skipped, workloads=(WORKLOAD, other)))
    assert [workload.validity.status for workload in verdict.workloads] == ["FAIL", "INVALID"]
    assert verdict.verdict == "FAIL"


def test_an_import_of_foreign_code_by_both_arms_is_one_reason() -> None:
    code = CodeProof(watched={}, foreign={"moe": "/opt/site-packages/moe"}, files={})
    session = smoke_session(smoke_run(BASE, A2A, code=code), smoke_run(HEAD, A2A, code=code))
    (entry,) = verdict_of(session).workloads
    assert [reason.partition(" from ")[0] for reason in entry.validity.reasons] == ["base and head imported moe"]


@pytest.mark.parametrize(
    ("changed", "lines", "said"),
    [
        (
            ["moe/a.py", "moe/b.py", "README.md", "tests/test_b.py"],
            (5, 9),
            "1 of 2 changed Python files: the trace did not load moe/b.py",
        ),
        (["moe/a.py"], (21, 22), "1 of 1 changed Python file: the trace ran no changed line of moe/a.py"),
        (["moe/a.py"], (9, 22), None),
        (["moe/a.py"], (50, 51), None),  # lines of the module
        (["moe/a.py", "setup.cfg"], (5, 9), None),
        (None, (5, 9), None),
    ],
)
def test_changed_files_that_the_traces_do_not_exercise_are_named_in_the_validity(
    changed: list[str] | None, lines: tuple[int, int], said: str | None
) -> None:
    ran = {"moe/a.py": FileLines(ran=[(5, 9)], idle=[(20, 30)])}
    code = CodeProof(watched={"moe": "moe"}, foreign={}, files={"moe/a.py": "a" * 64}, lines=ran)
    session = smoke_session(smoke_run(BASE, A2A, code=code), smoke_run(HEAD, A2A, code=code))
    first, last = lines
    hunk = Hunk(base_line=first, base_count=0, head_line=first, head_count=last - first + 1)
    changes = {
        "changed_files": changed,
        "inert_files": ["README.md"],
        "changed_lines": ChangedLines(files=[ChangedFile(base="moe/a.py", head="moe/a.py", hunks=[hunk])]),
    }
    session = session.model_copy(update={"header": session.header.model_copy(update=changes)})
    assert judged(session).validity.reasons[1:] == ([f"not exercised: {said}"] if said else [])


def test_the_search_for_idle_lines_takes_twice_the_work_for_twice_the_file() -> None:
    def work(number: int) -> int:
        ranges = [(3 * line, 3 * line) for line in range(number)]
        proof = CodeProof(watched={}, foreign={}, files={}, lines={"a.py": FileLines(ran=ranges, idle=ranges)})
        places = [3 * line + 1 for line in range(number)]
        hunks = [Hunk(base_line=line, base_count=1, head_line=line, head_count=1) for line in places]
        run, file = smoke_run(BASE, A2A, code=proof), ChangedFile(base="a.py", head="a.py", hunks=hunks)
        return measure_work(lambda: _is_idle(file, {"base": run, "head": run})).lines

    assert work(400) < 2.3 * work(200)


WRONG = {"dispatcher": backend("alltoall", "deepep")}
COUNTS = edited(IGNORES_MESH, lambda e: e, entry(dtype="int64", role="control"))
NO_TRAFFIC = "neither arm moves payload between the 16 ranks of ep, so expert parallelism was not measured"


def unproven(liveness: Liveness | None) -> Session:
    return pair(head=A2A.model_copy(update={"liveness": liveness}))


@pytest.mark.parametrize(
    ("session", "complaint"),
    [
        (pair(code=None), "head does not prove which code it ran"),
        (pair(head=None), "head has no ledger: a missing count is not 0"),
        (unproven(None), "so its counts prove nothing"),
        (unproven(Liveness(planted=3, seen=2)), "so its counts prove nothing"),
        (unproven(Liveness(planted=0, seen=0)), "so its counts prove nothing"),
        (
            unproven(Liveness(planted=3, seen=3, sequence_advance=9, sequence_counted=8)),
            "sequence numbers advanced by 9 for 8 counted), so its counts prove nothing",
        ),
        (
            smoke_session(*(smoke_run(arm, A2A, backends=WRONG) for arm in (BASE, HEAD))),
            "requested dispatcher 'deepep' and executed 'alltoall'",
        ),
        # FSDP still gathers and reduces on dp and edp, because the harness shards every layer.
        (pair(IGNORES_MESH, IGNORES_MESH), NO_TRAFFIC),
        (pair(COUNTS, COUNTS), NO_TRAFFIC),  # counts alone are no exchange of tokens
        (smoke_session(smoke_run(BASE, A2A)), "there is no run of head"),
        (smoke_session(smoke_run(HEAD, A2A)), "there is no run of base"),
        (smoke_session(), "there is no run of base and none of head"),
        (smoke_session(smoke_run(BASE, A2A), smoke_run(HEAD, A2A, tier="timed")), "there is no run of head"),
    ],
)
def test_runs_that_are_missing_or_prove_nothing_are_invalid(session: Session, complaint: str) -> None:
    assert complaint in why_invalid(session)


def test_a_run_of_another_commit_is_invalid() -> None:
    session = smoke_session(smoke_run(BASE, A2A), smoke_run(smoke_arm("head", commit="3" * 40), A2A))
    planned = session.header.model_copy(update={"head": HEAD})
    assert "head was run at 333333333333" in why_invalid(session.model_copy(update={"header": planned}))


def test_a_framework_that_runs_no_code_of_the_commit_is_invalid() -> None:
    """An installed framework is the same in both arms, so it would pass for any commits."""
    runs = [smoke_run(arm, A2A).model_copy(update={"adapter": "torchtitan"}) for arm in (BASE, HEAD)]
    assert judge(smoke_session(*runs), Config()).verdict == "PASS"
    bare = [run.model_copy(update={"code": run.code.model_copy(update={"watched": {}})}) for run in runs if run.code]
    assert "ran an installed torchtitan and no code of its commit" in why_invalid(smoke_session(*bare))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"source": "kineto"}, "counted in different ways: 'dispatch-mode' in base, 'kineto' in head"),
        ({"gpu": "h200"}, "traced for different GPUs: h100 in base, h200 in head"),
        ({"device": "cpu"}, "are of programs for different devices: cuda in base, cpu in head"),
        ({"scope": "whole"}, "scope 'step' in base, 'whole' in head"),
        ({"world_size": 64}, "of another world size: 16 in base, 64 in head"),
        ({"patches": []}, "traced with different replacements"),
        ({"workload": "mixtral-8x7b@1/ep"}, "the ledger is of workload 'mixtral-8x7b@1/ep', the run of"),
        ({"variant": "smoke"}, "the ledger is of variant 'smoke', the run of 'full'"),
        ({"config": {"dispatcher": "alltoall", "ep": 8}}, "ep is 16 in base, 8 in head, but the shape fixes it"),
    ],
)
def test_ledgers_that_do_not_measure_the_same_are_invalid(change: dict[str, object], complaint: str) -> None:
    base = A2A.model_copy(update={"device": "cuda"})
    head = base.model_copy(update=change)
    session = smoke_session(smoke_run(BASE, base), smoke_run(HEAD, A2A).model_copy(update={"ledger": head}))
    assert complaint in why_invalid(session)


def test_a_dense_control_need_not_exchange_anything() -> None:
    silent = IGNORES_MESH.model_copy(update={"variant": "full-dense"})
    runs = [smoke_run(arm, silent, variant="full-dense", backends={}) for arm in (BASE, HEAD)]
    assert verdict_of(smoke_session(*runs)).verdict == "PASS"


# The status table

UP, SAME, DOWN = WireTime(base_s=1.0, head_s=1.1), WireTime(base_s=1.0, head_s=1.0), WireTime(base_s=1.0, head_s=0.9)
A_LITTLE_UP = WireTime(base_s=1.0, head_s=1.04)


@pytest.mark.parametrize(
    ("pattern", "own", "step", "expected"),
    [
        (names.DISPATCHER_OFF, DOWN, DOWN, "FAIL"),
        (names.GRADIENT_LOST, DOWN, DOWN, "FAIL"),
        (names.ALL_TO_ALL_REPLACED, UP, UP, "FAIL"),
        (names.ALL_TO_ALL_REPLACED, SAME, SAME, "FAIL"),
        (names.ALL_TO_ALL_REPLACED, DOWN, UP, "REVIEW"),
        (names.REPLACED_BY["all_gather"], SAME, SAME, "FAIL"),
        (names.REPLACED_BY["broadcast"], DOWN, UP, "REVIEW"),
        (names.REPLACED_BY_TRANSFERS, SAME, UP, "REVIEW"),
        (names.REPLACED_BY_TRANSFERS, UP, UP, "FAIL"),
        (names.SPLIT, DOWN, DOWN, "REVIEW"),
        (names.SPLIT, UP, UP, "FAIL"),
        (names.RECOMPUTES, UP, UP, "FAIL"),
        (names.RECOMPUTES, UP, A_LITTLE_UP, "REVIEW"),
        (names.AXIS_LOST, UP, UP, "FAIL"),
        (names.AXIS_LOST, DOWN, UP, "REVIEW"),
        (names.GRADIENT_GAINED, UP, UP, "FAIL"),
        (names.COUNTS_ADDED, SAME, SAME, "REVIEW"),
        (names.BYTES_UP, UP, UP, "FAIL"),
        (names.BYTES_UP, UP, A_LITTLE_UP, "REVIEW"),
        (names.BYTES_DOWN, DOWN, DOWN, "PASS"),
        (names.BYTES_DOWN, DOWN, UP, "REVIEW"),
        (names.COUNT_UP, SAME, DOWN, "REVIEW"),
        (names.COUNT_DOWN, SAME, SAME, "REVIEW"),
        (names.COUNT_DOWN, SAME, DOWN, "PASS"),
        (names.CONTROL_CHANGED, SAME, UP, "REVIEW"),
        (names.MOVED, UP, UP, "REVIEW"),
        (names.MOVED, DOWN, DOWN, "PASS"),
        (names.OTHER_LAYER, UP, UP, "REVIEW"),
        (names.OTHER_LAYER, SAME, DOWN, "REVIEW"),
        (names.RESTORED, DOWN, DOWN, "PASS"),
        (names.RESTORED, DOWN, SAME, "REVIEW"),
        (names.RESTORED, UP, UP, "FAIL"),
        (names.DISPATCHER_ON, DOWN, DOWN, "PASS"),
    ],
)
def test_a_finding_has_the_status_of_its_table_row(
    pattern: str, own: WireTime, step: WireTime, expected: Status
) -> None:
    seen = Circumstances(own, step, bytes_rise_pct=10.0, gradient_lost=False, is_sized=True)
    assert decide_status(pattern, seen, Thresholds()) == expected


@pytest.mark.parametrize(("gradient_lost", "is_sized"), [(True, True), (False, False)])
def test_nothing_passes_while_a_gradient_reduction_is_lost_or_a_size_is_unknown(
    gradient_lost: bool, is_sized: bool
) -> None:
    seen = Circumstances(DOWN, DOWN, 0.0, gradient_lost, is_sized)
    assert decide_status(names.RESTORED, seen, Thresholds()) == "REVIEW"
