"""Did throughput change? The timed runs of one workload -> its throughput section, and what they say of its validity.

The decision is the sequential test's (``regbot.stats.paired``) on the valid pairs, in the order they were measured.
What is not a matter of statistics is decided here: runs that broke, clocks or nodes that differ, a dispatcher that was
not the one asked for, training that is not the same, and identity, which needs no pairs.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from regbot.judge.backends import DISPATCHER, backend_warnings, dispatcher_problems
from regbot.judge.identity import difference
from regbot.judge.pairs import SUMMARIES, Paired, pair_up, summaries, timed_runs
from regbot.judge.timed_validity import broken, distrust_timed, last_good, own_warnings, setbacks, validity_of
from regbot.judge.training import differences
from regbot.judge.validity import environment_warnings
from regbot.judge.walls import wall
from regbot.records.run import Run
from regbot.records.session import Session, SessionHeader, TimedPlan
from regbot.records.verdict import Cost, Decision, PrimaryTest, Status, Throughput, Validity
from regbot.stats.paired import LOOKS, Sequential, Thresholds, mde, pairs_needed, sequential

STATUS: dict[Decision, Status] = {
    "regressed": "FAIL",
    "improved": "PASS",
    "no_change": "PASS",
    "within_bound": "PASS",
    "undecided": "INCONCLUSIVE",
}


class Estimate(Protocol):
    """An estimate with its interval, on the log scale."""

    @property
    def estimate(self) -> float: ...

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...

    @property
    def sd(self) -> float: ...


@dataclass(frozen=True)
class Timed:
    """What the timed runs of one workload say. ``validity`` is given where they decide it, ``base`` and ``head`` are
    the last good run of each arm."""

    throughput: Throughput | None
    validity: Validity | None = None
    base: Run | None = None
    head: Run | None = None
    warnings: tuple[str, ...] = ()


def primary_tests(header: SessionHeader) -> int:
    """Primary tests of the whole check: each workload that is timed has one for each summary."""
    return max(1, len(header.timed)) * len(SUMMARIES)


def thresholds(header: SessionHeader) -> Thresholds:
    """The check's thresholds on the log scale."""
    return Thresholds.from_percent(header.throughput.threshold_pct, header.throughput.indifference_pct)


def judge_timed(session: Session, plan: TimedPlan, traced: tuple[Run, Run] | None) -> Timed:
    """The throughput section of the entry that ``plan`` times. ``traced``: its static runs, where both are good."""
    runs = timed_runs(session, plan.entry)
    if not runs:
        return Timed(_not_timed(session.header, plan, traced) if traced is not None else None)
    warnings = tuple(dict.fromkeys([*setbacks(runs), *own_warnings(runs)]))
    paired = pair_up(runs)
    known = _known(plan, runs, paired)
    if fault := broken(runs):
        return Timed(_section("INVALID", ["the session could not be finished"], **known), fault, warnings=warnings)
    base, head = last_good(runs, "base"), last_good(runs, "head")
    if base is None or head is None:
        waiting = ["not every arm has a run yet; go on with --resume"]
        return Timed(_section("INCONCLUSIVE", waiting, decision="undecided", by="pairs", **known), warnings=warnings)
    warnings += (*environment_warnings(base, head), *backend_warnings(base, head))
    if faults := [*distrust_timed(session.header, plan, runs)]:
        section = _section("INVALID", ["the timed runs cannot be believed"], **known)
        return Timed(section, validity_of("INVALID", faults), base, head, warnings)
    if problems := [*dispatcher_problems(base, head)]:
        told = [run.backends[DISPATCHER] for run in (base, head) if DISPATCHER in run.backends]
        asked = next(each for each in told if each.executed != each.requested)
        said = f"times of {asked.executed} where {asked.requested} was asked for: shown, they decide nothing"
        section = _section("INVALID", [said], fallback=True, **known, **_estimate(paired))
        return Timed(section, validity_of("INVALID", problems), base, head, warnings)
    changed = [*differences([pair.base for pair in paired.valid], [pair.head for pair in paired.valid])]
    section = _decided(session.header, paired, runs, known)
    return Timed(section, validity_of("REVIEW", changed) if changed else None, base, head, warnings)


def _not_timed(header: SessionHeader, plan: TimedPlan, traced: tuple[Run, Run]) -> Throughput:
    """Identity, or a session that has not begun."""
    differs = difference(header, *traced)
    if not differs and not plan.even_if_identical:
        said = (
            "nothing was timed, because nothing that could change a step time differs: device program, code that ran "
            "(comments aside), configuration, packages, and every other changed file are accounted for"
        )
        return _section("PASS", [said], decision="no_change", by="identity", estimate_pct=0.0, bound_pct=0.0)
    why = f" ({differs})" if differs else ""
    return _section(
        "INCONCLUSIVE", [f"nothing has been timed yet{why}; go on with --resume"], decision="undecided", by="pairs"
    )


def _known(plan: TimedPlan, runs: Sequence[Run], paired: Paired) -> dict[str, Any]:
    """What can be said whatever was decided."""
    return {
        "void_pairs": paired.void,
        "node": next((run.node.node_class for run in runs if run.node is not None), ""),
        "variant": plan.variant,
        "cost": Cost(runs=len(runs), minutes=sum(run.wall_s for run in runs) / 60),
        "base_step_s": _step_s(pair.base for pair in paired.valid),
        "head_step_s": _step_s(pair.head for pair in paired.valid),
    }


