"""The plots of a paired session: every run in session order, and the ratio of every pair with the interval of the test.

This module computes the geometry in pixels. The style sheet defines the colours. A plot shows a limited number of runs
or pairs, and says how many are left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from regbot.records.settings import ThroughputThresholds as Thresholds
from regbot.records.verdict import RunRole, Throughput
from regbot.report.quantities import milliseconds, percent, signed, size, with_interval
from regbot.report.scale import Scale, scale_around
from regbot.report.timed_runs import ArmName, TimedRun, TimedRuns

WIDTH = 1060.0
"""Width of a plot in pixels."""
LEFT, RIGHT = 64.0, 14.0
"""Widths in pixels of the margins of a plot. The left margin has the labels of the ticks."""
MAX_COLUMN_WIDTH = 56.0
"""Largest width in pixels of the column of a run or pair, so that few dots do not lie far apart."""
LABEL_CHARACTER_WIDTH = 6.5
"""Width in pixels of a character of a block's label."""
MAX_DRAWN_RUNS = 120
MAX_DRAWN_PAIRS = 60
LABEL_GAP = 12.0
"""Minimum distance in pixels between two labels. Closer labels would not be readable."""


@dataclass(frozen=True)
class Mark:
    """A horizontal line across the plot, with its label."""

    y: float
    label: str
    """The label; '' if another label is too close."""
    css_class: str
    """Class of the line in the style sheet."""


@dataclass(frozen=True)
class Dot:
    """One run in the plot."""

    x: float
    y: float
    arm: ArmName
    role: RunRole
    number: int
    """Number of the run in its session."""
    spread: tuple[float, float] | None
    """y of the lower and the upper quartile of the run's steady step times; None if the run has no times."""
    tooltip: str
    seconds: float | None
    """Median step time; None if the run has no steady step."""


@dataclass(frozen=True)
class BlockSpan:
    """The horizontal extent and the label of one block."""

    x: float
    width: float
    label: str


@dataclass(frozen=True)
class RunPlot:
    """The plot of every run of both arms in session order. Lengths are in pixels."""

    height: float
    top: float
    """y of the top of the scale."""
    bottom: float
    """y of the bottom of the scale."""
    ticks: tuple[Mark, ...]
    blocks: tuple[BlockSpan, ...]
    links: tuple[tuple[float, float, float, float], ...]
    """Lines between the two runs of a pair: x and y of the first run, x and y of the second run."""
    levels: tuple[Mark, ...]
    """Lines at the step times of base and head that the verdict gives."""
    dots: tuple[Dot, ...]
    left_out: int
    """Number of runs that are not drawn."""


def draw_runs(timed: TimedRuns, section: Throughput | None) -> RunPlot | None:
    """Return the plot of the runs; None if no run has times. ``section`` is the throughput section of the verdict. Its
    step times are drawn as lines; None draws no lines."""
    runs = timed.runs[:MAX_DRAWN_RUNS]
    medians = [run.verdict.median_s for run in runs if run.verdict.median_s is not None]
    if not medians:
        return None
    top, bottom = 26.0, 236.0  # y of the ends of the scale
    spreads = {run.verdict.number: _get_quartiles(run) for run in runs}
    quartiles = [seconds for spread in spreads.values() if spread is not None for seconds in spread]
    scale = scale_around([*medians, *quartiles], bottom, top, min_span=0.03 * median(medians))
    xs, blocks = _place_runs(runs)
    dots = tuple(_build_dot(run, xs[run.verdict.number], scale, spreads[run.verdict.number]) for run in runs)
    return RunPlot(
        height=bottom + 20,
        top=top,
        bottom=bottom,
        ticks=tuple(Mark(scale(tick), milliseconds(tick), "tick") for tick in scale.ticks()),
        blocks=tuple(blocks),
        links=tuple(_link_pairs(runs, dots)),
        levels=tuple(_mark_step_times(section, scale)),
        dots=dots,
        left_out=len(timed.runs) - len(runs),
    )


