"""The states of a check that also times: the sharding cases with a throughput section and the runs behind it."""

from collections.abc import Callable, Sequence
from typing import Any

import timed_cases
from regbot.ledgers.catalogue import COUNTS_ADDED
from regbot.records import Run
from regbot.records.calibrated import Calibrated, Rate
from regbot.records.run import Backend, Outcome, Position
from regbot.records.verdict import Throughput, Validity
from sharding_cases import (
    BASE,
    HEAD,
    MIXTRAL,
    QWEN,
    TRACE,
    Case,
    Shape,
    accepted,
    case,
    pass_identical,
    passed,
    sharding_fail,
    trusted,
)

Times = tuple[list[Run], Throughput]

TIMED = (QWEN, MIXTRAL)
"""One entry of each shape is timed; the other meshes would run the same program on these ranks."""

COMMUNICATION = "communication: 84% of the 54 ms that a step takes longer is spent in collectives"
HOST = "compute or host: 97% of the 54 ms that a step takes longer is spent outside collectives"


def with_times(
    static: Case,
    times: Callable[[Shape], Times],
    timed: Sequence[Shape] = TIMED,
    validity: Callable[[Shape], Validity] = lambda _: trusted(),
    **planned: Any,
) -> Case:
    """``static`` with the workloads in ``timed`` timed as well."""
    verdict, session = static
    found = {shape.entry: times(shape) for shape in timed}
    checked = {shape.entry: validity(shape) for shape in timed}
    entries = [
        entry.model_copy(update={"throughput": found[entry.name][1], "validity": checked[entry.name]})
        if entry.name in found
        else entry
        for entry in verdict.workloads
    ]
    runs = [*session.runs, *(run for runs, _ in found.values() for run in runs)]
    plans = [timed_cases.plan(shape.entry) for shape in timed]
    return case(entries, runs, verdict.base, verdict.head, **{"timed": plans, **planned})


def timed_at(
    shape: Shape, ratio: float, pairs: int = 8, noise: float = 0.002, wall: str = "", reasons: Sequence[str] = ()
) -> Times:
    """Runs of ``shape`` in which head takes ``ratio`` times as long, and what they decide."""
    base_s = 0.115 if shape.layers == QWEN.layers else 0.204
    runs = timed_cases.session_runs(shape.entry, BASE, HEAD, base_s, base_s * ratio, pairs, noise=noise)
    return runs, timed_cases.throughput(runs, wall, reasons)


def _held(shape: Shape) -> Times:
    return timed_at(shape, 1.0)


def pass_no_change() -> Case:
    """The sharding is unchanged, and no change of throughput is proven."""
    return with_times(passed(), _held)


def pass_identical_not_timed() -> Case:
    """Nothing that could matter changed, and so nothing is timed."""
    reasons = ["nothing was timed, because nothing that could change a step time differs"]
    section = Throughput(
        status="PASS", reasons=reasons, decision="no_change", by="identity", estimate_pct=0.0, bound_pct=0.0
    )
    return with_times(pass_identical(), lambda _: ([], section), changed_files=["README.md"])


CALIBRATED = Calibrated(
    measured="2026-06-01T02:00:00Z",
    pairs=120,
    sd_pct=0.78,
    sd_low_pct=0.69,
    sd_high_pct=0.89,
    false_flags=Rate(count=0, total=14, low=0.0, high=0.232),
    covered=Rate(count=18, total=18, low=0.815, high=1.0),
    injected_pct=3.0,
    found=Rate(count=4, total=4, low=0.398, high=1.0),
    resampled_false=0.0,
)


def _screened(shape: Shape, slower: float, gate: str) -> Times:
    """Four launches of head, one of them warm, held against forty stored sessions."""
    base_s = 0.115 if shape.layers == QWEN.layers else 0.204
    clock = timed_cases.Clock(shape.entry, BASE, HEAD, noise=0.002)
    for slot in range(4):
        place = Position(block=0, slot=slot, order="screen")
        clock.launch("head", base_s * (1 + slower), 0, slot, position=place)
    return clock.runs, timed_cases.by_stored_sessions(clock.runs, base_s, gate, CALIBRATED)


def within_bound() -> Case:
    """Head is inside of what is stored, and no pairs are run."""
    return with_times(passed(), lambda shape: _screened(shape, 0.004, "screen"))


