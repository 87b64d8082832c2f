"""The states of a check that also times: the sharding cases with a throughput section and the runs behind it."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from regbot.baselines import environment_of
from regbot.judge import judge
from regbot.judge.estimates import format_estimate
from regbot.judge.pairs import pair_up
from regbot.judge.reasons import describe_slow_launches, explain_withheld
from regbot.judge.stored_comparison import compare_head_with_stored, compare_times
from regbot.judge.throughput import primary_test, slow_launches
from regbot.judge.timed_validity import list_failures
from regbot.records.calibration_summary import CalibrationSummary, PairNoise, Rate
from regbot.records.config import Config
from regbot.records.reference import Reference, StoredSession
from regbot.records.run import Backend, Outcome, Position, Run
from regbot.records.session import StoredTrace
from regbot.records.text.percentages import round_up_percent
from regbot.records.verdict import StoredComparison, Throughput, Validity
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import Thresholds, pairs_needed, sequential_test
from support import timed_cases
from support.sharding_cases import (
    BASE,
    HEAD,
    MIXTRAL,
    QWEN,
    Case,
    Shape,
    case,
    pass_identical,
    passed,
    sharding_fail,
    trusted,
)

Times = tuple[list[Run], Throughput]

TIMED = (QWEN, MIXTRAL)
"""One entry of each shape is timed; the other meshes would run the same program on these ranks."""


def communication_wall(added_ms: int) -> str:
    """The wall of a step that takes ``added_ms`` more milliseconds, most of them in collectives."""
    return f"84% of the added {added_ms} ms per step is communication (in collectives)"


HOST = "97% of the added 54 ms per step is compute or host time (outside of collectives)"


def with_times(
    static: Case,
    times: Callable[[Shape], Times],
    timed: Sequence[Shape] = TIMED,
    validity: Callable[[Shape], Validity] = lambda _: trusted(),
    **planned: Any,
) -> Case:
    """``static`` with the workloads in ``timed`` timed as well."""
    verdict, session = static
    sections = {shape.entry: times(shape) for shape in timed}
    checked = {shape.entry: validity(shape) for shape in timed}
    entries = [
        entry.model_copy(update={"throughput": sections[entry.name][1], "validity": checked[entry.name]})
        if entry.name in sections
        else entry
        for entry in verdict.workloads
    ]
    runs = [*session.runs, *(run for runs, _ in sections.values() for run in runs)]
    plans = [timed_cases.plan(shape.entry) for shape in timed]
    return case(entries, runs, verdict.base, verdict.head, **{"timed": plans, **planned})


def timed_at(
    shape: Shape, ratio: float, pairs: int = 8, noise: float = 0.002, wall: str = "", reasons: Sequence[str] = ()
) -> Times:
    """Runs of ``shape`` in which head takes ``ratio`` times as long, and what they decide."""
    base_s = 0.115 if shape.layers == QWEN.layers else 0.204
    runs = timed_cases.session_runs(shape.entry, BASE, HEAD, base_s, base_s * ratio, pairs, noise=noise)
    return runs, timed_cases.throughput(runs, wall, reasons)


def _unchanged_times(shape: Shape) -> Times:
    return timed_at(shape, 1.0)


def pass_no_change() -> Case:
    """The sharding is unchanged, and no change of throughput is proven."""
    return with_times(passed(), _unchanged_times)


def pass_identical_not_timed() -> Case:
    """Nothing that affects step time changed, so nothing is timed."""
    reasons = ["nothing was timed, because everything that can change a step time is the same"]
    section = Throughput(
        status="PASS", reasons=reasons, decision="no_change", by="identity", estimate_pct=0.0, bound_pct=0.0
    )
    return with_times(pass_identical(), lambda _: ([], section), changed_files=["README.md"], inert_files=["README.md"])


CALIBRATED = CalibrationSummary(
    measured="2026-06-01T02:00:00Z",
    pairs=120,
    sd_pct=0.78,
    sd_low_pct=0.69,
    sd_high_pct=0.89,
    false_flags=Rate(count=0, total=14, low=0.0, high=0.232),
    covered=Rate(count=18, total=18, low=0.815, high=1.0),
    injected_pct=3.0,
    detected=Rate(count=4, total=4, low=0.398, high=1.0),
)


def _head_alone(shape: Shape, slower: float) -> Times:
    """Four launches of head, one of them warm, compared with forty stored sessions."""
    base_s = 0.115 if shape.layers == QWEN.layers else 0.204
    clock = timed_cases.Clock(shape.entry, BASE, HEAD, noise=0.002)
    for slot in range(4):
        place = Position(block=0, slot=slot, order="head")
        clock.launch("head", base_s * (1 + slower), 0, slot, position=place)
    return clock.runs, timed_cases.by_stored_sessions(clock.runs, base_s, CALIBRATED)


def with_baseline(judged: Case, base_s: dict[str, float]) -> Case:
    """``judged`` with the comparison of its workloads and the stored baseline: twenty sessions of main around
    ``base_s`` seconds per step, and base's ledgers."""
    verdict, session = judged
    runs = {(run.workload, run.arm.name): run for run in session.runs if run.tier == "static" and run.ledger}
    stored = [
        StoredTrace(
            entry=entry,
            commit=run.arm.commit,
            tree=run.arm.tree,
            measured=MEASURED,
            environment=environment_of(run),
            ledger=run.ledger,
        )
        for (entry, arm), run in runs.items()
        if arm == "base" and run.ledger is not None
    ]
    plans = []
    for plan in session.header.timed:
        reference = _stored_sessions(session.timed_runs(plan.entry)[-1], base_s[plan.entry])
        plans.append(plan.model_copy(update={"references": [reference]}))
    header = session.header.model_copy(update={"timed": plans, "stored": stored})
    planned = {plan.entry: plan for plan in plans}
    warnings = list(verdict.warnings)
    workloads = []
    for entry in verdict.workloads:
        times = None
        if entry.name in planned:
            times, drift = compare_times(header, planned[entry.name], session.timed_runs(entry.name))
            warnings += [f"{entry.name}: {warning}" for warning in drift]
        collectives = compare_head_with_stored(header, runs[entry.name, "head"], Config())
        comparison = StoredComparison(times=times, collectives=collectives)
        workloads.append(entry.model_copy(update={"stored": comparison}))
    update = {"workloads": workloads, "warnings": warnings}
    return verdict.model_copy(update=update), session.model_copy(update={"header": header})