def _place_runs(runs: Sequence[TimedRun]) -> tuple[dict[int, float], list[BlockSpan]]:
    """Return the x of each run by the run's number, and the spans of the blocks, with gaps between
    blocks. If a block is too narrow for its label, the label is only the number, or ``w`` for a warm-up."""
    groups = [(key, list(group)) for key, group in groupby(runs, key=_get_block)]
    gap = 14.0
    column = min(MAX_COLUMN_WIDTH, (WIDTH - LEFT - RIGHT - gap * len(groups)) / max(len(runs), 1))
    xs, spans, x = {}, [], LEFT + gap / 2
    for (block, attempt), group in groups:
        width = column * len(group)
        repeated = " again" if attempt > 1 else ""
        label = f"block {block}{repeated}" if block else "warm-up"
        short = f"{block}{'′' if repeated else ''}" if block else "w"
        has_room = width > LABEL_CHARACTER_WIDTH * len(label)
        spans.append(BlockSpan(x, width, label if has_room else short))
        for number, run in enumerate(group):
            xs[run.verdict.number] = round(x + (number + 0.5) * column, 2)
        x += width + gap
    return xs, spans


def _get_block(run: TimedRun) -> tuple[int, int]:
    """Return the number of the run's block and the attempt at it. Warm launches have block 0 and attempt 1."""
    return run.block, run.run.attempt if run.block else 1


def _get_quartiles(run: TimedRun) -> tuple[float, float] | None:
    """Return the quartiles of the run's steady step times in seconds; None if it has none."""
    low, high = run.verdict.low_quartile_s, run.verdict.high_quartile_s
    return None if low is None or high is None else (low, high)


def _build_dot(run: TimedRun, x: float, scale: Scale, spread: tuple[float, float] | None) -> Dot:
    """Return the dot at the run's median step time; on the lower edge of the plot if the run has no steady step.

    ``spread``: quartiles of the run's step times in seconds.
    """
    step = "no steady step" if run.verdict.median_s is None else milliseconds(run.verdict.median_s)
    return Dot(
        x=x,
        y=scale.start if run.verdict.median_s is None else scale(run.verdict.median_s),
        arm=run.arm,
        role=run.verdict.role,
        number=run.verdict.number,
        spread=None if spread is None else (scale(spread[0]), scale(spread[1])),
        tooltip=f"run {run.verdict.number}, {run.arm}, {run.role_words}: {step}",
        seconds=run.verdict.median_s,
    )


def _link_pairs(runs: Sequence[TimedRun], dots: Sequence[Dot]) -> list[tuple[float, float, float, float]]:
    """Return a line for every pair, which connects the dots of its two runs."""
    pairs: dict[int, list[Dot]] = {}
    for run, dot in zip(runs, dots, strict=True):
        if run.verdict.pair is not None:
            pairs.setdefault(run.verdict.pair, []).append(dot)
    complete_pairs = [pair_dots for pair_dots in pairs.values() if len(pair_dots) == 2]
    return [(first.x, first.y, second.x, second.y) for first, second in complete_pairs]


def _mark_step_times(section: Throughput | None, scale: Scale) -> list[Mark]:
    """Return a line at the step time of each arm that the verdict gives, if it lies within the scale."""
    steps = (("base", section.base_step_s), ("head", section.head_step_s)) if section else ()
    return [Mark(scale(step), milliseconds(step), arm) for arm, step in steps if step is not None and scale.holds(step)]


@dataclass(frozen=True)
class PairPanel:
    """The plot of the pairs of one test. Lengths are in pixels."""

    summary: str
    """The summary of a run that the test compares: median or mean."""
    x: float
    """Left edge of the panel."""
    width: float
    points: tuple[tuple[float, float, float, str], ...]
    """For each pair: x, y, log-ratio and tooltip."""
    at: float
    """x of the interval, to the right of the pairs."""
    estimate: float
    """y of the estimate."""
    low: float
    """y of the interval's low end."""
    high: float
    """y of the interval's high end."""
    interval_text: str
    decision: str
    left_out: int
    """Number of pairs that are not drawn."""


@dataclass(frozen=True)
class RatioPlot:
    """The plot of the ratios of all pairs, with one panel for the median and one for the mean. Both panels have the
    same scale, in percent. Lengths are in pixels."""

    height: float
    top: float
    """y of the top of the scale."""
    bottom: float
    """y of the bottom of the scale."""
    ticks: tuple[Mark, ...]
    band: tuple[float, float]
    """y of the positive and of the negative threshold. An interval between them shows no change."""
    marks: tuple[Mark, ...]
    """Lines at zero and at the thresholds."""
    panels: tuple[PairPanel, ...]