def stored_fail() -> Case:
    """Stored sessions are the gate, and Qwen3 lies outside of them."""
    return with_times(passed(), lambda shape: _screened(shape, 0.06 if shape is QWEN else 0.001, "stored"))


def continued() -> Case:
    """The same trees were timed before; all pairs count, by the interval that always holds."""
    told = (
        "the same trees had been timed before: 8 earlier pairs count too, and all 12 are judged by an interval that "
        "holds however often one looks (99% instead of 95%)"
    )
    return with_times(passed(), lambda shape: timed_at(shape, 1.01, 12, 0.012, reasons=[told]), [QWEN])


def without_a_vote() -> Case:
    """Placebo sessions on this node class were flagged too often for the gate to be believed."""
    flags = Rate(count=5, total=20, low=0.087, high=0.491)
    why = (
        "5 of 20 comparisons of a commit with itself were called a change: at least 8.7% of all would be, and the gate "
        "promises at most 5%"
    )
    found = CALIBRATED.model_copy(update={"false_flags": flags, "contradicted": why})
    said = f"the gate has no vote on this node class: {why}; see 'regbot calibrate'"

    def times(shape: Shape) -> Times:
        runs, section = timed_at(shape, 1.05, 4)
        update = {"status": "INCONCLUSIVE", "decision": "undecided", "reasons": [said], "calibrated": found}
        return runs, section.model_copy(update=update)

    return with_times(passed(), times, [QWEN])


def faster() -> Case:
    """Head is faster, and nothing else changed."""
    wall = "compute or host: 91% of the 25 ms that a step takes shorter is spent outside collectives"
    return with_times(
        passed(), lambda shape: timed_at(shape, 0.78, 4, 0.012, wall) if shape is QWEN else timed_at(shape, 1.0)
    )


def throughput_fail() -> Case:
    """Qwen3 is slower at the same collectives."""
    wall = f"{HOST}; peak memory rose from 437 MiB to 812 MiB"
    return with_times(
        passed(),
        lambda shape: timed_at(shape, 1.467, 4, 0.012, wall) if shape is QWEN else _held(shape),
        budget_min=20.0,
    )


def throughput_fail_mean() -> Case:
    """Every fifth step stalls: the median does not see it."""

    def times(shape: Shape) -> Times:
        runs = timed_cases.session_runs(shape.entry, BASE, HEAD, 0.115, 0.115, 8, noise=0.002, stalls=5)
        return runs, timed_cases.throughput(runs, "not one wall: 48% of the 1.1 ms is spent in collectives")

    return with_times(passed(), times, [QWEN])


def both_fail() -> Case:
    """Every layer falls back, and the step is slower for it."""
    return with_times(sharding_fail(), lambda shape: timed_at(shape, 1.467, 4, 0.012, COMMUNICATION))


UNDECIDED = [
    "undecided after 12 pairs: +2.16% (-3.13% to +7.74%) by the median step time",
    "with 12 pairs and this noise (4.5% per pair) a slowdown of 7.7% would be shown; 2% would take about 150 pairs",
]


def not_begun() -> Case:
    """The budget was spent before this workload was timed."""
    reason = "nothing has been timed yet (the device program differs); go on with --resume"
    section = Throughput(status="INCONCLUSIVE", reasons=[reason], decision="undecided", by="pairs")
    return with_times(passed(), lambda _: ([], section), [QWEN], budget_min=5.0)


def inconclusive() -> Case:
    """A noisy machine: measured, not decided."""
    return with_times(passed(), lambda shape: timed_at(shape, 1.01, 12, 0.03, reasons=UNDECIDED), budget_min=30.0)


def sharding_fail_throughput_undecided() -> Case:
    """The fallback is exact; this machine is too noisy to say what it costs."""
    return with_times(sharding_fail(), lambda shape: timed_at(shape, 1.03, 12, 0.03, reasons=UNDECIDED))


def accepted_and_timed() -> Case:
    """A declared change, and no change of throughput with it."""
    rule = f"{COUNTS_ADDED}@ep@*: capacity is now negotiated per micro-batch, see the RFC"
    return with_times(accepted(), _held, [QWEN], expectations=[rule])


