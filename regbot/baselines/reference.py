"""What a check is told of the store: for each timed workload the stored sessions and calibrations of this node class.

All environments of the class are looked up, because which of them a pull request runs in is known only when it has run.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from statistics import median
from typing import NamedTuple

from regbot.baselines.index import TERMS
from regbot.baselines.names import class_folder
from regbot.baselines.query import Asked, Refusal, Rolling, environments, rolling
from regbot.baselines.store import BaselineError, Store
from regbot.records.baseline import Baseline, EnvironmentKey
from regbot.records.calibrated import Calibrated, Rate
from regbot.records.calibration import Calibration, PlaceboSession
from regbot.records.reference import Reference, StoredSession
from regbot.records.run import Clock
from regbot.records.session import TimedPlan
from regbot.stats import calibration as statistics
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import Thresholds
from regbot.stats.screen import SCREEN_RUNS

LEAST_POOL = 8
"""Placebo pairs below which none are drawn again: four blocks are the first look, twice."""
CLOCKS: tuple[Clock, ...] = ("perf_counter", "cuda_events", "log")


class Found(NamedTuple):
    """What may be compared, one entry for each environment and clock; why what is stored may not be, '' where it may or
    nothing is stored; and what of it cannot be used, which is told."""

    references: list[Reference]
    why: str
    faults: list[str]


def references(store: Store, plan: TimedPlan, node_class: str, thresholds: Thresholds, now: datetime) -> Found:
    """What the workload of ``plan`` may be held against on a node class. What is broken in one environment costs the
    others nothing."""
    found: list[Reference] = []
    refusals: list[str] = []
    faults: list[str] = []
    for group in store.folders(class_folder(plan.entry, plan.variant, node_class)):
        try:
            of_group, told = _of_group(store, group, plan, node_class, thresholds, now)
        except BaselineError as error:
            faults.append(str(error))
            continue
        found += of_group
        refusals += told
    if found:
        return Found(found, "", faults)
    if faults or refusals:
        return Found([], (faults + refusals)[0], faults)
    try:
        classes = sorted({node_class for node_class, _, _ in environments(store, plan.entry, plan.variant)})
    except BaselineError as error:
        return Found([], "", [str(error)])
    words = f"sessions of {plan.entry} are stored of {'; '.join(classes)}, and this is {node_class}"
    return Found([], words if classes else "", [])


def _of_group(
    store: Store, group: PurePosixPath, plan: TimedPlan, node_class: str, thresholds: Thresholds, now: datetime
) -> tuple[list[Reference], list[str]]:
    """The references of one environment, and why there is none. Raises BaselineError."""
    found: list[Reference] = []
    refusals: list[str] = []
    calibrations = [store.calibration(path) for path in store.calibrations(group)]
    environment = _environment(store, group, calibrations)
    if environment is None:
        return found, refusals
    for clock in CLOCKS:
        asked = Asked(
            workload=plan.entry,
            variant=plan.variant,
            node_class=node_class,
            environment=environment,
            world_size=plan.world_size,
            steps=plan.steps,
            cut=plan.cut,
            clock=clock,
            dispatcher=plan.dispatcher,
        )
        answer = rolling(store, asked, now)
        own = calibrated([each for each in calibrations if on_terms(each, plan, clock)], thresholds)
        if isinstance(answer, Refusal):
            refusals.append(answer.text)
            answer = Rolling(())
        if answer.sessions or own is not None:
            found.append(_reference(asked, answer, own))
    return found, refusals


def on_terms(calibration: Calibration, plan: TimedPlan, clock: Clock) -> bool:
    """Whether a calibration was timed as ``plan`` is, by the same clock."""
    ours = (plan.world_size, plan.steps, plan.cut, clock, plan.dispatcher)
    return tuple(getattr(calibration, name) for name in TERMS) == ours


def calibrated(calibrations: Iterable[Calibration], thresholds: Thresholds) -> Calibrated | None:
    """What calibrations say together; None where they have too few placebo pairs to say anything."""
    every = sorted(calibrations, key=lambda each: each.measured)
    sessions = [*{session.session: session for each in every for session in each.sessions}.values()]
    placebos = [session for session in sessions if session.injected_pct == 0]
    pairs = [ratio for session in placebos for ratio in session.log_ratios.get("median", [])]
    if len(pairs) < 2:
        return None
    looked = [session for session in placebos if session.covered is not None]
    flags = statistics.Rate.of(sum(each.decision in ("regressed", "improved") for each in looked), len(looked))
    # An injected slowdown is as exact as a sleep is: it counts for what was held, and not against the gate.
    held = statistics.Rate.of(sum(bool(each.covered) for each in looked), len(looked))
    told = [session.covered for session in sessions if session.covered is not None]
    covered = statistics.Rate.of(sum(told), len(told))
    injected = [session for session in sessions if session.injected_pct > 0 and session.covered is not None]
    largest = max((session.injected_pct for session in injected), default=None)
    same = [session for session in injected if session.injected_pct == largest]
    seen = sum(session.decision == "regressed" for session in same)
    sd, low, high = statistics.scatter(pairs)
    return Calibrated(
        measured=every[-1].measured,
        pairs=len(pairs),
        sd_pct=100 * sd,
        sd_low_pct=100 * low,
        sd_high_pct=100 * high,
        false_flags=_rate(flags),
        covered=_rate(covered),
        injected_pct=largest,
        found=_rate(statistics.Rate.of(seen, len(same))) if same else None,
        resampled_false=_resampled(placebos, every[-1].primary_tests, thresholds),
        contradicted=statistics.contradicted(flags, held),
    )


def _reference(asked: Asked, rolling: Rolling, calibrated: Calibrated | None) -> Reference:
    newest = rolling.sessions[-1] if rolling.sessions else None
    first = newest.runs[:SCREEN_RUNS] if newest is not None else []
    dropped = [run.dropped_tokens for run in first if run.dropped_tokens is not None]
    walls = [run.wall_s for run in first if run.wall_s is not None]
    return Reference(
        node_class=asked.node_class,
        environment=asked.environment,
        clock=asked.clock,
        executed=newest.executed if newest is not None else None,
        sessions=[_stored(each) for each in rolling.sessions if len(each.runs) >= SCREEN_RUNS],
        loss=[run.loss for run in first if run.loss],
        dropped_tokens=max(dropped, default=None),
        run_s=median(walls) if walls else None,
        calibrated=calibrated,
        warnings=list(rolling.warnings),
    )


def _stored(baseline: Baseline) -> StoredSession:
    first = baseline.runs[:SCREEN_RUNS]
    return StoredSession(
        session=baseline.session,
        measured=baseline.measured,
        commit=baseline.commit,
        node=baseline.provenance.node,
        log_median=[run.log_median for run in first],
        log_mean=[run.log_mean for run in first],
    )


def _environment(store: Store, group: PurePosixPath, calibrations: Sequence[Calibration]) -> EnvironmentKey | None:
    if paths := store.index.named(group, most=1):
        return store.session(paths[0]).environment
    return calibrations[0].environment if calibrations else None


def _resampled(placebos: Sequence[PlaceboSession], primary_tests: int, thresholds: Thresholds) -> float | None:
    """Share of sessions drawn from the placebo pairs that are flagged; None where there are too few pairs."""
    pools: dict[str, list[float]] = {name: [] for name in SUMMARIES}
    for each in placebos:
        for name, values in each.log_ratios.items():
            pools[name] += values[: len(values) // 2 * 2]  # blocks are drawn whole, so half a one is left out
    if len(pools["median"]) < LEAST_POOL:
        return None
    found = statistics.resampled(pools, 0.0, primary_tests, thresholds)
    return found.decisions["regressed"] + found.decisions["improved"]


def _rate(found: statistics.Rate) -> Rate:
    return Rate(count=found.count, total=found.total, low=found.low, high=found.high)
