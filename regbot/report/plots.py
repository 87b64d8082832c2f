"""The plots of a workload: live bytes over the traced step, every run in session order, the ratio of every pair, and
the losses.

This module computes the geometry in pixels. The style sheet defines the colours. A plot shows a limited number of runs
or pairs, and says how many are left out.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from regbot.records.ledger import Program
from regbot.records.settings import ThroughputThresholds as Thresholds
from regbot.records.text.units import format_amount
from regbot.records.verdict import PrimaryTest, ProgramSection
from regbot.report.quantities import milliseconds, percent, signed, size, with_interval
from regbot.report.walls import find_phase_ends
from regbot.report.workload_section import TimedRun, WorkloadSection

WIDTH, LEFT, RIGHT = 1060.0, 64.0, 76.0
"""Widths in pixels of a plot and of its margins. The margins have the labels of ticks and thresholds."""
TOP, BOTTOM = 12.0, 222.0
"""y of the ends of the scale."""
MAX_COLUMN_WIDTH = 56.0
"""Largest width in pixels of the column of a run or pair, so that few dots do not lie far apart."""
MAX_DRAWN = 120
"""Largest number of runs or pairs in a plot."""
MAX_DRAWN_STEPS = 300
MAX_MAGNITUDE = 1e12
"""Values are limited to this size, so that a scale cannot overflow. No step time or loss is that large."""


@dataclass(frozen=True)
class Scale:
    """A linear map from values between ``low`` and ``high`` to y in pixels. Values outside are drawn at the edge."""

    low: float
    high: float

    def __call__(self, value: float) -> float:
        position = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(BOTTOM + position * (TOP - BOTTOM), 2)

    def ticks(self) -> list[float]:
        """Return about 5 round numbers inside the scale. Their distance is 1, 2, 2.5 or 5 times a power of ten."""
        min_step = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(min_step))
        step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= min_step * 0.999)
        return [step * number for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


@dataclass(frozen=True)
class Mark:
    """A horizontal line across the plot, with a label to its left, or to its right if it is not a tick."""

    y: float
    label: str
    css_class: str


@dataclass(frozen=True)
class Dot:
    """A run or a pair, with a whisker from ``low`` to ``high`` (y in pixels) if they differ."""

    x: float
    y: float
    low: float
    high: float
    css_class: str
    tooltip: str
    data: Mapping[str, str | int | float | None]
    """Attributes of the element, for tests."""


@dataclass(frozen=True)
class Line:
    """The curve of one run."""

    points: str
    css_class: str
    tooltip: str


@dataclass(frozen=True)
class Plot:
    """A plot with its title and what the reader has to know to read it."""

    title: str
    explanation: str
    marks: Sequence[Mark] = ()
    dots: Sequence[Dot] = ()
    lines: Sequence[Line] = ()
    css_class: str = ""


def draw_plots(entry: WorkloadSection, thresholds: Thresholds) -> Iterator[Plot]:
    """Yield the plots of a workload that have something to show."""
    if entry.programs and all(len(program.live_curve) > 1 for program in entry.programs):
        yield _draw_live_bytes(*entry.programs, entry.verdict.program)
    runs = entry.timed[:MAX_DRAWN]
    if any(timed.verdict.median_s is not None for timed in runs):
        yield _draw_runs(runs, _count_left_out(len(entry.timed)))
    for test in entry.throughput.tests[:2] if entry.throughput else []:  # of the median and of the mean
        yield _draw_ratios(test, thresholds)
    yield from _draw_losses([timed for timed in runs if timed.run.loss])


def _count_left_out(total: int) -> str:
    return f"; {total - MAX_DRAWN} more are not drawn" if total > MAX_DRAWN else ""


def _scale_around(values: Sequence[float], min_span: float) -> Scale:
    """Return a scale with room around ``values``, which spans at least ``min_span``."""
    limited = [min(max(value, -MAX_MAGNITUDE), MAX_MAGNITUDE) for value in values]
    low, high = min(limited), max(limited)
    span = max((high - low) * 1.16, min_span, 1e-9 * max(abs(low), abs(high)), 1e-12)
    middle = (low + high) / 2
    return Scale(middle - span / 2, middle + span / 2)


def _place_columns(number: int) -> list[float]:
    """Return x of each of ``number`` columns, from the left."""
    width = min(MAX_COLUMN_WIDTH, (WIDTH - LEFT - RIGHT) / max(number, 1))
    return [round(LEFT + (column + 0.5) * width, 2) for column in range(number)]


def _draw_live_bytes(base: Program, head: Program, section: ProgramSection | None) -> Plot:
    """Return the live bytes of both arms over the step, with the memory of the device if it is not far above them."""
    highest = max(base.peak_bytes, head.peak_bytes, 1)
    limit = section.device_bytes if section is not None else None
    is_limit_near = limit is not None and limit < 2 * highest
    scale = Scale(0.0, 1.08 * max(highest, limit if limit is not None and is_limit_near else 0))
    lines, phases = [], []
    for arm, program in (("base", base), ("head", head)):
        part_width = (WIDTH - LEFT - RIGHT) / (len(program.live_curve) - 1)
        points = " ".join(
            f"{LEFT + part * part_width:.1f},{scale(size):.1f}" for part, (_, size) in enumerate(program.live_curve)
        )
        lines.append(Line(points, arm, f"{arm}: peak of {format_amount(program.peak_bytes, 'bytes')}"))
        ends = (f"{phase} until {100 * end:.0f}%" for phase, end in find_phase_ends(program.live_curve))
        phases.append(f"{arm}: {', '.join(ends)}")
    marks = [Mark(scale(tick), format_amount(int(tick), "bytes"), "tick") for tick in scale.ticks()]
    if limit is not None and is_limit_near:
        marks.append(Mark(scale(limit), format_amount(limit, "bytes"), "threshold"))
    explanation = f"from the first kernel of the step to the last; {'; '.join(phases)}"
    return Plot("Live bytes over the step", explanation, marks, lines=lines, css_class="live-bytes")


def _draw_runs(runs: Sequence[TimedRun], left_out: str) -> Plot:
    """Return a dot at the median step time of each run; on the lower edge for a run without a steady step. A whisker
    shows the quartiles of its steps."""
    verdicts = [timed.verdict for timed in runs]
    medians = [verdict.median_s for verdict in verdicts if verdict.median_s is not None]
    ends = [end for verdict in verdicts for end in (verdict.low_quartile_s, verdict.high_quartile_s) if end is not None]
    scale = _scale_around([*medians, *ends], min_span=0.03 * median(medians))
    dots = []
    for x, timed in zip(_place_columns(len(runs)), runs, strict=True):
        verdict = timed.verdict
        step = "no steady step" if verdict.median_s is None else milliseconds(verdict.median_s)
        y = BOTTOM if verdict.median_s is None else scale(verdict.median_s)
        low, high = (y if end is None else scale(end) for end in (verdict.low_quartile_s, verdict.high_quartile_s))
        block = f"block {timed.block}, " if timed.block else ""
        tooltip = f"run {verdict.number}, {block}{verdict.arm}, {timed.role_words}: {step}"
        data = {"run": verdict.number, "arm": verdict.arm, "role": verdict.role, "seconds": verdict.median_s}
        dots.append(Dot(x, y, low, high, f"{verdict.arm} {verdict.role}", tooltip, data))
    ticks = [Mark(scale(tick), milliseconds(tick), "tick") for tick in scale.ticks()]
    explanation = "median step of each run, with the quartiles of its steps; hollow: warm-up or unused, cross: void"
    return Plot("Every run in session order", f"{explanation}{left_out}", ticks, dots, css_class="runs-plot")


def _draw_ratios(test: PrimaryTest, thresholds: Thresholds) -> Plot:
    """Return the plot of the pairs of one test, with its interval to the right of them.

    ``threshold_pct`` is the limit for "no change": the whole interval must lie within it. ``indifference_pct`` is the
    limit for "slower" or "faster": the whole interval must lie beyond it.
    """
    limit, indifference = thresholds.threshold_pct, thresholds.indifference_pct
    log_ratios = test.log_ratios[:MAX_DRAWN]
    changes = list(map(_to_percent, log_ratios))
    scale = _scale_around([-limit, limit, *changes, test.low_pct, test.high_pct], min_span=0.0)
    *xs, interval_x = _place_columns(len(changes) + 1)
    dots = []
    for number, (x, ratio, change) in enumerate(zip(xs, log_ratios, changes, strict=True), 1):
        y, tooltip = scale(change), f"pair {number}: {percent(change)}"
        dots.append(Dot(x, y, y, y, "head pair", tooltip, {"ratio": ratio}))
    interval = with_interval(test.estimate_pct, test.low_pct, test.high_pct)
    ends = scale(test.low_pct), scale(test.high_pct)
    dots.append(Dot(interval_x, scale(test.estimate_pct), *ends, f"interval {test.decision}", interval, {}))
    places = 2 if (scale.high - scale.low) < 2 else 1 if (scale.high - scale.low) < 20 else 0
    marks = [Mark(scale(tick), f"{signed(tick, places)}%", "tick") for tick in scale.ticks()]
    marks.append(Mark(scale(0.0), "", "zero"))
    marks += [Mark(scale(value), "", "indifference") for value in (indifference, -indifference)]
    marks += [Mark(scale(limit), f"±{size(limit)}", "threshold"), Mark(scale(-limit), "", "threshold")]
    explanation = (
        f"each dot is one pair, by the {test.summary} of the steps; the bar is the interval {interval}, its middle the "
        f"estimate; above zero head is slower{_count_left_out(len(test.log_ratios))}"
    )
    title = f"The pairs: head against base, {test.summary} step"
    return Plot(title, explanation, marks, dots, css_class=f"pairs-plot {test.summary}")


def _to_percent(log_ratio: float) -> float:
    """Return a log-ratio in percent. The log-ratio is limited to [-20, 20] to prevent an overflow."""
    return 100 * math.expm1(min(max(log_ratio, -20.0), 20.0))


def _draw_losses(runs: Sequence[TimedRun]) -> Iterator[Plot]:
    """Yield the plot of every run's losses minus the median of the base runs at the step, if at least two steps of both
    arms have losses."""
    losses: dict[int, list[float]] = {}  # step -> losses of base
    for timed in runs:
        if timed.verdict.arm == "base":
            for step, loss in enumerate(timed.run.loss):
                if loss is not None:
                    losses.setdefault(step, []).append(loss)
    centre = {step: median(values) for step, values in losses.items()}
    curves = []
    for timed in runs:
        known = [(step, loss) for step, loss in enumerate(timed.run.loss) if loss is not None and step in centre]
        curves.append((timed.verdict, timed.role_words, [(step, loss - centre[step]) for step, loss in known]))
    if len(centre) < 2 or not any(len(curve) > 1 for verdict, _, curve in curves if verdict.arm == "head"):
        return
    scale = _scale_around([difference for _, _, curve in curves for _, difference in curve], min_span=1e-9)
    stride = math.ceil(len(centre) / MAX_DRAWN_STEPS)
    step_width = (WIDTH - LEFT - RIGHT) / max(centre)
    lines = []
    for verdict, role, curve in curves:
        points = " ".join(f"{LEFT + step * step_width:.1f},{scale(value):.1f}" for step, value in curve[::stride])
        tooltip = f"run {verdict.number}, {verdict.arm}, {role}"
        lines.append(Line(points, f"{verdict.arm} {verdict.role}", tooltip))
    ticks = [Mark(scale(tick), f"{tick:+.2g}".replace("-", "−") if tick else "0", "tick") for tick in scale.ticks()]
    explanation = "loss of each run minus the median of the base runs, by step"
    yield Plot(
        "Loss, head minus base", explanation, [*ticks, Mark(scale(0.0), "", "zero")], lines=lines, css_class="losses"
    )
