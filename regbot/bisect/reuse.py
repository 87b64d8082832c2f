"""What the check that saw the slowdown knows already: its runs of good and bad, and the noise of its node."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from regbot.judge.pairs import pair_up, summaries, timed_runs
from regbot.records.bisection import BisectionHeader, Observation
from regbot.records.files import RecordError
from regbot.records.run import Run
from regbot.records.session import Session, TimedPlan, read_session
from regbot.stats.launch import cut_of
from regbot.stats.paired import interval

SESSION = "session.jsonl"
CHECK_FOLDER = Path("regbot-out")
"""Where a check leaves its session if nothing else is said."""

ALPHA = 0.05


@dataclass(frozen=True)
class Reused:
    """Nothing, where there is no check of the same commits."""

    observations: tuple[Observation, ...] = ()
    noise_pct: float | None = None
    """Standard deviation of one run: a pair's over the square root of two."""
    pairs: int = 0
    effect: float | None = None
    """Log-ratio of the pairs."""
    run_s: float | None = None
    warnings: tuple[str, ...] = ()


class Asked(Protocol):
    """Of the options those that tell where to look."""

    @property
    def check(self) -> Path | None: ...
    @property
    def reuse(self) -> bool: ...


def reused(asked: Asked, header: BisectionHeader, node_class: str) -> Reused:
    """What can be used again. Raises RecordError where a check was named that cannot be."""
    if not asked.reuse:
        return Reused()
    place = asked.check if asked.check is not None else CHECK_FOLDER
    file = place / SESSION if place.is_dir() else place
    if asked.check is None and not file.exists():
        return Reused()
    try:
        session = read_session(file)
    except RecordError:
        if asked.check is not None:
            raise
        return Reused()
    if differs := _unlike(session, header, node_class):
        if asked.check is not None:
            raise RecordError(f"{file}: {differs}; leave out --check, or name another one")
        return Reused()
    return _taken(session, header)


def _unlike(session: Session, header: BisectionHeader, node_class: str) -> str:
    if header.axis:
        return "is a check of commits, and versions are walked"
    good, bad = header.points[0], header.points[-1]
    ours, theirs = (good.commit, bad.commit), (session.header.base.commit, session.header.head.commit)
    if ours != theirs:
        return f"is a check of {theirs[0][:12]} and {theirs[1][:12]}, not of {ours[0][:12]} and {ours[1][:12]}"
    entry = header.entries[0]
    plans = [plan for plan in session.header.timed if plan.entry == entry]
    if not plans:
        return f"has not timed {entry}"
    if header.plan is not None and _terms(plans[0]) != _terms(header.plan):
        return f"has timed {entry} on other terms (variant, ranks, dispatcher, steps or warm-up)"
    classes = {run.node.node_class for run in timed_runs(session, entry) if run.node is not None}
    if classes - {node_class}:
        return f"was timed on {'; '.join(sorted(classes))}, and this is {node_class}"
    if session.header.base.overrides or session.header.head.overrides:
        return "compares overrides of the configuration, which no commit brought"
    return ""


def _terms(plan: TimedPlan) -> tuple[object, ...]:
    return plan.variant, plan.world_size, plan.dispatcher, plan.steps, plan.cut


def _taken(session: Session, header: BisectionHeader) -> Reused:
    entry = header.entries[0]
    pairs = pair_up(timed_runs(session, entry)).valid
    if not pairs:
        return Reused()
    keys = {"base": header.points[0].key, "head": header.points[-1].key}
    observations = []
    for number, pair in enumerate(pairs):
        for run in (pair.base, pair.head):
            assert run.timing is not None
            observations.append(
                Observation(
                    point=keys[run.arm.name],
                    purpose="reused",
                    usable=True,
                    values=summaries(run.timing, cut_of(run.timing)),
                    stratum=_stratum(session, run),
                    block=number,
                    wall_s=run.wall_s,
                )
            )
    ratios = [pair.log_ratios[header.summary] for pair in pairs]
    noise, effect = _noise(ratios)
    seconds = [run.wall_s for pair in pairs for run in (pair.base, pair.head)]
    return Reused(tuple(observations), noise, len(pairs), effect, sum(seconds) / len(seconds))


def _noise(ratios: Sequence[float]) -> tuple[float | None, float]:
    if len(ratios) < 4:
        return None, math.fsum(ratios) / len(ratios)
    found = interval(ratios, ALPHA)
    return (100 * math.expm1(found.sd / math.sqrt(2)) if found.sd > 0 else None), found.estimate


def _stratum(session: Session, run: Run) -> str:
    """The session and node that a run is of: earlier sessions on the same trees have levels of their own."""
    return f"check of {run.joined or session.header.created} {run.node.name if run.node is not None else ''}"[:500]
