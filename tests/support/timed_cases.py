"""Timed runs for the report's cases, made of a few numbers with a fixed seed, and the section that they give.

The numbers of a section follow from its runs by the rule of the throughput verdict, with a t quantile that is a little
too large; so a case cannot show an interval that its own runs contradict.
"""

import math
import random
from collections.abc import Callable, Sequence
from statistics import fmean, median, stdev
from typing import Any, Literal, get_args

from regbot.judge.expert_share import find_expert_share
from regbot.judge.pairs import pair_up
from regbot.judge.run_verdicts import compare_ranks, run_verdicts, step_s
from regbot.records.calibration_summary import CalibrationSummary
from regbot.records.run import Arm, CodeProof, Environment, Node, Position, RankSteps, Run, Timing
from regbot.records.session import TimedPlan
from regbot.records.settings import ThroughputThresholds as Thresholds
from regbot.records.verdict import Cost, Decision, PrimaryTest, RunVerdict, Status, Throughput, WallKind

RUNNER = Node(name="runner-7", node_class="2 cores of x86_64", cores=2)
CODE = CodeProof(
    watched={"moe_train": "moe_train"}, foreign={}, files={"moe_train/moe.py": "c" * 64, "train.py": "d" * 64}
)
ENVIRONMENT = Environment(python="3.11.9", torch="2.13.0", platform="linux x86_64", packages="e" * 64)
STEPS, CUT = 50, 10
FULL_PAIRS = 12
QUANTILE = {2: 2.4, 4: 6.9, 8: 3.7, 9: 3.6, 10: 3.5, 12: 3.3}
THRESHOLDS = Thresholds()


def plan(entry: str, ranks: int = 2, steps: int = STEPS) -> TimedPlan:
    """The cpu variant of a shape."""
    return TimedPlan(
        entry=entry,
        variant="cpu",
        world_size=ranks,
        steps=steps,
        cut=CUT,
        tokens_per_step=512,
        flops_per_step=3_600_000_000,
    )


def timing(seconds: float, seed: str, ranks: int = 2, steps: int = STEPS, stalls: int = 0) -> Timing:
    """Steps of about ``seconds`` with a slow first one, autocorrelated noise, and one stall every ``stalls`` steps."""
    random_ = random.Random(seed)
    level, slowest = 0.0, []
    for step in range(steps):
        level = 0.5 * level + random_.gauss(0, 0.012)
        warm = 6.0 * math.exp(-1.6 * step) + 0.08 * math.exp(-0.4 * step)
        stall = 0.22 if stalls and step % stalls == stalls - 1 else 0.0
        slowest.append(seconds * math.exp(level) * (1 + warm + stall))
    per_rank = {}
    for rank in range(ranks):
        busy = [
            0.62 * timing_of_run * (1 + 0.05 * rank / ranks) * random_.uniform(0.97, 1.03) for timing_of_run in slowest
        ]
        wait = [max(0.0, timing_of_run - mine) * 0.92 for timing_of_run, mine in zip(slowest, busy, strict=True)]
        per_rank[str(rank)] = RankSteps(
            step_s=[timing_of_run * (random_.uniform(0.995, 1.0) if rank else 1.0) for timing_of_run in slowest],
            cpu_s=busy,
            wait_s=wait,
            memory_bytes=[420_000_000 + 1_000_000 * rank] * steps,
            peak_bytes=455_000_000 + 3_000_000 * rank,
        )
    return Timing(
        requested_steps=steps,
        cut=CUT,
        method="fixed: first 10 steps",
        clock="perf_counter",
        step_s=slowest,
        ranks=per_rank,
        harness_s=sum(slowest),
        memory_peak_bytes=455_000_000 + 3_000_000 * (ranks - 1),
        memory_slope_bytes=0.0,
    )


def losses(seed: str, drift: float = 0.0) -> list[float | None]:
    """A falling loss; ``drift`` is how far its last step lies from where it should."""
    random_ = random.Random(f"loss {seed}")
    clean = [7.6 - 2.2 * (1 - math.exp(-step / 18)) + drift * step / STEPS for step in range(STEPS)]
    return [loss + random_.gauss(0, 2e-4) for loss in clean]


