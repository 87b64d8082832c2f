"""What a run did step by step: its step times with the cut marked, and how the loss of head leaves that of base.

Geometry only, in pixels of the drawing; colours are the style sheet's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from regbot.report.plots import LEFT, RIGHT, RUNS_DRAWN, WIDTH, Mark
from regbot.report.quantities import milliseconds
from regbot.report.scale import Scale, around
from regbot.report.timed import ARMS, ArmName, Timed, TimedRun

STEPS_DRAWN = 300
"""Points of a line; a longer run is thinned out evenly."""


@dataclass(frozen=True)
class Line:
    """One run."""

    points: str
    void: bool
    told: str


@dataclass(frozen=True)
class Trace:
    """All runs of one arm. ``cut`` is where the steady steps begin."""

    arm: ArmName
    x: float
    width: float
    cut: float
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Traces:
    """Step times of both arms on one scale. ``above`` is the slowest step that the scale leaves out, else ''."""

    height: float
    top: float
    bottom: float
    ticks: tuple[Mark, ...]
    arms: tuple[Trace, ...]
    above: str


def traces(timed: Timed) -> Traces | None:
    """The step times of every run; None where there are none. Warm-up may run out of the picture: it counts for
    nothing, and a first step of ten times the usual would press all others into one line."""
    runs = [run for run in timed.runs[:RUNS_DRAWN] if run.run.timing is not None and run.run.timing.step_s]
    steady = [second for run in runs for second in run.steady_s]
    if len(steady) < 2:
        return None
    top, bottom = 12.0, 172.0
    fence = quantiles(steady, n=200)[-1] if len(steady) > 200 else max(steady)
    scale = around([min(steady), fence], bottom, top, least=0.05 * median(steady), margin=0.12)
    longest = max(len(run.run.timing.step_s) for run in runs if run.run.timing)
    gap = 34.0
    width = (WIDTH - LEFT - RIGHT - gap) / 2
    arms = []
    for number, arm in enumerate(ARMS):
        own = [run for run in runs if run.arm == arm]
        x = LEFT + number * (width + gap)
        across = Scale(0, max(longest - 1, 1), x, x + width)
        cut = max((run.run.timing.cut for run in own if run.run.timing), default=0)
        arms.append(
            Trace(
                arm=arm,
                x=x,
                width=width,
                cut=across(max(cut - 0.5, 0)),
                lines=tuple(_line(run, across, scale) for run in own),
                ticks=_steps(across),
            )
        )
    slowest = max(second for run in runs if run.run.timing for second in run.run.timing.step_s)
    return Traces(
        height=bottom + 22,
        top=top,
        bottom=bottom,
        ticks=tuple(Mark(scale(tick), milliseconds(tick), "tick") for tick in scale.ticks(4)),
        arms=tuple(arms),
        above="" if scale.holds(slowest) else milliseconds(slowest),
    )


def _line(run: TimedRun, across: Scale, scale: Scale) -> Line:
    seconds = run.run.timing.step_s if run.run.timing else []
    return Line(_points(seconds, across, scale), run.role == "void", f"run {run.number}, {run.arm}, {run.role}")


def _points(values: Sequence[float | None], across: Scale, scale: Scale) -> str:
    stride = -(-len(values) // STEPS_DRAWN) or 1
    return " ".join(
        f"{across(step):.1f},{scale(value):.1f}"
        for step, value in enumerate(values)
        if value is not None and step % stride == 0
    )


def _steps(across: Scale) -> tuple[tuple[float, str], ...]:
    return tuple((across(tick), f"{tick:.0f}") for tick in across.ticks(5) if float(tick).is_integer())


@dataclass(frozen=True)
class Losses:
    """Head's loss less base's, step by step, over the spread of the base runs; ``words`` sums it up."""

    height: float
    top: float
    bottom: float
    zero: float
    ticks: tuple[Mark, ...]
    steps: tuple[tuple[float, str], ...]
    band: str
    lines: tuple[Line, ...]
    middle: str
    words: str


def losses(timed: Timed) -> Losses | None:
    """Every head run against the median of the base runs; None where one of them has no loss."""
    ours, theirs = (_by_step([run.run.loss for run in timed.runs if run.arm == arm and run.run.loss]) for arm in ARMS)
    steps = [step for step in range(min(len(ours), len(theirs))) if ours[step] and theirs[step]]
    if len(steps) < 2:
        return None
    centre = {step: median(ours[step]) for step in steps}
    low, high = ({step: edge(ours[step]) - centre[step] for step in steps} for edge in (min, max))
    moved = {step: median(theirs[step]) - centre[step] for step in steps}
    top, bottom = 12.0, 152.0
    values = [*low.values(), *high.values(), *moved.values(), 0.0]
    scale = around(values, bottom, top, least=1e-9)
    across = Scale(0, max(steps[-1], 1), LEFT, WIDTH - RIGHT)
    stride = -(-len(steps) // STEPS_DRAWN)
    drawn = steps[::stride]

    def path(series: dict[int, float], order: Sequence[int]) -> str:
        return " ".join(f"{across(step):.1f},{scale(series[step]):.1f}" for step in order)

    head_runs = [run for run in timed.runs[:RUNS_DRAWN] if run.arm == "head" and run.run.loss]
    last = steps[-1]
    return Losses(
        height=bottom + 22,
        top=top,
        bottom=bottom,
        zero=scale(0.0),
        ticks=tuple(Mark(scale(tick), _small(tick), "tick") for tick in scale.ticks(4)),
        steps=_steps(across),
        band=f"{path(high, drawn)} {path(low, drawn[::-1])}",
        lines=tuple(_difference(run, centre, across, scale) for run in head_runs),
        middle=path(moved, drawn),
        words=f"at step {last + 1}: base {centre[last]:.4f}, head {centre[last] + moved[last]:.4f}",
    )


def _small(value: float) -> str:
    return f"{value:+.2g}".replace("-", "−", 1) if value else "0"


def _difference(run: TimedRun, centre: dict[int, float], across: Scale, scale: Scale) -> Line:
    found = [
        loss - centre[step] if loss is not None and step in centre else None for step, loss in enumerate(run.run.loss)
    ]
    return Line(_points(found, across, scale), run.role == "void", f"run {run.number}, head, {run.role}")


def _by_step(runs: Sequence[Sequence[float | None]]) -> list[list[float]]:
    """The finite losses of each step over all runs."""
    longest = max(map(len, runs), default=0)
    return [_known(run[step] for run in runs if step < len(run)) for step in range(longest)]


def _known(losses: Iterable[float | None]) -> list[float]:
    return [loss for loss in losses if loss is not None]
