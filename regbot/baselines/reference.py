"""Loads references for a check: the stored sessions and calibrations of each timed workload on this node class.

References of all environments of the class are loaded, because the environment is known only after the run.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from statistics import median
from typing import NamedTuple

from regbot.baselines.arm_luck import estimate_stored_luck, make_arm_luck
from regbot.baselines.index import TERMS
from regbot.baselines.names import class_folder
from regbot.baselines.query import (
    ReferenceQuery,
    ReferenceRefusal,
    RollingReference,
    list_environments,
    load_rolling_reference,
)
from regbot.baselines.store import BaselineError, Store
from regbot.records.baseline import Baseline, EnvironmentKey
from regbot.records.calibration import Calibration, CalibrationSession
from regbot.records.calibration_summary import CalibrationSummary, Correlation, PairNoise, Rate
from regbot.records.reference import Reference, StoredSession
from regbot.records.run import Clock
from regbot.records.session import TimedPlan
from regbot.stats import calibration as statistics
from regbot.stats.correlation import CorrelationEstimate, block_correlation, lag_correlation
from regbot.stats.launch import SUMMARIES
from regbot.stats.look0 import pool_noise
from regbot.stats.paired import Thresholds
from regbot.stats.prediction import SESSION_RUNS

MIN_POOL_PAIRS = 8
"""Minimum number of placebo pairs for resampling. Eight pairs are four blocks, twice as many as the first look has."""
CLOCKS: tuple[Clock, ...] = ("perf_counter", "cuda_events", "log")


class ReferenceLookup(NamedTuple):
    """Stored references for one workload.

    ``references`` has one entry per environment and clock. ``reason`` says why the stored sessions are not comparable;
    it is '' if some sessions are comparable, or if nothing is stored. ``faults`` are error messages about unusable
    files.
    """

    references: list[Reference]
    reason: str
    faults: list[str]


def load_references(
    store: Store, plan: TimedPlan, node_class: str, thresholds: Thresholds, now: datetime
) -> ReferenceLookup:
    """Load the references for the workload of ``plan`` on a node class.

    If the files of one environment are broken, the other environments are still loaded.
    """
    references: list[Reference] = []
    refusals: list[str] = []
    faults: list[str] = []
    for group in store.folders(class_folder(plan.entry, plan.variant, node_class)):
        try:
            group_references, group_refusals = _load_group_references(store, group, plan, node_class, thresholds, now)
        except BaselineError as error:
            faults.append(str(error))
            continue
        references += group_references
        refusals += group_refusals
    if references:
        return ReferenceLookup(references, "", faults)
    if faults or refusals:
        return ReferenceLookup([], (faults + refusals)[0], faults)
    try:
        stored_classes = sorted({node_class for node_class, _, _ in list_environments(store, plan.entry, plan.variant)})
    except BaselineError as error:
        return ReferenceLookup([], "", [str(error)])
    reason = f"sessions of {plan.entry} are stored for {'; '.join(stored_classes)}, and this is {node_class}"
    return ReferenceLookup([], reason if stored_classes else "", [])


def _load_group_references(
    store: Store, group: PurePosixPath, plan: TimedPlan, node_class: str, thresholds: Thresholds, now: datetime
) -> tuple[list[Reference], list[str]]:
    """Return the references of one environment, one per clock, and why the sessions of a clock cannot be compared.

    Raises BaselineError.
    """
    references: list[Reference] = []
    refusals: list[str] = []
    calibrations = [store.calibration(path) for path in store.calibrations(group)]
    environment = _find_group_environment(store, group, calibrations)
    if environment is None:
        return references, refusals
    for clock in CLOCKS:
        query = ReferenceQuery(
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
        reference = load_rolling_reference(store, query, now)
        same_terms = [candidate for candidate in calibrations if has_same_terms(candidate, plan, clock)]
        calibration = summarise_calibrations(same_terms, thresholds)
        if isinstance(reference, ReferenceRefusal):
            refusals.append(reference.text)
            reference = RollingReference(())
        if reference.sessions or calibration is not None:
            noise = _pool_pair_noise(same_terms, reference.sessions)
            references.append(_make_reference(query, reference, calibration, noise))
    return references, refusals


def has_same_terms(calibration: Calibration, plan: TimedPlan, clock: Clock) -> bool:
    """Return whether a calibration was measured on the terms of ``plan`` and with ``clock``."""
    plan_terms = (plan.world_size, plan.steps, plan.cut, clock, plan.dispatcher)
    return tuple(getattr(calibration, name) for name in TERMS) == plan_terms


def summarise_calibrations(calibrations: Iterable[Calibration], thresholds: Thresholds) -> CalibrationSummary | None:
    """Summarise calibrations. Return None if they have fewer than two placebo pairs together."""
    ordered = sorted(calibrations, key=lambda calibration: calibration.measured)
    sessions = [*{session.session: session for calibration in ordered for session in calibration.sessions}.values()]
    placebos = [session for session in sessions if session.injected_pct == 0]
    ratios_by_session = [session.log_ratios.get("median", []) for session in placebos]
    pairs = [ratio for ratios in ratios_by_session for ratio in ratios]
    if len(pairs) < 2:
        return None
    lag, block = lag_correlation(ratios_by_session), block_correlation(ratios_by_session)
    luck = estimate_stored_luck(placebos, lag)
    judged = [session for session in placebos if session.covered is not None]
    flag_rate = statistics.RateEstimate.from_counts(
        sum(session.decision in ("regressed", "improved") for session in judged), len(judged)
    )
    # An injected slowdown is made by a sleep, which is not exact. Therefore only placebo sessions decide whether the
    # coverage contradicts the gate. The coverage in the summary also counts sessions with an injected slowdown.
    coverage_rate = statistics.RateEstimate.from_counts(sum(bool(session.covered) for session in judged), len(judged))
    outcomes = [session.covered for session in sessions if session.covered is not None]
    covered = statistics.RateEstimate.from_counts(sum(outcomes), len(outcomes))
    injected = [session for session in sessions if session.injected_pct > 0 and session.covered is not None]
    largest = max((session.injected_pct for session in injected), default=None)
    strongest = [session for session in injected if session.injected_pct == largest]
    detected = sum(session.decision == "regressed" for session in strongest)
    sd, low, high = statistics.estimate_pair_sd(pairs)
    return CalibrationSummary(
        measured=ordered[-1].measured,
        pairs=len(pairs),
        sd_pct=100 * sd,
        sd_low_pct=100 * low,
        sd_high_pct=100 * high,
        false_flags=_convert_rate(flag_rate),
        covered=_convert_rate(covered),
        injected_pct=largest,
        detected=_convert_rate(statistics.RateEstimate.from_counts(detected, len(strongest))) if strongest else None,
        resampled_false=_resampled_false_flags(placebos, ordered[-1].primary_tests, thresholds),
        lag_correlation=_convert_correlation(lag),
        block_correlation=_convert_correlation(block),
        arm_luck=make_arm_luck(luck),
        contradicted=statistics.contradiction(
            flag_rate, coverage_rate, {"neighbouring pairs": lag, "the two pairs of a block": block}, luck
        ),
    )


def _pool_pair_noise(calibrations: Iterable[Calibration], nights: Iterable[Baseline]) -> PairNoise | None:
    """Return the noise of a pair from placebo pairs and from nightly pairs against the anchor; None if too few exist.

    All placebo pairs have the true effect 0, so they also show what differs from session to session. The effect of a
    nightly pair is constant only within its night, so nightly pairs show only the noise within a night. Two estimates
    are made, from the placebo pairs and from all pairs. The result has the larger standard deviation and the fewer
    degrees of freedom of the two.
    """
    placebos = {
        session.session: session.log_ratios
        for calibration in calibrations
        for session in calibration.sessions
        if session.injected_pct == 0
    }
    pooled = {name: [ratio for ratios in placebos.values() for ratio in ratios.get(name, ())] for name in SUMMARIES}
    groups = [pooled, *(night.against.log_ratios for night in nights if night.against is not None)]
    groups = [group for group in groups if len({len(group.get(name, ())) for name in SUMMARIES}) == 1]
    estimates = [noise for noise in (pool_noise([pooled]), pool_noise(groups)) if noise is not None]
    if not estimates:
        return None
    return PairNoise(
        df=min(noise.df for noise in estimates),
        median_sd=max(noise.median_sd for noise in estimates),
        mean_sd=max(noise.mean_sd for noise in estimates),
    )


def _make_reference(
    query: ReferenceQuery,
    rolling_reference: RollingReference,
    calibration_summary: CalibrationSummary | None,
    noise: PairNoise | None,
) -> Reference:
    newest = rolling_reference.sessions[-1] if rolling_reference.sessions else None
    first_runs = newest.runs[:SESSION_RUNS] if newest is not None else []
    dropped_tokens = [run.dropped_tokens for run in first_runs if run.dropped_tokens is not None]
    wall_times = [run.wall_s for run in first_runs if run.wall_s is not None]
    return Reference(
        node_class=query.node_class,
        environment=query.environment,
        clock=query.clock,
        executed=newest.executed if newest is not None else None,
        sessions=[
            _make_stored_session(session) for session in rolling_reference.sessions if len(session.runs) >= SESSION_RUNS
        ],
        loss=[run.loss for run in first_runs if run.loss],
        dropped_tokens=max(dropped_tokens, default=None),
        run_s=median(wall_times) if wall_times else None,
        calibrated=calibration_summary,
        noise=noise,
        warnings=list(rolling_reference.warnings),
    )


def _make_stored_session(baseline: Baseline) -> StoredSession:
    first_runs = baseline.runs[:SESSION_RUNS]
    return StoredSession(
        session=baseline.session,
        measured=baseline.measured,
        commit=baseline.commit,
        node=baseline.provenance.node,
        log_median=[run.log_median for run in first_runs],
        log_mean=[run.log_mean for run in first_runs],
    )


def _find_group_environment(
    store: Store, group: PurePosixPath, calibrations: Sequence[Calibration]
) -> EnvironmentKey | None:
    if paths := store.index.find_by_name(group, limit=1):
        return store.session(paths[0]).environment
    return calibrations[0].environment if calibrations else None


def _resampled_false_flags(
    placebos: Sequence[CalibrationSession], primary_tests: int, thresholds: Thresholds
) -> float | None:
    """Return the share of resampled placebo sessions that are flagged; None if there are too few pairs."""
    pools: dict[str, list[float]] = {name: [] for name in SUMMARIES}
    for placebo in placebos:
        for name, values in placebo.log_ratios.items():
            pools[name] += values[: len(values) // 2 * 2]  # blocks are drawn whole, so leave out an incomplete block
    if len(pools["median"]) < MIN_POOL_PAIRS:
        return None
    simulation = statistics.resample_sessions(pools, 0.0, primary_tests, thresholds)
    return simulation.decisions["regressed"] + simulation.decisions["improved"]


def _convert_correlation(correlation: CorrelationEstimate | None) -> Correlation | None:
    if correlation is None:
        return None
    return Correlation(value=correlation.value, low=correlation.low, high=correlation.high, count=correlation.count)


def _convert_rate(rate: statistics.RateEstimate) -> Rate:
    return Rate(count=rate.count, total=rate.total, low=rate.low, high=rate.high)
