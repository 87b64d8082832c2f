"""The throughput section from runs of files: the paired test, or Welch's interval, and what is said of it."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from statistics import fmean, median
from typing import Any

from regbot.compare.read import StepFile
from regbot.judge.pairs import SUMMARIES
from regbot.judge.throughput import STATUS, percent, primary_test, span
from regbot.records.settings import Throughput as Settings
from regbot.records.verdict import Decision, PrimaryTest, Status, Throughput
from regbot.stats.paired import (
    LOOK_ALPHA,
    LOOKS,
    Interval,
    Sequential,
    Thresholds,
    combine,
    decide,
    interval,
    mde,
    pairs_needed,
    sequential,
)
from regbot.stats.unpaired import LEAST_RUNS, Difference, welch

SETTINGS = Settings()
THRESHOLDS = Thresholds.from_percent(SETTINGS.threshold_pct, SETTINGS.indifference_pct)
ALPHA = LOOK_ALPHA / len(SUMMARIES)

NOT_CONTROLLED = "node and session effects not controlled"

FAR_PCT = 20.0
"""An estimate from too few runs beyond this is called what it is: on the noisiest node that the test was simulated for,
single pairs scatter by an eighth of it."""

NOISIER = 2.0
"""Times that the pairs may scatter more than --noise says before their own scatter is used. Twice as much happens by
chance in less than one of a hundred sessions of four pairs."""


def paired_section(
    base: Sequence[StepFile], head: Sequence[StepFile], known_sd: float | None
) -> tuple[Throughput, list[str]]:
    """The i-th files of both arms are a pair, in session order; ``known_sd`` of a pair's log-ratio. And warnings."""
    ratios: dict[str, list[float]] = {name: [] for name in SUMMARIES}
    for pair in zip(base, head, strict=True):
        cut = max(file.cut for file in pair)  # the same steps in both
        ours, theirs = (file.summaries(cut) for file in pair)
        for name, values in ratios.items():
            values.append(theirs[name] - ours[name])
    found = sequential(ratios, len(SUMMARIES), THRESHOLDS, known_sd)
    if found is None:
        return _too_few_pairs(base, head, ratios, known_sd), []
    if known_sd is not None and (seen := _scatter(ratios, found)) > NOISIER * known_sd:
        warning = (
            f"the first {found.pairs} pairs scatter by {100 * seen:.2g}% and --noise says {100 * known_sd:.2g}%; "
            "what was seen is used, not what was said"
        )
        return paired_section(base, head, None)[0], [warning]
    centre = found.tests["median"][1]
    known = known_sd is not None
    sd = max(each.sd for _, each in found.tests.values())
    fields: dict[str, Any] = {
        "by": "pairs",
        "pairs": found.pairs,
        "unused_pairs": found.unused,
        "mde_pct": percent(mde(sd, found.pairs, found.alpha, THRESHOLDS.eps, known)),
        "mde_full_pct": percent(mde(sd, LOOKS[-1], found.alpha, THRESHOLDS.eps, known)),
        "tests": [
            primary_test(name, decision, each, ratios[name][: found.pairs])
            for name, (decision, each) in found.tests.items()
        ],
    }
    section = _decided(
        found.decision,
        centre,
        found.alpha,
        [*_paired_reasons(found, known)],
        base[: found.pairs],
        head[: found.pairs],
        fields,
    )
    return section, []


def _paired_reasons(found: Sequential, known: bool) -> Iterator[str]:
    yield from _outcome(found.tests, found.decision)
    if found.unused:
        why = "decided" if found.decision != "undecided" else f"looks are after {_series(LOOKS)} pairs"
        yield f"{found.pairs} pairs were used and {found.unused} not: {why}"
    if found.decision != "undecided":
        return
    worst = max(each.sd for _, each in found.tests.values())
    needed = pairs_needed(worst, found.alpha, THRESHOLDS, known=known)
    provable = percent(mde(worst, LOOKS[-1], found.alpha, THRESHOLDS.eps, known))
    if not found.final:
        missing = LOOKS[found.look] - found.pairs - found.unused
        yield f"the next look is after {LOOKS[found.look]} pairs: give {missing} more of each arm"
    yield (
        f"with this noise ({100 * worst:.2g}% per pair) {LOOKS[-1]} pairs show a slowdown of {provable:.2g}%; "
        f"{SETTINGS.threshold_pct:g}% would take {_pairs(needed)}"
    )


def _pairs(needed: int | None) -> str:
    if needed is None:
        return "more pairs than anybody runs: use a quieter node"
    return f"about {needed} pairs" + (
        ", more than there are looks for: use a quieter node" if needed > LOOKS[-1] else ""
    )


def _scatter(ratios: dict[str, list[float]], found: Sequential) -> float:
    """The larger standard deviation of the summaries over the pairs that were used."""
    return max(interval(values[: found.pairs], found.alpha).sd for values in ratios.values())


def _too_few_pairs(
    base: Sequence[StepFile],
    head: Sequence[StepFile],
    ratios: dict[str, list[float]],
    known_sd: float | None,
) -> Throughput:
    pairs = len(base)
    estimates = {name: percent(fmean(values)) for name, values in ratios.items()}
    said = "1 pair decides nothing" if pairs == 1 else f"{pairs} pairs decide nothing"
    reasons = [
        f"{said}, whatever is seen; {LOOKS[0]} are the least: give {LOOKS[0] - pairs} more of each arm",
        *_shown(estimates),
    ]
    fields: dict[str, Any] = {"by": "pairs", "pairs": pairs}
    if known_sd is not None:
        centre = interval(ratios["median"], ALPHA, known_sd)
        fields |= {"low_pct": percent(centre.low), "high_pct": percent(centre.high), "alpha": ALPHA}
        needed = pairs_needed(known_sd, ALPHA, THRESHOLDS, known=True)
        reasons.append(f"with the noise that was given, {SETTINGS.threshold_pct:g}% takes {_pairs(needed)}")
    return _undecided(base, head, estimates["median"], reasons, fields)


