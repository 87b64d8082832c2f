"""Plots over the steps of a run: the step times of every run with the cut, and head's loss minus base's loss.

This module computes the geometry in pixels. The style sheet defines the colours.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from regbot.report.plots import LEFT, MAX_DRAWN_RUNS, RIGHT, WIDTH, Mark
from regbot.report.quantities import milliseconds
from regbot.report.scale import Scale, scale_around
from regbot.report.timed_runs import ARMS, ArmName, TimedRun, TimedRuns

MAX_DRAWN_STEPS = 300
"""Maximum number of points of a curve. From longer runs, evenly spaced steps are drawn."""


@dataclass(frozen=True)
class RunCurve:
    """The curve of one run."""

    points: str
    """Coordinates of an SVG polyline."""
    void: bool
    """Whether the run belongs to a void pair, so that it does not count."""
    tooltip: str


@dataclass(frozen=True)
class ArmCurves:
    """The curves of all runs of one arm. Lengths are in pixels."""

    arm: ArmName
    x: float
    """Left edge of the arm's part of the plot."""
    width: float
    cut: float
    """x of the first step that counts in every run of the arm."""
    lines: tuple[RunCurve, ...]
    ticks: tuple[tuple[float, str], ...]
    """x and label of each tick of the axis of steps."""


@dataclass(frozen=True)
class StepCurves:
    """Step times of both arms on one scale. Lengths are in pixels."""

    height: float
    top: float
    """y of the top of the scale."""
    bottom: float
    """y of the bottom of the scale."""
    ticks: tuple[Mark, ...]
    arms: tuple[ArmCurves, ...]
    above: str
    """Time of the slowest step, if that step is above the scale; else ''."""


def draw_step_curves(timed: TimedRuns) -> StepCurves | None:
    """Return the plot of the step times; None if there are fewer than two steady steps.

    The scale is chosen for the steady steps, so warm-up steps can be above the scale. If the scale included a first
    step that takes ten times as long, all other steps would look alike.
    """
    runs = [run for run in timed.runs[:MAX_DRAWN_RUNS] if run.run.timing is not None and run.run.timing.step_s]
    steady = [step_s for run in runs for step_s in run.steady_s]
    if len(steady) < 2:
        return None
    top, bottom = 12.0, 172.0  # y of the ends of the scale
    # Of many steps, the slowest 0.5% may be above the scale.
    highest = quantiles(steady, n=200)[-1] if len(steady) > 200 else max(steady)
    y_scale = scale_around([min(steady), highest], bottom, top, min_span=0.05 * median(steady), margin=0.12)
    longest = max(len(run.run.timing.step_s) for run in runs if run.run.timing)
    gap = 34.0  # between the parts of the two arms
    width = (WIDTH - LEFT - RIGHT - gap) / 2
    arms = []
    for number, arm in enumerate(ARMS):
        arm_runs = [run for run in runs if run.arm == arm]
        x = LEFT + number * (width + gap)
        x_scale = Scale(0, max(longest - 1, 1), x, x + width)
        cut = max((run.verdict.cut or 0 for run in arm_runs), default=0)
        arms.append(
            ArmCurves(
                arm=arm,
                x=x,
                width=width,
                cut=x_scale(max(cut - 0.5, 0)),  # between the last step that is cut and the first that counts
                lines=tuple(_build_run_curve(run, x_scale, y_scale) for run in arm_runs),
                ticks=_place_step_ticks(x_scale),
            )
        )
    slowest = max(step_s for run in runs if run.run.timing for step_s in run.run.timing.step_s)
    return StepCurves(
        height=bottom + 22,
        top=top,
        bottom=bottom,
        ticks=tuple(Mark(y_scale(tick), milliseconds(tick), "tick") for tick in y_scale.ticks(4)),
        arms=tuple(arms),
        above="" if y_scale.holds(slowest) else milliseconds(slowest),
    )


def _build_run_curve(run: TimedRun, x_scale: Scale, y_scale: Scale) -> RunCurve:
    seconds = run.run.timing.step_s if run.run.timing else []
    return RunCurve(
        points=_format_points(seconds, x_scale, y_scale),
        void=run.verdict.role == "void",
        tooltip=f"run {run.verdict.number}, {run.arm}, {run.role_words}",
    )


def _format_points(values: Sequence[float | None], x_scale: Scale, y_scale: Scale) -> str:
    """Return the coordinates of a polyline. ``values`` has one value per step; a step with None is left out."""
    stride = math.ceil(len(values) / MAX_DRAWN_STEPS) or 1
    return " ".join(
        f"{x_scale(step):.1f},{y_scale(value):.1f}"
        for step, value in enumerate(values)
        if value is not None and step % stride == 0
    )