def environment_limitation() -> Case:
    """DeepEP was asked for and is not on this machine; the times are those of alltoall."""
    reason = "times of alltoall where deepep was asked for: shown, they decide nothing"
    neither = "neither arm ran the dispatcher deepep that was asked for: import deep_ep fails; alltoall ran instead"

    def times(shape: Shape) -> Times:
        runs, section = timed_at(shape, 1.0, 4)
        shown = {"status": "INVALID", "decision": None, "by": None, "fallback": True, "reasons": [reason]}
        backend = Backend(requested="deepep", resolved="alltoall", executed="alltoall", evidence="import deep_ep fails")
        runs = [run.model_copy(update={"backends": {"dispatcher": backend}}) for run in runs]
        return runs, section.model_copy(update={**shown, "bound_pct": None})

    return with_times(passed(), times, [QWEN], lambda _: Validity(status="INVALID", reasons=[neither]))


def _lost(shape: Shape, outcome: Outcome, reason: str, **more: object) -> list[Run]:
    """A warm launch an arm, then a block and its repeat in which no head run counts."""
    clock = timed_cases.Clock(shape.entry, BASE, HEAD)
    clock.launch("base", 0.127, 0, 0)
    clock.launch("head", 0.127, 0, 1)
    for attempt in (1, 2):
        fields = {"outcome": outcome, "reason": reason, "log_tail": "step 23 loss nan\n", **more}
        clock.block(1, 0.115, 0.115, attempt, **fields)
    return clock.runs


UNFINISHED = "the session could not be finished"


def _broken_head(outcome: Outcome, reason: str) -> Case:
    words = {"diverged": "did not train", "short": "ended with fewer steps than were asked for"}[outcome]
    section = Throughput(status="INVALID", reasons=[UNFINISHED], void_pairs=4, node="2 cores", variant="cpu")
    failed = Validity(status="FAIL", reasons=[f"head {words}: {reason}, in each of 2 attempts; base ran"])
    return with_times(passed(), lambda shape: (_lost(shape, outcome, reason), section), [QWEN], lambda _: failed)


def head_diverges() -> Case:
    """The head's loss is not finite, twice."""
    return _broken_head("diverged", "the loss is not finite from step 23 on")


def head_stops_short() -> Case:
    """The head ends with fewer steps than were asked for, twice."""
    return _broken_head("short", "31 of 50 steps were run")


def untimed() -> Case:
    """The traces are good, the timed runs of the base are not."""
    reason = "the guest ended with exit code 1: RuntimeError: could not bind the rendezvous port"

    def times(shape: Shape) -> Times:
        clock = timed_cases.Clock(shape.entry, BASE, HEAD)
        told = {"outcome": "crashed", "exit_code": 1, "reason": reason, "log_tail": TRACE}
        for attempt in (1, 2):
            clock.launch("base", None, 1, 0, attempt=attempt, **told)
            clock.launch("head", 0.115, 1, 1, attempt=attempt)
        section = Throughput(status="INVALID", reasons=[UNFINISHED], void_pairs=2, node="2 cores", variant="cpu")
        return clock.runs, section

    failed = Validity(status="INVALID", reasons=[f"base crashed: {reason}"])
    return with_times(passed(), times, [QWEN], lambda _: failed)


def trains_differently() -> Case:
    """The head is no slower, and its loss takes another way."""
    how = "at step 50 its loss is 5.7523, base's 5.5447, and runs of base differ by 0.0012 at most"
    return with_times(
        passed(),
        lambda shape: _drifting(shape),
        [QWEN],
        lambda _: Validity(status="REVIEW", reasons=[f"head does not train the same: {how}"]),
    )


def _drifting(shape: Shape) -> Times:
    runs = timed_cases.session_runs(shape.entry, BASE, HEAD, 0.115, 0.115, 8, noise=0.002, drift=0.21)
    return runs, timed_cases.throughput(runs)


def with_a_void_pair() -> Case:
    """One head run of the first block was killed; its block was repeated."""

    def times(shape: Shape) -> Times:
        clock = timed_cases.Clock(shape.entry, BASE, HEAD, noise=0.002)
        clock.launch("base", 0.127, 0, 0)
        clock.launch("head", 0.127, 0, 1)
        clock.launch("base", 0.115, 1, 0)
        killed = "the guest was ended by signal 9; something outside it ended it, the kernel for memory perhaps"
        clock.launch("head", None, 1, 1, outcome="crashed", exit_code=-9, reason=killed, log_tail="step 12\nKilled\n")
        clock.block(1, 0.115, 0.115, attempt=2)
        clock.block(2, 0.115, 0.115)
        runs = clock.runs
        return runs, timed_cases.throughput(runs)

    return with_times(passed(), times, [QWEN])