MEASURED = "2026-03-01T02:00:00Z"


def _stored_sessions(run: Run, seconds: float) -> Reference:
    draw = random.Random(seconds)
    levels = [math.log(seconds) + draw.gauss(0, 0.008) for _ in range(20)]
    return Reference(
        node_class=run.node.node_class if run.node is not None else "",
        environment=environment_of(run),
        clock="perf_counter",
        executed=None,
        sessions=[
            StoredSession(
                session=f"{number:064x}",
                measured=MEASURED,
                commit=BASE.commit,
                node=run.node.name if run.node is not None else None,
                log_median=[level] * 3,
                log_mean=[level + 0.01] * 3,
            )
            for number, level in enumerate(levels)
        ],
    )


STORED_S = {QWEN.entry: 0.115, MIXTRAL.entry: 0.204}
"""Step times of main in the stored sessions, like those of base."""


def drifted_baseline() -> Case:
    """No change between base and head, but both are slower than the stored sessions of main."""
    judged = with_times(passed(), _unchanged_times, [QWEN])
    return with_baseline(judged, {QWEN.entry: 0.109})


def within_bound() -> Case:
    """The first block of pairs passes, because the noise of the node class is known (look 0)."""

    def times(shape: Shape) -> Times:
        runs, section = timed_at(shape, 1.0, 2)
        tests = []
        for test in section.tests:
            ends = {"low_pct": test.estimate_pct - 1.44, "high_pct": test.estimate_pct + 1.44}
            tests.append(test.model_copy(update={"decision": "within_bound", "sd_pct": 0.78, **ends}))
        look0 = {
            "status": "PASS",
            "decision": "within_bound",
            "by": "look0",
            "tests": tests,
            "class_noise": PairNoise(df=119, median_sd=0.0078, mean_sd=0.0081),
            "low_pct": tests[0].low_pct,
            "high_pct": tests[0].high_pct,
            "bound_pct": max(test.high_pct for test in tests),
            "mde_pct": None,
            "calibrated": CALIBRATED,
            "reasons": ["no slowdown of 2% or more"],
        }
        return runs, section.model_copy(update=look0)

    return with_baseline(with_times(passed(), times), STORED_S)