def _decided(header: SessionHeader, paired: Paired, runs: Sequence[Run], known: dict[str, Any]) -> Throughput:
    limits, tests = thresholds(header), primary_tests(header)
    ratios = paired.log_ratios()
    found = sequential(ratios, tests, limits)
    if found is None:
        return _too_few(paired, known)
    used = paired.valid[: found.pairs]
    centre = found.tests["median"][1]
    sd = max(each.sd for _, each in found.tests.values())
    section: dict[str, Any] = {
        **known,
        "base_step_s": _step_s(pair.base for pair in used),
        "head_step_s": _step_s(pair.head for pair in used),
        "decision": found.decision,
        "by": "pairs",
        "estimate_pct": percent(centre.estimate),
        "low_pct": percent(centre.low),
        "high_pct": percent(centre.high),
        "pairs": found.pairs,
        "unused_pairs": found.unused,
        "alpha": found.alpha,
        "mde_pct": percent(mde(sd, found.pairs, found.alpha, limits.eps)),
        "mde_full_pct": percent(mde(sd, LOOKS[-1], found.alpha, limits.eps)),
        "tests": [primary_test(name, *found.tests[name], ratios[name][: found.pairs]) for name in SUMMARIES],
    }
    if STATUS[found.decision] == "PASS":
        section["bound_pct"] = percent(max(each.high for _, each in found.tests.values()))
    if found.decision in ("regressed", "improved"):
        by_median = found.tests["median"][0] == found.decision
        arms = [pair.base for pair in used], [pair.head for pair in used]
        section["wall"] = wall(*arms, "median" if by_median else "mean", found.decision == "regressed")
    return _section(STATUS[found.decision], [*_reasons(found, limits, header, runs)], **section)


def _reasons(found: Sequential, limits: Thresholds, header: SessionHeader, runs: Sequence[Run]) -> Iterator[str]:
    settings = header.throughput
    if found.decision in ("regressed", "improved"):
        word = "slower" if found.decision == "regressed" else "faster"
        for name, (decision, each) in found.tests.items():
            if decision == found.decision:
                yield (
                    f"head is {word} by the {name} step time: {span(each)} over {found.pairs} pairs, and anything "
                    f"beyond {settings.indifference_pct:g}% counts"
                )
        return
    if found.decision == "no_change":
        most = max(each.high for _, each in found.tests.values())
        yield (
            f"no change: over {found.pairs} pairs median and mean step time lie within {settings.threshold_pct:g}%; "
            f"head is at most {percent(most):.2g}% slower"
        )
        return
    centre = found.tests["median"][1]
    yield f"undecided after {found.pairs} pairs: {span(centre)} by the median step time"
    if not found.final:
        spent = sum(run.wall_s for run in runs) / 60
        why = "the budget did not allow more" if header.budget_min is not None else "it was ended before more were run"
        yield f"{found.pairs} of at most {LOOKS[-1]} pairs were run in {spent:.1f} minutes: {why}"
    sd = max(each.sd for _, each in found.tests.values())
    needed = pairs_needed(sd, found.alpha, limits)
    provable = percent(mde(sd, LOOKS[-1], found.alpha, limits.eps))
    words = f"about {needed} pairs" if needed is not None else "more pairs than anybody runs"
    beyond = f"; a session ends at {LOOKS[-1]}, so it takes a quieter node" if (needed or 1000) > LOOKS[-1] else ""
    yield (
        f"with {LOOKS[-1]} pairs and this noise ({100 * sd:.2g}% per pair) a slowdown of {provable:.2g}% would be "
        f"shown; {settings.threshold_pct:g}% would take {words}{beyond}"
    )


def _estimate(paired: Paired) -> dict[str, Any]:
    """What the pairs show, without an interval: for times that decide nothing."""
    values = paired.log_ratios()["median"]
    return {"pairs": len(values), "estimate_pct": percent(sum(values) / len(values)) if values else None}


def _too_few(paired: Paired, known: dict[str, Any]) -> Throughput:
    pairs = len(paired.valid)
    section: dict[str, Any] = {**known, **_estimate(paired), "decision": "undecided", "by": "pairs"}
    said = f"{pairs} valid pairs decide nothing, whatever they show; {LOOKS[0]} are the least"
    return _section("INCONCLUSIVE", [said, "go on with --resume, or give it a larger budget"], **section)


def primary_test(name: str, decision: Decision, each: Estimate, ratios: Sequence[float]) -> PrimaryTest:
    """One test as the record holds it. ``ratios`` are those of the pairs used, [] where there are no pairs."""
    return PrimaryTest.model_validate(
        {
            "summary": name,
            "decision": decision,
            "estimate_pct": percent(each.estimate),
            "low_pct": percent(each.low),
            "high_pct": percent(each.high),
            "sd_pct": 100 * each.sd,
            "log_ratios": list(ratios),
        }
    )


def percent(log_ratio: float) -> float:
    """A log-ratio as 100 (ratio - 1); what passes all bounds stays finite."""
    return 100 * math.expm1(min(log_ratio, 20.0))


def span(each: Estimate) -> str:
    """``+46.7% (38.2% to 55.9%)``."""
    return f"{percent(each.estimate):+.2f}% ({percent(each.low):+.2f}% to {percent(each.high):+.2f}%)"


def _step_s(runs: Iterable[Run]) -> float | None:
    """Median over runs of the run's median step time, the one that is compared."""
    found = [summaries(run.timing, run.timing.cut)["median"] for run in runs if run.timing is not None]
    return math.exp(median(found)) if found else None


def _section(status: Status, reasons: Sequence[str], **fields: Any) -> Throughput:
    return Throughput(status=status, reasons=[reason[:4000] for reason in reasons], **fields)