def draw_ratios(section: Throughput, thresholds: Thresholds) -> RatioPlot | None:
    """Return the plot of the tests of a throughput section; None if the section has no tests.

    ``threshold_pct`` is the limit for "no change": the whole interval must lie within it. ``indifference_pct`` is the
    limit for "slower" or "faster": the whole interval must lie beyond it.
    """
    tests = section.tests[:2]  # of the median and of the mean
    if not tests:
        return None
    top, bottom = 26.0, 246.0  # y of the ends of the scale
    limit, indifference = thresholds.threshold_pct, thresholds.indifference_pct
    values = [-limit, limit]
    for test in tests:
        values += [*map(_to_percent, test.log_ratios), test.low_pct, test.high_pct]
    scale = scale_around(values, bottom, top)
    gap, right_margin = 26.0, 76.0  # the labels of the thresholds stand in the right margin
    width = (WIDTH - LEFT - right_margin - gap * (len(tests) - 1)) / len(tests)
    interval_width = 90.0  # room beside the pairs for the interval
    panels = []
    for number, test in enumerate(tests):
        x = LEFT + number * (width + gap)
        log_ratios = test.log_ratios[:MAX_DRAWN_PAIRS]
        column = min(MAX_COLUMN_WIDTH, (width - interval_width) / max(len(log_ratios), 1))
        points = tuple(
            (
                round(x + (pair + 0.7) * column, 2),
                scale(_to_percent(ratio)),
                ratio,
                f"pair {pair + 1}, {test.summary}: {percent(_to_percent(ratio))}",
            )
            for pair, ratio in enumerate(log_ratios)
        )
        panels.append(
            PairPanel(
                summary=test.summary,
                x=x,
                width=width,
                points=points,
                at=round(x + (len(log_ratios) + 0.4) * column + 26, 2),
                estimate=scale(test.estimate_pct),
                low=scale(test.low_pct),
                high=scale(test.high_pct),
                interval_text=with_interval(test.estimate_pct, test.low_pct, test.high_pct),
                decision=test.decision,
                left_out=len(test.log_ratios) - len(log_ratios),
            )
        )
    return RatioPlot(
        height=bottom + 24,
        top=top,
        bottom=bottom,
        ticks=tuple(
            Mark(scale(tick), f"{signed(tick, _count_decimal_places(scale))}%", "tick") for tick in scale.ticks()
        ),
        band=(scale(limit), scale(-limit)),
        marks=tuple(_mark_thresholds(scale, limit, indifference)),
        panels=tuple(panels),
    )


def _mark_thresholds(scale: Scale, limit: float, indifference: float) -> list[Mark]:
    """Return the marks of zero and of the thresholds, all in percent. A label that would cover a more important label
    is left out.

    ``limit``: an interval within plus and minus this value shows no change. ``indifference``: an interval beyond this
    value shows a change.
    """
    candidates = [
        (0.0, "0", "zero"),
        (indifference, f"+{size(indifference)} slower", "indifference"),
        (-indifference, f"−{size(indifference)} faster", "indifference"),
        (limit, f"+{size(limit)}", "threshold"),
        (-limit, f"−{size(limit)}", "threshold"),
    ]  # the most important label first
    marks: list[Mark] = []
    for value, label, kind in candidates:
        y = scale(value)
        is_free = all(abs(y - placed.y) >= LABEL_GAP for placed in marks if placed.label)
        marks.append(Mark(y, label if is_free else "", kind))
    return marks


def _count_decimal_places(scale: Scale) -> int:
    """Return the number of decimal places that tells neighbouring ticks apart."""
    ticks = scale.ticks()
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    if step >= 1 and float(step).is_integer():
        return 0
    return 1 if step >= 0.1 else 2


def _to_percent(log_ratio: float) -> float:
    """Return a log-ratio in percent. The log-ratio is limited to [-20, 20] to prevent an overflow."""
    return 100 * math.expm1(min(max(log_ratio, -20.0), 20.0))