def unpaired_section(base: Sequence[StepFile], head: Sequence[StepFile]) -> Throughput:
    """Welch on the values of runs, looked at once with the error of one look: whoever adds files looks again."""
    values = {arm: [file.summaries(file.cut) for file in files] for arm, files in (("base", base), ("head", head))}
    columns = {name: [[run[name] for run in values[arm]] for arm in ("base", "head")] for name in SUMMARIES}
    fewest = min(len(base), len(head))
    if fewest < LEAST_RUNS:
        estimates = {name: percent(fmean(theirs) - fmean(ours)) for name, (ours, theirs) in columns.items()}
        least = f"{LEAST_RUNS} runs of each arm are the least"
        reasons = [
            f"{len(base)} base and {len(head)} head decide nothing, whatever is seen; {least}",
            *_shown(estimates),
            f"{NOT_CONTROLLED}: run base and head in turn on one node, and compare with --paired",
        ]
        return _undecided(base, head, estimates["median"], reasons, {"by": "runs"})
    intervals = {name: welch(ours, theirs, ALPHA) for name, (ours, theirs) in columns.items()}
    tests = {name: (decide(found, THRESHOLDS), found) for name, found in intervals.items()}
    decision = combine(tests.values(), THRESHOLDS)
    reasons = [*_outcome(tests, decision), f"{NOT_CONTROLLED}: what they add to all runs of one arm is in the estimate"]
    if decision == "undecided":
        needed = pairs_needed(max(found.sd for found in intervals.values()), ALPHA, THRESHOLDS)
        words = f"about {needed} runs" if needed is not None else "more runs than anybody makes"
        reasons.append(
            f"with this noise {SETTINGS.threshold_pct:g}% would take {words} of each arm; pairs on one node "
            "(--paired) take fewer"
        )
    fields: dict[str, Any] = {
        "by": "runs",
        "tests": [primary_test(name, verdict, found, []) for name, (verdict, found) in tests.items()],
    }
    return _decided(decision, intervals["median"], ALPHA, reasons, base, head, fields)


def _outcome(tests: Mapping[str, tuple[Decision, Interval | Difference]], decision: Decision) -> Iterator[str]:
    """What was decided, in one sentence per summary that decided it."""
    if decision in ("regressed", "improved"):
        word = "slower" if decision == "regressed" else "faster"
        for name, (each, found) in tests.items():
            if each == decision:
                yield (
                    f"head is {word} by the {name} step time: {span(found)}, all of it beyond "
                    f"{SETTINGS.indifference_pct:g}%"
                )
    elif decision == "no_change":
        most = max(percent(found.high) for _, found in tests.values())
        bound = f"at most {ceil(100 * most) / 100:.2f}% slower" if most > 0 else "not slower"
        yield f"median and mean step time lie within {SETTINGS.threshold_pct:g}%; head is {bound}"
    else:
        yield (
            f"no interval lies beyond {SETTINGS.indifference_pct:g}%, and not both lie within "
            f"{SETTINGS.threshold_pct:g}%"
        )


def _shown(estimates: dict[str, float]) -> Iterator[str]:
    """The estimates of too few runs, and a plain word where they are far outside anything usual."""
    yield ", ".join(f"{name} step time {value:+.2f}%" for name, value in estimates.items())
    far = max(estimates.values(), key=abs)
    if abs(far) > FAR_PCT:
        yield (
            f"{far:+.0f}% is far more than noise usually makes: something differs, and so few runs cannot tell whether "
            "it is the code, the node or other work on it"
        )


def _decided(
    decision: Decision,
    centre: Interval | Difference,
    alpha: float,
    reasons: Sequence[str],
    base: Sequence[StepFile],
    head: Sequence[StepFile],
    fields: dict[str, Any],
) -> Throughput:
    tests: list[PrimaryTest] = fields["tests"]
    status: Status = STATUS[decision]
    return Throughput(
        status=status,
        reasons=[*reasons],
        decision=decision,
        estimate_pct=percent(centre.estimate),
        low_pct=percent(centre.low),
        high_pct=percent(centre.high),
        bound_pct=max(test.high_pct for test in tests) if status == "PASS" else None,
        alpha=alpha,
        base_step_s=_step_s(base),
        head_step_s=_step_s(head),
        **fields,
    )


def _undecided(
    base: Sequence[StepFile],
    head: Sequence[StepFile],
    estimate_pct: float,
    reasons: Sequence[str],
    fields: dict[str, Any],
) -> Throughput:
    return Throughput(
        status="INCONCLUSIVE",
        reasons=[*reasons],
        decision="undecided",
        estimate_pct=estimate_pct,
        base_step_s=_step_s(base),
        head_step_s=_step_s(head),
        **fields,
    )


def _step_s(files: Sequence[StepFile]) -> float:
    return median(median(file.step_s[file.cut :]) for file in files)


def _series(numbers: Sequence[int]) -> str:
    return f"{', '.join(str(number) for number in numbers[:-1])} and {numbers[-1]}"
