"""The throughput section of files, and what is said of it: the parts that pairs and single runs share."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from statistics import median
from typing import Any

from regbot.compare.cut import warm_up
from regbot.compare.read import StepFile
from regbot.judge.estimates import percent, span
from regbot.judge.throughput import STATUS
from regbot.records.settings import Throughput as Settings
from regbot.records.verdict import Decision, PrimaryTest, Status, Throughput
from regbot.stats.known_noise import run_error
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import LOOK_ALPHA, LOOKS, Interval, Thresholds, pairs_needed
from regbot.stats.unpaired import Difference

SETTINGS = Settings()
THRESHOLDS = Thresholds.from_percent(SETTINGS.threshold_pct, SETTINGS.indifference_pct)
ALPHA = LOOK_ALPHA / len(SUMMARIES)

NOT_CONTROLLED = "node and session effects not controlled"

FAR_PCT = 20.0
"""An estimate from too few runs beyond this is called what it is: on the noisiest node that the test was simulated for,
single pairs scatter by an eighth of it."""

NOISIER = 2.0
"""Times that what is seen may exceed what --noise says before it is used instead. Twice as much happens by chance in
less than one of a hundred sessions of four pairs."""

USUAL_NOISE = (("quiet", 0.3), ("typical", 0.8), ("noisy", 2.5))
"""Percent that a pair scatters by on the kinds of nodes that the test was simulated for (docs/statistics.md)."""


def outcome(tests: Mapping[str, tuple[Decision, Interval | Difference]], decision: Decision) -> Iterator[str]:
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


def shown(estimates: Mapping[str, float]) -> Iterator[str]:
    """The estimates of too few runs in percent, and a plain word where they are far outside anything usual."""
    yield ", ".join(f"{name} step time {value:+.2f}%" for name, value in estimates.items())
    far = max(estimates.values(), key=abs)
    if abs(far) > FAR_PCT:
        yield (
            f"{far:+.0f}% is far more than noise usually makes: something differs, and so few runs cannot tell whether "
            "it is the code, the node or other work on it"
        )


def enough(estimates: Mapping[str, float]) -> str:
    """How many pairs would show what the estimates say, or the threshold where they say less, on usual nodes."""
    # As far as the threshold and in whole percents: so few runs know no digits.
    far = max(abs(math.log1p(value / 100)) for value in estimates.values())
    pct = max(round(percent(far)), round(SETTINGS.threshold_pct))
    limits = Thresholds(delta=math.log1p(pct / 100), eps=THRESHOLDS.eps)
    what = f"{pct}%" if pct <= FAR_PCT else "a difference like this"
    begin = f"to prove {what}, run base and head in turn on one node and compare with --paired: enough are"
    needed = [pairs_needed(noise / 100, ALPHA, limits) for _, noise in USUAL_NOISE]
    words = [
        f"{_many(pairs)} on a {kind} {'node' if i == 0 else 'one'} ({noise:g}%{' per pair' * (i == 0)})"
        for i, ((kind, noise), pairs) in enumerate(zip(USUAL_NOISE, needed, strict=True))
    ]
    if len({*needed}) == 1:
        kind, noise = USUAL_NOISE[-1]
        return f"{begin} {_many(needed[0])} pairs, even on a {kind} node ({noise:g}% per pair)"
    return f"{begin} {words[0].replace(' on', ' pairs on', 1)}, {', '.join(words[1:])}"


def _many(pairs: int | None) -> str:
    return f"{pairs}" if pairs is not None and pairs <= LOOKS[-1] else f"more than {LOOKS[-1]}"


def own_noise(base: Sequence[StepFile], head: Sequence[StepFile]) -> float:
    """The standard deviation of a pair that the noise of the steps inside the runs makes: the least there can be."""
    squares = [[run_error(file.kept_s) ** 2 for file in arm] for arm in (base, head)]
    return math.sqrt(sum(math.fsum(arm) / len(arm) for arm in squares))


def raised(known_sd: float, base: Sequence[StepFile], head: Sequence[StepFile]) -> tuple[float, list[str]]:
    """``known_sd`` with the steps' own noise where that contradicts it, and the warning. For few runs, whose scatter
    shows nothing or not much."""
    own = own_noise(base, head)
    if own <= NOISIER * known_sd:
        return known_sd, []
    sd = math.hypot(known_sd, own)
    warning = (
        f"the steps inside the files scatter so much that a pair does by {100 * own:.2g}%, and --noise says "
        f"{100 * known_sd:.2g}%; {100 * sd:.2g}% is used"
    )
    return sd, [warning]


def given(sd: float) -> str:
    """What stands beside an answer that the runs alone would not have given."""
    return f"judged with the noise that was given, {100 * sd:.2g}% per pair: the answer is as good as that figure"


def no_steady_state(
    base: Sequence[StepFile],
    head: Sequence[StepFile],
    told: Iterable[str],
    estimates: Mapping[str, float],
    fields: dict[str, Any],
) -> Throughput:
    """Undecided because an arm never settles; ``told`` says by which runs."""
    what_to_do = (
        "a run that never settles has no step time to compare: run it twice as long, find what drifts, or say where "
        "its warm-up ends with --skip N"
    )
    reasons = [*told, what_to_do, *shown(estimates)]
    return undecided(base, head, estimates["median"], reasons, fields)


def decided(
    decision: Decision,
    centre: Interval | Difference,
    alpha: float,
    reasons: Sequence[str],
    base: Sequence[StepFile],
    head: Sequence[StepFile],
    fields: dict[str, Any],
) -> Throughput:
    """The section where intervals were looked at, whatever they said."""
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
        **_arms(base, head),
        **fields,
    )


def undecided(
    base: Sequence[StepFile],
    head: Sequence[StepFile],
    estimate_pct: float,
    reasons: Sequence[str],
    fields: dict[str, Any],
) -> Throughput:
    """The section where no interval was looked at."""
    return Throughput(
        status="INCONCLUSIVE",
        reasons=[*reasons],
        decision="undecided",
        estimate_pct=estimate_pct,
        **_arms(base, head),
        **fields,
    )


def withheld(section: Throughput, lacking: Sequence[str]) -> Throughput:
    """A PASS that is none, because of what the files do not tell: ``lacking``, a sentence a file."""
    reasons = [
        *(f"no PASS: {each}" for each in lacking),
        "a slowdown may stand in what is not told: give one whole run a file, or leave those steps out with --skip N",
    ]
    return section.model_copy(
        update={
            "status": "INCONCLUSIVE",
            "decision": "undecided",
            "bound_pct": None,
            "reasons": [*reasons, *section.reasons],
        }
    )


def _arms(base: Sequence[StepFile], head: Sequence[StepFile]) -> dict[str, Any]:
    return {
        "base_step_s": _step_s(base),
        "head_step_s": _step_s(head),
        "base_warmup_steps": warm_up(base),
        "head_warmup_steps": warm_up(head),
    }


def _step_s(files: Sequence[StepFile]) -> float:
    return median(median(file.kept_s) for file in files)
