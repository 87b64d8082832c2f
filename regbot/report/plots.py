"""The plots of a paired session: every run in the order it was made, and the ratio of every pair with its interval.

Geometry only, in pixels of the drawing; colours are the style sheet's. Both are bounded: a session that has more runs
than can be seen is cut, and the cut is said.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median, quantiles

from regbot.records.settings import Throughput as Thresholds
from regbot.records.verdict import Throughput
from regbot.report.quantities import milliseconds, percent, signed, size, with_interval
from regbot.report.scale import Scale, around
from regbot.report.timed import ArmName, Role, Timed, TimedRun

WIDTH = 1060.0
LEFT, RIGHT = 64.0, 14.0
RUNS_DRAWN = 120
PAIRS_DRAWN = 60
LABEL_GAP = 12.0
"""Pixels between two labels that can both be read."""


@dataclass(frozen=True)
class Mark:
    """A line across the plot with its label ('' where another label stands too close)."""

    y: float
    label: str
    sort: str


@dataclass(frozen=True)
class Dot:
    """One run. ``spread`` are the quartiles of its steady steps, None where it has no times."""

    x: float
    y: float
    arm: ArmName
    role: Role
    number: int
    spread: tuple[float, float] | None
    told: str
    seconds: float | None


@dataclass(frozen=True)
class Span:
    """One block: where it lies, and its name."""

    x: float
    width: float
    label: str


@dataclass(frozen=True)
class Strip:
    """Every run of both arms in session order."""

    height: float
    top: float
    bottom: float
    ticks: tuple[Mark, ...]
    blocks: tuple[Span, ...]
    links: tuple[tuple[float, float, float, float], ...]
    levels: tuple[Mark, ...]
    dots: tuple[Dot, ...]
    left_out: int


def strip(timed: Timed, section: Throughput | None) -> Strip | None:
    """The strip of ``timed``; None where no run has times."""
    runs = timed.runs[:RUNS_DRAWN]
    known = [run.median_s for run in runs if run.median_s is not None]
    if not known:
        return None
    top, bottom = 26.0, 236.0
    spreads = {run.number: _quartiles(run) for run in runs}
    wanted = [*known, *(edge for pair in spreads.values() if pair for edge in pair)]
    scale = around(wanted, bottom, top, least=0.03 * median(known))
    xs, blocks = _columns(runs)
    dots = tuple(_dot(run, xs[run.number], scale, spreads[run.number]) for run in runs)
    return Strip(
        height=bottom + 20,
        top=top,
        bottom=bottom,
        ticks=tuple(Mark(scale(tick), milliseconds(tick), "tick") for tick in scale.ticks()),
        blocks=tuple(blocks),
        links=tuple(_links(runs, dots)),
        levels=tuple(_levels(section, scale)),
        dots=dots,
        left_out=len(timed.runs) - len(runs),
    )


def _columns(runs: Sequence[TimedRun]) -> tuple[dict[int, float], list[Span]]:
    """The x of each run, and the blocks, which stand a little apart."""
    groups = [(key, list(group)) for key, group in groupby(runs, key=_block)]
    gap = 14.0
    column = min(56.0, (WIDTH - LEFT - RIGHT - gap * len(groups)) / max(len(runs), 1))
    xs, spans, x = {}, [], LEFT + gap / 2
    for (block, attempt), group in groups:
        width = column * len(group)
        again = " again" if attempt > 1 else ""
        label = f"block {block}{again}" if block else "warm-up"
        short = f"{block}{'′' if again else ''}" if block else "w"
        spans.append(Span(x, width, label if width > 6.5 * len(label) else short))
        for number, run in enumerate(group):
            xs[run.number] = round(x + (number + 0.5) * column, 2)
        x += width + gap
    return xs, spans


def _block(run: TimedRun) -> tuple[int, int]:
    return run.block, run.run.attempt if run.block else 1


def _quartiles(run: TimedRun) -> tuple[float, float] | None:
    if len(run.steady_s) < 2:
        return None
    low, _, high = quantiles(run.steady_s, n=4)
    return low, high


def _dot(run: TimedRun, x: float, scale: Scale, spread: tuple[float, float] | None) -> Dot:
    step = "no steady step" if run.median_s is None else milliseconds(run.median_s)
    return Dot(
        x=x,
        y=scale.start if run.median_s is None else scale(run.median_s),
        arm=run.arm,
        role=run.role,
        number=run.number,
        spread=None if spread is None else (scale(spread[0]), scale(spread[1])),
        told=f"run {run.number}, {run.arm}, {run.role}: {step}",
        seconds=run.median_s,
    )


def _links(runs: Sequence[TimedRun], dots: Sequence[Dot]) -> list[tuple[float, float, float, float]]:
    """A line from the one to the other run of every pair."""
    pairs: dict[tuple[int, int, int], list[Dot]] = {}
    for run, dot in zip(runs, dots, strict=True):
        if run.role == "pair" and run.run.position is not None:
            pairs.setdefault((run.block, run.run.attempt, run.run.position.slot // 2), []).append(dot)
    return [(two[0].x, two[0].y, two[1].x, two[1].y) for two in pairs.values() if len(two) == 2]


def _levels(section: Throughput | None, scale: Scale) -> list[Mark]:
    steps = (("base", section.base_step_s), ("head", section.head_step_s)) if section else ()
    return [Mark(scale(step), milliseconds(step), arm) for arm, step in steps if step is not None and scale.holds(step)]


@dataclass(frozen=True)
class Panel:
    """The pairs of one test. ``low``, ``high`` and ``estimate`` are of its interval, in pixels; ``told`` in words."""

    summary: str
    x: float
    width: float
    points: tuple[tuple[float, float, float, str], ...]
    at: float
    estimate: float
    low: float
    high: float
    told: str
    decision: str
    left_out: int


@dataclass(frozen=True)
class Ratios:
    """The log-ratios of all pairs, on one scale of percent for median and mean."""

    height: float
    top: float
    bottom: float
    ticks: tuple[Mark, ...]
    band: tuple[float, float]
    marks: tuple[Mark, ...]
    panels: tuple[Panel, ...]


def ratios(section: Throughput, thresholds: Thresholds) -> Ratios | None:
    """The plot of a section's tests; None where it has none."""
    tests = section.tests[:2]
    if not tests:
        return None
    top, bottom = 26.0, 246.0
    limit, indifference = thresholds.threshold_pct, thresholds.indifference_pct
    values = [
        *(_percent(ratio) for test in tests for ratio in test.log_ratios),
        *(edge for test in tests for edge in (test.low_pct, test.high_pct)),
    ]
    scale = around([*values, -limit, limit], bottom, top)
    gap, label = 26.0, 76.0
    width = (WIDTH - LEFT - label - gap * (len(tests) - 1)) / len(tests)
    panels = []
    for number, test in enumerate(tests):
        x = LEFT + number * (width + gap)
        shown = test.log_ratios[:PAIRS_DRAWN]
        column = min(56.0, (width - 90) / max(len(shown), 1))
        points = tuple(
            (
                round(x + (place + 0.7) * column, 2),
                scale(_percent(ratio)),
                ratio,
                f"pair {place + 1}, {test.summary}: {percent(_percent(ratio))}",
            )
            for place, ratio in enumerate(shown)
        )
        panels.append(
            Panel(
                summary=test.summary,
                x=x,
                width=width,
                points=points,
                at=round(x + (len(shown) + 0.4) * column + 26, 2),
                estimate=scale(test.estimate_pct),
                low=scale(test.low_pct),
                high=scale(test.high_pct),
                told=with_interval(test.estimate_pct, test.low_pct, test.high_pct),
                decision=test.decision,
                left_out=len(test.log_ratios) - len(shown),
            )
        )
    return Ratios(
        height=bottom + 24,
        top=top,
        bottom=bottom,
        ticks=tuple(Mark(scale(tick), f"{signed(tick, _places(scale))}%", "tick") for tick in scale.ticks()),
        band=(scale(limit), scale(-limit)),
        marks=tuple(_marks(scale, limit, indifference)),
        panels=tuple(panels),
    )


def _marks(scale: Scale, limit: float, indifference: float) -> list[Mark]:
    """Zero and the thresholds, labelled as far as the labels do not cover each other, the most important first."""
    wanted = [
        (0.0, "0", "zero"),
        (indifference, f"+{size(indifference)} slower", "indifference"),
        (-indifference, f"−{size(indifference)} faster", "indifference"),
        (limit, f"+{size(limit)}", "threshold"),
        (-limit, f"−{size(limit)}", "threshold"),
    ]
    marks: list[Mark] = []
    for value, label, sort in wanted:
        y = scale(value)
        free = all(abs(y - other.y) >= LABEL_GAP for other in marks if other.label)
        marks.append(Mark(y, label if free else "", sort))
    return marks


def _places(scale: Scale) -> int:
    ticks = scale.ticks()
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    return 0 if step >= 1 and float(step).is_integer() else 1 if step >= 0.1 else 2


def _percent(log_ratio: float) -> float:
    """Percent of a log-ratio; what no clock can have measured is cut rather than overflow."""
    return 100 * math.expm1(min(max(log_ratio, -20.0), 20.0))
