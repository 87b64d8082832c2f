"""What a check is told of the store: for each timed workload the stored sessions and calibrations of this node class.

All environments of the class are looked up, because which of them a pull request runs in is known only when it has run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from statistics import median
from typing import NamedTuple

from regbot.baselines.names import class_folder
from regbot.baselines.query import Asked, Refusal, environments, rolling
from regbot.baselines.store import BaselineError, Store
from regbot.records.baseline import Baseline, EnvironmentKey
from regbot.records.calibrated import Calibrated, Rate
from regbot.records.calibration import Calibration, PlaceboSession
from regbot.records.reference import Reference, StoredSession
from regbot.records.run import Clock
from regbot.stats import calibration as statistics
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import Thresholds
from regbot.stats.screen import SCREEN_RUNS

LEAST_POOL = 8
"""Placebo pairs below which none are drawn again: four blocks are the first look, twice."""
CLOCKS: tuple[Clock, ...] = ("perf_counter", "cuda_events", "log")


@dataclass(frozen=True)
class Wanted:
    """A workload that is to be timed, where, and on which terms."""

    workload: str
    variant: str
    node_class: str
    world_size: int
    steps: int
    cut: int
    dispatcher: str
    thresholds: Thresholds


class Found(NamedTuple):
    """What may be compared, one entry for each environment and clock; why what is stored may not be, '' where it may or
    nothing is stored; and what of it cannot be used, which is told."""

    references: list[Reference]
    why: str
    faults: list[str]


def references(store: Store, wanted: Wanted, now: datetime) -> Found:
    """What may be compared on the node class. What is broken in one environment costs the others nothing."""
    found: list[Reference] = []
    refusals: list[str] = []
    faults: list[str] = []
    for group in store.folders(class_folder(wanted.workload, wanted.variant, wanted.node_class)):
        try:
            of_group, told = _of_group(store, group, wanted, now)
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
        classes = sorted({node_class for node_class, _, _ in environments(store, wanted.workload, wanted.variant)})
    except BaselineError as error:
        return Found([], "", [str(error)])
    words = f"sessions of {wanted.workload} are stored of {'; '.join(classes)}, and this is {wanted.node_class}"
    return Found([], words if classes else "", [])


def _of_group(store: Store, group: PurePosixPath, wanted: Wanted, now: datetime) -> tuple[list[Reference], list[str]]:
    """The references of one environment, and why there is none. Raises BaselineError."""
    found, refusals = [], []
    calibrations = [store.calibration(path) for path in store.calibrations(group)]
    key = _environment(store, group, calibrations)
    for clock in CLOCKS if key is not None else ():
        assert key is not None
        asked = Asked(
            workload=wanted.workload,
            variant=wanted.variant,
            node_class=wanted.node_class,
            environment=key,
            world_size=wanted.world_size,
            steps=wanted.steps,
            cut=wanted.cut,
            clock=clock,
            dispatcher=wanted.dispatcher,
        )
        answer = rolling(store, asked, now)
        own = [each for each in calibrations if _on_terms(each, wanted, clock)]
        sessions = () if isinstance(answer, Refusal) else answer.sessions
        if isinstance(answer, Refusal):
            refusals.append(answer.text)
        if sessions or own:
            warnings = [] if isinstance(answer, Refusal) else [*answer.warnings]
            found.append(_reference(wanted, key, clock, sessions, own, warnings))
    return found, refusals


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


def _reference(
    wanted: Wanted,
    environment: EnvironmentKey,
    clock: Clock,
    sessions: Sequence[Baseline],
    calibrations: Sequence[Calibration],
    warnings: list[str],
) -> Reference:
    newest = sessions[-1] if sessions else None
    first = newest.runs[:SCREEN_RUNS] if newest is not None else []
    dropped = [run.dropped_tokens for run in first]
    return Reference(
        node_class=wanted.node_class,
        environment=environment,
        clock=clock,
        executed=newest.executed if newest is not None else None,
        sessions=[_stored(each) for each in sessions if len(each.runs) >= SCREEN_RUNS],
        loss=[run.loss for run in first if run.loss],
        dropped_tokens=max((n for n in dropped if n is not None), default=None),
        run_s=median(walls) if (walls := [run.wall_s for run in first if run.wall_s is not None]) else None,
        calibrated=calibrated(calibrations, wanted.thresholds),
        warnings=warnings,
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


def _on_terms(calibration: Calibration, wanted: Wanted, clock: Clock) -> bool:
    terms = ("world_size", "steps", "cut", "dispatcher")
    return calibration.clock == clock and all(getattr(calibration, name) == getattr(wanted, name) for name in terms)


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
