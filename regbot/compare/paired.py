"""The throughput section of files that are pairs: the test that judges a check's own sessions."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from regbot.compare.answer import (
    ALPHA,
    NOISIER,
    SETTINGS,
    THRESHOLDS,
    decided,
    enough,
    given,
    no_steady_state,
    outcome,
    raised,
    shown,
    undecided,
)
from regbot.compare.cut import unsteady
from regbot.compare.read import StepFile
from regbot.judge.estimates import percent
from regbot.judge.throughput import primary_test
from regbot.records.verdict import Throughput
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import LOOKS, Sequential, interval, mde, pairs_needed, sequential

Ratios = dict[str, list[float]]


def paired_section(
    base: Sequence[StepFile], head: Sequence[StepFile], known_sd: float | None
) -> tuple[Throughput, list[str]]:
    """The i-th files of both arms are a pair, in session order; ``known_sd`` of a pair's log-ratio. And warnings."""
    ratios: Ratios = {name: [] for name in SUMMARIES}
    for pair in zip(base, head, strict=True):
        ours, theirs = (file.summaries() for file in pair)
        for name, values in ratios.items():
            values.append(theirs[name] - ours[name])
    warnings: list[str] = []
    said = known_sd
    if known_sd is not None and len(base) < LOOKS[0]:
        known_sd, warnings = raised(known_sd, base, head)
    found = sequential(ratios, len(SUMMARIES), THRESHOLDS, known_sd)
    if found is not None and said is not None and (seen := _scatter(ratios, found.pairs)) > NOISIER * said:
        warning = (
            f"the first {found.pairs} pairs scatter by {100 * seen:.2g}% and --noise says {100 * said:.2g}%; "
            "what was seen is used, not what was said"
        )
        warnings = [warning]
        known_sd = None
        found = sequential(ratios, len(SUMMARIES), THRESHOLDS)
    if found is None:
        return _too_few(base, head, ratios), warnings
    return _looked(base[: found.pairs], head[: found.pairs], ratios, found, known_sd is not None), warnings


def _looked(
    base: Sequence[StepFile], head: Sequence[StepFile], ratios: Ratios, found: Sequential, known: bool
) -> Throughput:
    fields: dict[str, Any] = {"by": "pairs", "pairs": found.pairs, "unused_pairs": found.unused}
    centre = found.tests["median"][1]
    if told := unsteady(base, head):
        estimates = {name: percent(each.estimate) for name, (_, each) in found.tests.items()}
        return no_steady_state(base, head, told, estimates, fields)
    sd = max(each.sd for _, each in found.tests.values())
    fields |= {
        "mde_pct": percent(mde(sd, found.pairs, found.alpha, THRESHOLDS.eps, known)),
        "mde_full_pct": percent(mde(sd, LOOKS[-1], found.alpha, THRESHOLDS.eps, known)),
        "tests": [
            primary_test(name, decision, each, ratios[name][: found.pairs])
            for name, (decision, each) in found.tests.items()
        ],
    }
    return decided(found.decision, centre, found.alpha, [*_reasons(found, known)], base, head, fields)


def _reasons(found: Sequential, known: bool) -> Iterator[str]:
    yield from outcome(found.tests, found.decision)
    worst = max(each.sd for _, each in found.tests.values())
    if found.look == 0:
        yield given(worst)
    if found.unused:
        why = "decided" if found.decision != "undecided" else f"looks are after {_series(LOOKS)} pairs"
        yield f"{found.pairs} pairs were used and {found.unused} not: {why}"
    if found.decision != "undecided":
        return
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


def _scatter(ratios: Ratios, pairs: int) -> float:
    """The larger standard deviation of the summaries over the first ``pairs``; 0 of a single one."""
    return max(interval(values[:pairs], ALPHA).sd for values in ratios.values()) if pairs > 1 else 0.0


def _too_few(base: Sequence[StepFile], head: Sequence[StepFile], ratios: Ratios) -> Throughput:
    pairs = len(base)
    estimates = {name: percent(fmean(values)) for name, values in ratios.items()}
    said = "1 pair decides nothing" if pairs == 1 else f"{pairs} pairs decide nothing"
    reasons = [
        f"{said}, whatever is seen; {LOOKS[0]} are the least: give {LOOKS[0] - pairs} more of each arm",
        *shown(estimates),
        enough(estimates),
    ]
    return undecided(base, head, estimates["median"], reasons, {"by": "pairs", "pairs": pairs})


def _series(numbers: Sequence[int]) -> str:
    return f"{', '.join(str(number) for number in numbers[:-1])} and {numbers[-1]}"