class Clock:
    """The launches of one workload, in the order of a session."""

    def __init__(self, entry: str, base: Arm, head: Arm, ranks: int = 2, noise: float = 0.012, **more: object) -> None:
        self.entry, self.ranks, self.noise, self.more = entry, ranks, noise, more
        self.arms = {"base": base, "head": head}
        self.runs: list[Run] = []

    def launch(self, arm: str, seconds: float | None, block: int, slot: int, **more: object) -> Run:
        """One run; without ``seconds`` it measured nothing."""
        seed = f"{self.entry} {arm} {block} {slot} {more.get('attempt', 1)}"
        run_noise = random.Random(seed).gauss(0, self.noise)
        drift = more.pop("drift", 0.0)
        stalls = more.pop("stalls", 0)
        assert isinstance(drift, float)
        assert isinstance(stalls, int)
        fields: dict[str, object] = {
            "arm": self.arms[arm],
            "workload": self.entry,
            "adapter": "smoke",
            "shape": self.entry.split("/")[0],
            "variant": "cpu",
            "tier": "timed",
            "outcome": "ok",
            "exit_code": 0,
            "wall_s": 9.0 + (seconds or 0.0) * STEPS,
            "position": Position(block=block, slot=slot, order=order(block), draw=max(1, (block + 1) // 2)),
            "node": RUNNER,
        }
        if seconds is not None:
            fields["code"] = CODE
            fields["environment"] = ENVIRONMENT
            fields["timing"] = timing(seconds * math.exp(run_noise), seed, self.ranks, STEPS, stalls)
            fields["loss"] = losses(seed, drift)
        run = Run.model_validate({**fields, **self.more, **more})
        self.runs.append(run)
        return run

    def block(self, number: int, base_s: float, head_s: float, attempt: int = 1, **head: Any) -> None:
        """Two pairs; ``head`` holds what is special about the head's runs."""
        for slot, letter in enumerate(order(number)):
            arm = "base" if letter == "A" else "head"
            special = head if arm == "head" else {}
            self.launch(arm, base_s if arm == "base" else head_s, number, slot, attempt=attempt, **special)


def order(block: int) -> Literal["ABBA", "BAAB"]:
    return "BAAB" if block % 3 == 2 else "ABBA"


def session_runs(
    entry: str,
    base: Arm,
    head: Arm,
    base_s: float,
    head_s: float,
    pairs: int = 4,
    ranks: int = 2,
    noise: float = 0.012,
    **special: Any,
) -> list[Run]:
    """One warm launch an arm, then blocks until there are ``pairs``; ``special`` is of the head's runs."""
    clock = Clock(entry, base, head, ranks, noise)
    clock.launch("base", base_s * 1.1, 0, 0)
    clock.launch("head", head_s * 1.1, 0, 1)
    for number in range(1, pairs // 2 + 1):
        clock.block(number, base_s, head_s, **special)
    return clock.runs


def verdicts_on(runs: Sequence[Run]) -> list[RunVerdict]:
    """Return the judge's verdict on each run if every valid pair is used."""
    return run_verdicts(runs, pair_up(runs))


def throughput(runs: Sequence[Run], wall: str = "", reasons: Sequence[str] = (), **more: object) -> Throughput:
    """The section that these runs give."""
    kind = next((kind for kind in get_args(WallKind) if kind in wall), None)
    pairs = [(pair.base, pair.head) for pair in pair_up(runs).valid]
    verdicts = verdicts_on(runs)
    tests = [_test("median", pairs), _test("mean", pairs)]
    decision = _joint(tests)
    statuses: dict[Decision, Status] = {"regressed": "FAIL", "undecided": "INCONCLUSIVE"}
    first = tests[0]
    bound = max(test.high_pct for test in tests)
    void = len(
        {run.position.block * 10 + run.position.slot // 2 for run in runs if run.outcome != "ok" and run.position}
    )
    fields: dict[str, object] = {
        "status": statuses.get(decision, "PASS"),
        "reasons": list(reasons),
        "decision": decision,
        "wall_kind": kind,
        "by": "pairs",
        "estimate_pct": first.estimate_pct,
        "low_pct": first.low_pct,
        "high_pct": first.high_pct,
        "bound_pct": bound if decision == "no_change" else None,
        "pairs": len(pairs),
        "void_pairs": void,
        "alpha": 0.0102,
        "mde_pct": _mde(first, len(pairs)),
        "mde_full_pct": _mde(first, FULL_PAIRS),
        "tests": tests,
        "ranks": compare_ranks(verdicts),
        "base_step_s": step_s(verdicts, "base"),
        "head_step_s": step_s(verdicts, "head"),
        "wall": wall,
        "node": RUNNER.node_class,
        "variant": "cpu",
        "expert_flops_share": find_expert_share(plan(runs[0].workload), runs),
        "cost": Cost(runs=len(runs), minutes=sum(run.wall_s for run in runs) / 60),
    }
    return Throughput.model_validate({**fields, **more})


def _test(summary: Literal["median", "mean"], pairs: Sequence[tuple[Run, Run]]) -> PrimaryTest:
    statistic = median if summary == "median" else fmean
    ratios = []
    for base, head in pairs:
        assert base.timing is not None
        assert head.timing is not None
        ratios.append(math.log(statistic(head.timing.steady_s) / statistic(base.timing.steady_s)))
    centre, spread = fmean(ratios), stdev(ratios)
    half = QUANTILE[len(pairs)] * spread / math.sqrt(len(pairs))
    low, high = 100 * math.expm1(centre - half), 100 * math.expm1(centre + half)
    threshold, indifference = THRESHOLDS.threshold_pct, THRESHOLDS.indifference_pct
    decision: Decision = "undecided"
    if low > indifference:
        decision = "regressed"
    elif high < -indifference:
        decision = "improved"
    elif -threshold < low and high < threshold:
        decision = "no_change"
    return PrimaryTest(
        summary=summary,
        decision=decision,
        estimate_pct=100 * math.expm1(centre),
        low_pct=low,
        high_pct=high,
        sd_pct=100 * spread,
        log_ratios=ratios,
    )


def by_stored_sessions(runs: Sequence[Run], stored_s: float, calibrated: CalibrationSummary) -> Throughput:
    """What stored sessions around ``stored_s`` that differ by 0.8% say of the head's runs, the first one warm."""
    half, sd = 1.7, 0.8
    values = {"median": _at(runs[1:], median), "mean": _at(runs[1:], fmean)}
    tests = []
    for name, seconds in values.items():
        estimate = 100 * (seconds / stored_s - 1) - (0.0 if name == "median" else 1.0)
        low, high = estimate - half, estimate + half
        inside = low < 0 < high
        decision: Decision = "within_bound" if inside else "regressed"
        tests.append(
            PrimaryTest(
                summary="median" if name == "median" else "mean", decision=decision, estimate_pct=estimate, low_pct=low,
                high_pct=high, sd_pct=sd, log_ratios=[],
            )
        )  # fmt: skip
    passed = all(test.decision == "within_bound" for test in tests)
    first = tests[0]
    against = f"3 runs of head against the last 40 sessions of main give {first.estimate_pct:+.2f}%"
    text = "head is within the stored baseline" if passed else "head is slower than the stored baseline"
    return Throughput(
        status="PASS" if passed else "FAIL",
        reasons=[f"{text}: {against}"],
        decision="within_bound" if passed else "regressed",
        by="stored",
        estimate_pct=first.estimate_pct,
        low_pct=first.low_pct,
        high_pct=first.high_pct,
        bound_pct=max(test.high_pct for test in tests) if passed else None,
        alpha=0.05,
        tests=tests,
        sessions=40,
        base_step_s=stored_s,
        head_step_s=values["median"],
        calibrated=calibrated,
        node="2 cores of x86_64",
        variant="cpu",
        expert_flops_share=find_expert_share(plan(runs[0].workload), runs),
        cost=Cost(runs=len(runs), minutes=sum(run.wall_s for run in runs) / 60),
    )


def _at(runs: Sequence[Run], statistic: Callable[[Sequence[float]], float]) -> float:
    return fmean(statistic(run.timing.step_s[CUT:]) for run in runs if run.timing is not None)


def _joint(tests: Sequence[PrimaryTest]) -> Decision:
    decisions = {test.decision for test in tests}
    if "regressed" in decisions:
        return "regressed"
    return "improved" if "improved" in decisions else "no_change" if decisions == {"no_change"} else "undecided"


def _mde(test: PrimaryTest, pairs: int) -> float:
    return THRESHOLDS.indifference_pct + (QUANTILE[pairs] + 0.84) * test.sd_pct / math.sqrt(pairs)