def within_stored_baseline() -> Case:
    """Stored sessions decide, and head is like them."""
    return with_times(passed(), lambda shape: _head_alone(shape, 0.004))


def stored_fail() -> Case:
    """Stored sessions decide, and Qwen3 is slower than they are."""
    return with_times(passed(), lambda shape: _head_alone(shape, 0.06 if shape is QWEN else 0.001))


def without_a_vote() -> Case:
    """Too many placebo sessions on this node class were flagged, so the gate does not decide."""
    flags = Rate(count=5, total=20, low=0.087, high=0.491)
    why = (
        "5 of 20 comparisons of a commit with itself raised a false alarm (25%; the true rate is 8.7% to 49.1%); at "
        "most 5% are allowed"
    )
    covered = Rate(count=19, total=24, low=0.578, high=0.929)
    calibration = CALIBRATED.model_copy(update={"false_flags": flags, "covered": covered, "contradicted": why})
    reason = f"regbot judges no step times on this node class: {why}; see 'regbot calibrate'"

    def times(shape: Shape) -> Times:
        runs, section = timed_at(shape, 1.05, 4)
        update = {"status": "INCONCLUSIVE", "decision": "undecided", "reasons": [reason], "calibrated": calibration}
        return runs, section.model_copy(update=update)

    return with_times(passed(), times, [QWEN])


def slow_launch_of_head() -> Case:
    """The interval would pass Qwen3, but two launches of head were far slower than all others."""
    clock = timed_cases.Clock(QWEN.entry, BASE, HEAD, noise=0.002)
    for number in range(1, 7):
        for slot, letter in enumerate(timed_cases.order(number)):
            arm = "base" if letter == "A" else "head"
            is_slow = arm == "head" and number in (1, 5) and slot < 2  # one of the first two launches is head's
            clock.launch(arm, 0.15 if is_slow else 0.115, number, slot)
    ratios = pair_up(clock.runs).log_ratios()
    test = sequential_test(ratios, len(SUMMARIES), Thresholds.from_percent(2.0, 1.0))
    assert test is not None
    assert test.withheld
    tests = [primary_test(name, *result, ratios[name]) for name, result in test.tests.items()]
    estimate = format_estimate(test.tests["median"][1])
    section = timed_cases.throughput(
        clock.runs,
        reasons=[f"undecided after 12 pairs: {estimate} by the median step time", explain_withheld(test.outliers)],
        status="INCONCLUSIVE",
        decision="undecided",
        estimate_pct=tests[0].estimate_pct,
        low_pct=tests[0].low_pct,
        high_pct=tests[0].high_pct,
        bound_pct=None,
        tests=tests,
        slow_launches=slow_launches(test.outliers),
        pass_withheld=True,
    )
    warning = f"{QWEN.entry}: {describe_slow_launches(test.outliers, test.pairs)}"
    return with_times(passed(), lambda _: (clock.runs, section), [QWEN], warnings=[warning])


def faster() -> Case:
    """Head is faster, and nothing else changed."""
    wall = "91% of the saved 25 ms per step is compute or host time (outside of collectives)"
    return with_times(
        passed(), lambda shape: timed_at(shape, 0.78, 4, 0.012, wall) if shape is QWEN else timed_at(shape, 1.0)
    )