def _place_step_ticks(x_scale: Scale) -> tuple[tuple[float, str], ...]:
    """Return x and label of the ticks of an axis of steps. Ticks between two steps are left out."""
    return tuple((x_scale(tick), f"{tick:.0f}") for tick in x_scale.ticks(5) if float(tick).is_integer())


@dataclass(frozen=True)
class LossPlot:
    """Plot of losses by step, minus the median loss of the base runs at the step. Lengths are in pixels."""

    height: float
    top: float
    """y of the top of the scale."""
    bottom: float
    """y of the bottom of the scale."""
    zero: float
    """y of no difference."""
    ticks: tuple[Mark, ...]
    """Ticks of the axis of differences."""
    steps: tuple[tuple[float, str], ...]
    """x and label of each tick of the axis of steps."""
    band: str
    """Polygon from the smallest to the largest loss of the base runs."""
    lines: tuple[RunCurve, ...]
    """A curve for each head run."""
    middle: str
    """Polyline of the median of the head runs."""
    words: str
    """The losses of both arms at the last step."""


def draw_losses(timed: TimedRuns) -> LossPlot | None:
    """Return the plot of every head run's losses minus the median of the base runs. Return None if fewer than two steps
    have losses in both arms."""
    base_losses, head_losses = (
        _group_losses_by_step([run.run.loss for run in timed.runs if run.arm == arm and run.run.loss]) for arm in ARMS
    )
    step_count = min(len(base_losses), len(head_losses))
    steps = [step for step in range(step_count) if base_losses[step] and head_losses[step]]
    if len(steps) < 2:
        return None
    centre = {step: median(base_losses[step]) for step in steps}  # the loss that is subtracted
    # The smallest and the largest loss of the base runs, and the median loss of the head runs, minus the centre.
    low = {step: min(base_losses[step]) - centre[step] for step in steps}
    high = {step: max(base_losses[step]) - centre[step] for step in steps}
    median_changes = {step: median(head_losses[step]) - centre[step] for step in steps}
    top, bottom = 12.0, 152.0  # y of the ends of the scale
    values = [*low.values(), *high.values(), *median_changes.values(), 0.0]
    y_scale = scale_around(values, bottom, top, min_span=1e-9)
    x_scale = Scale(0, max(steps[-1], 1), LEFT, WIDTH - RIGHT)
    stride = math.ceil(len(steps) / MAX_DRAWN_STEPS)
    drawn = steps[::stride]

    def path(series: dict[int, float], order: Sequence[int]) -> str:
        """Return the coordinates of ``series`` (step -> value) at the steps of ``order``."""
        return " ".join(f"{x_scale(step):.1f},{y_scale(series[step]):.1f}" for step in order)

    head_runs = [run for run in timed.runs[:MAX_DRAWN_RUNS] if run.arm == "head" and run.run.loss]
    last_step = steps[-1]
    return LossPlot(
        height=bottom + 22,
        top=top,
        bottom=bottom,
        zero=y_scale(0.0),
        ticks=tuple(Mark(y_scale(tick), _format_tick(tick), "tick") for tick in y_scale.ticks(4)),
        steps=_place_step_ticks(x_scale),
        band=f"{path(high, drawn)} {path(low, drawn[::-1])}",  # along the upper edge, and back along the lower
        lines=tuple(_build_loss_curve(run, centre, x_scale, y_scale) for run in head_runs),
        middle=path(median_changes, drawn),
        # ``last_step`` is counted from 0.
        words=f"at step {last_step + 1}: base {centre[last_step]:.4f}, "
        f"head {centre[last_step] + median_changes[last_step]:.4f}",
    )


def _format_tick(value: float) -> str:
    return f"{value:+.2g}".replace("-", "−", 1) if value else "0"


def _build_loss_curve(run: TimedRun, centre: dict[int, float], x_scale: Scale, y_scale: Scale) -> RunCurve:
    """Return the curve of a head run's loss minus ``centre``, which has the median loss of the base runs by step."""
    differences = [
        loss - centre[step] if loss is not None and step in centre else None for step, loss in enumerate(run.run.loss)
    ]
    return RunCurve(
        points=_format_points(differences, x_scale, y_scale),
        void=run.verdict.role == "void",
        tooltip=f"run {run.verdict.number}, head, {run.role_words}",
    )


def _group_losses_by_step(runs: Sequence[Sequence[float | None]]) -> list[list[float]]:
    """Return a list for each step: the known losses of all runs at this step. ``runs`` has the losses of each run."""
    longest = max(map(len, runs), default=0)
    return [_drop_unknown(run[step] for run in runs if step < len(run)) for step in range(longest)]


def _drop_unknown(losses: Iterable[float | None]) -> list[float]:
    return [loss for loss in losses if loss is not None]