def throughput_fail() -> Case:
    """Qwen3 is slower at the same collectives."""
    wall = f"{HOST}; peak memory rose from 437 MiB to 812 MiB"
    return with_times(
        passed(),
        lambda shape: timed_at(shape, 1.467, 4, 0.012, wall) if shape is QWEN else _unchanged_times(shape),
        budget_min=20.0,
    )


def throughput_fail_mean() -> Case:
    """Every fifth step stalls, which does not change the median."""

    def times(shape: Shape) -> Times:
        runs = timed_cases.session_runs(shape.entry, BASE, HEAD, 0.115, 0.115, 8, noise=0.002, stalls=5)
        return runs, timed_cases.throughput(
            runs, "96% of the added 5.4 ms per step is compute or host time (outside of collectives)"
        )

    return with_times(passed(), times, [QWEN])


def both_fail() -> Case:
    """Every layer falls back, and the step is slower for it."""

    def times(shape: Shape) -> Times:
        return timed_at(shape, 1.467, 4, 0.012, communication_wall(54 if shape is QWEN else 95))

    return with_times(sharding_fail(), times)


def _undecided_at(shape: Shape, ratio: float) -> Times:
    """Noisy runs, and the judge's reasons why they decide nothing."""
    runs, section = timed_at(shape, ratio, 12, 0.03)
    median_test = section.tests[0]
    sd = max(test.sd_pct for test in section.tests)
    needed = pairs_needed(sd / 100, 0.0102, Thresholds.from_percent(2.0, 1.0))
    interval = (
        f"{median_test.estimate_pct:+.2f}% ({median_test.low_pct:+.2f}% to {median_test.high_pct:+.2f}%) by the median"
    )
    assert section.mde_full_pct is not None
    detectable = f"12 pairs can detect a slowdown of {round_up_percent(section.mde_full_pct)} or more"
    power = f"{detectable}; to detect 2% takes about {needed} pairs"
    reasons = [f"undecided after 12 pairs: {interval} step time", f"with this noise ({sd:.2g}% per pair), {power}"]
    return runs, section.model_copy(update={"reasons": reasons})


def not_begun() -> Case:
    """The budget was spent before this workload was timed."""
    reason = (
        "nothing has been timed yet, and timing is needed because head runs other operators than base; "
        "go on with --resume"
    )
    section = Throughput(status="INCONCLUSIVE", reasons=[reason], decision="undecided", by="pairs")
    return with_times(passed(), lambda _: ([], section), [QWEN], budget_min=5.0)


def inconclusive() -> Case:
    """A noisy machine: the pairs are measured but undecided."""
    return with_times(passed(), lambda shape: _undecided_at(shape, 1.01), budget_min=30.0)


def luck_unknown() -> Case:
    """Head is 1.8% slower, and no calibration knows how much the luck of an arm may explain."""
    _, session = with_times(passed(), lambda shape: timed_at(shape, 1.018, 12), [QWEN])
    (section,) = [entry.throughput for entry in judge(session, Config()).workloads if entry.throughput is not None]
    assert section.decision_without_luck
    return with_times(passed(), lambda shape: (timed_at(shape, 1.018, 12)[0], section), [QWEN])


def environment_limitation() -> Case:
    """DeepEP is requested and missing on this machine, so the times are of alltoall."""
    reason = "the runs used alltoall, but deepep was requested, so their times cannot be used"
    neither = "neither arm ran the requested dispatcher deepep: import deep_ep fails; alltoall ran instead"

    def times(shape: Shape) -> Times:
        runs, section = timed_at(shape, 1.0, 4)
        section_fields = {"status": "INVALID", "decision": None, "by": None, "fallback": True, "reasons": [reason]}
        backend = Backend(requested="deepep", resolved="alltoall", executed="alltoall", evidence="import deep_ep fails")
        runs = [run.model_copy(update={"backends": {"dispatcher": backend}}) for run in runs]
        return runs, section.model_copy(update={**section_fields, "bound_pct": None})

    return with_times(passed(), times, [QWEN], lambda _: Validity(status="INVALID", reasons=[neither]))


def _lost(shape: Shape, outcome: Outcome, reason: str, **more: object) -> list[Run]:
    """A warm launch an arm, then a block and its repeat in which no head run counts."""
    clock = timed_cases.Clock(shape.entry, BASE, HEAD)
    clock.launch("base", 0.127, 0, 0)
    clock.launch("head", 0.127, 0, 1)
    for attempt in (1, 2):
        fields = {"outcome": outcome, "reason": reason, **more}
        clock.block(1, 0.115, 0.115, attempt, **fields)
    return clock.runs


UNFINISHED = "the session could not be finished"


def head_diverges() -> Case:
    """The head's loss is not finite, twice."""
    reason = "its loss is not finite in 28 of 50 steps, first in step 23"
    section = Throughput(status="INVALID", reasons=[UNFINISHED], void_pairs=4, node="2 cores", variant="cpu")
    failed = Validity(status="FAIL", reasons=[f"in both attempts, head did not train: {reason}; base ran"])

    def times(shape: Shape) -> Times:
        return _lost(shape, "diverged", reason, log_tail="step 23 loss nan\n", exit_code=0), section

    return with_times(passed(), times, [QWEN], lambda _: failed)


def untimed() -> Case:
    """The traces are good, but the timed runs of the base fail."""
    reason = "the training process exited with code 1 before it wrote a result (see the end of its log)"

    def times(shape: Shape) -> Times:
        clock = timed_cases.Clock(shape.entry, BASE, HEAD)
        log_tail = (
            'Traceback (most recent call last):\n  File "moe_train/launch.py", line 9, in start\n'
            "RuntimeError: could not bind the rendezvous port\n"
        )
        failure_fields = {"outcome": "crashed", "exit_code": 1, "reason": reason, "log_tail": log_tail}
        for attempt in (1, 2):
            clock.launch("base", None, 1, 0, attempt=attempt, **failure_fields)
            clock.launch("head", 0.115, 1, 1, attempt=attempt)
        section = Throughput(status="INVALID", reasons=[UNFINISHED], void_pairs=2, node="2 cores", variant="cpu")
        return clock.runs, section

    failed = Validity(status="INVALID", reasons=[f"base crashed: {reason}"])
    return with_times(passed(), times, [QWEN], lambda _: failed)


def trains_differently() -> Case:
    """The head is no slower, but its loss differs."""
    how = "at step 50 its loss is 5.7523 and base's is 5.5447, while base runs differ by at most 0.0012"
    return with_times(
        passed(),
        _drifting,
        [QWEN],
        lambda _: Validity(status="REVIEW", reasons=[f"head trains differently: {how}"]),
    )


def _drifting(shape: Shape) -> Times:
    runs = timed_cases.session_runs(shape.entry, BASE, HEAD, 0.115, 0.115, 8, noise=0.002, drift=0.21)
    return runs, timed_cases.throughput(runs)


def with_a_void_pair() -> Case:
    """One head run of the first block was killed; its block was repeated. The judge warns of the failed run."""
    clock = timed_cases.Clock(QWEN.entry, BASE, HEAD, noise=0.001)
    clock.launch("base", 0.127, 0, 0)
    clock.launch("head", 0.127, 0, 1)
    clock.launch("base", 0.115, 1, 0)
    killed = "the training process was killed by signal 9 before rank 0 wrote a result (see the end of its log)"
    clock.launch("head", None, 1, 1, outcome="crashed", exit_code=-9, reason=killed, log_tail="step 12\nKilled\n")
    clock.block(1, 0.115, 0.115, attempt=2)
    for number in (2, 3, 4):
        clock.block(number, 0.115, 0.115)
    section = timed_cases.throughput(clock.runs)
    warnings = [f"{QWEN.entry}: {failure}" for failure in list_failures(clock.runs)]
    return with_times(passed(), lambda _: (clock.runs, section), [QWEN], warnings=warnings)
