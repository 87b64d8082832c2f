"""Loads references for a check: the stored sessions and calibrations of each timed workload on this node class.

References of all environments are loaded, because the environment of the check is known only after its first run. A
*placebo* is a calibration session that compares a commit with itself. In an *injected* session, head is slowed down by
a known share.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import product
from statistics import median
from typing import NamedTuple

from regbot.baselines.arm_luck import estimate_stored_luck
from regbot.baselines.names import class_folder
from regbot.baselines.query import RollingReference, planned_terms, read_workload, select_rolling_reference, terms_of
from regbot.baselines.store import BaselineError, Store
from regbot.records.baseline import Baseline, EnvironmentKey
from regbot.records.calibration import Calibration
from regbot.records.calibration_summary import CalibrationSummary, PairNoise, Rate
from regbot.records.reference import Reference, StoredSession
from regbot.records.run import Clock
from regbot.records.session import TimedPlan
from regbot.stats import calibration as statistics
from regbot.stats.correlation import block_correlation, lag_correlation
from regbot.stats.launch import SUMMARIES
from regbot.stats.prediction import SESSION_RUNS

CLOCKS: tuple[Clock, ...] = ("perf_counter", "cuda_events", "log")
"""All clocks that time steps. ``log`` stands for the step times in the training program's own log."""


class ReferenceLookup(NamedTuple):
    references: list[Reference]
    reason: str
    """Why the stored sessions are not comparable; '' if some are comparable, or if nothing is stored."""
    faults: list[str]


def load_references(store: Store, plan: TimedPlan, node_class: str, now: datetime) -> ReferenceLookup:
    """Load the references for the workload of ``plan`` on a node class.

    A broken file of this class, or a session that was measured after ``now``, is a fault, and there are no references.
    """
    folder = class_folder(plan.entry, plan.variant, node_class)
    try:
        sessions = [session for session in store.read_sessions(folder).values() if session.node_class == node_class]
        calibrations = [store.calibration(path) for path in store.calibrations(folder)]
        references, refusals = _make_references(sessions, calibrations, plan, node_class, now)
        if references or refusals:
            return ReferenceLookup(references, reason="" if references else refusals[0], faults=[])
        stored_classes = sorted({session.node_class for session in read_workload(store, plan.entry, plan.variant)})
    except BaselineError as error:
        return ReferenceLookup([], reason=str(error), faults=[str(error)])
    if not stored_classes:
        return ReferenceLookup([], reason="", faults=[])
    reason = f"sessions of {plan.entry} are stored for {'; '.join(stored_classes)}, and this is {node_class}"
    return ReferenceLookup([], reason, faults=[])


def _make_references(
    sessions: Sequence[Baseline], calibrations: Sequence[Calibration], plan: TimedPlan, node_class: str, now: datetime
) -> tuple[list[Reference], list[str]]:
    """Return the references of one node class, and why stored sessions cannot be compared.

    There is at most one reference per environment and clock. If its sessions cannot be compared, it has a reason in the
    second list. Raises BaselineError for a session that was measured after ``now``.
    """
    references: list[Reference] = []
    refusals: list[str] = []
    of_class = [calibration for calibration in calibrations if calibration.node_class == node_class]
    stored_environments = [session.environment for session in sessions]
    stored_environments += [calibration.environment for calibration in of_class]
    environments = {environment.model_dump_json(): environment for environment in stored_environments}
    for environment, clock in product(environments.values(), CLOCKS):
        rolling_reference = select_rolling_reference(sessions, plan, environment, clock, now)
        comparable_calibrations = [
            calibration
            for calibration in of_class
            if calibration.environment == environment and terms_of(calibration) == planned_terms(plan, clock)
        ]
        summary = summarise_calibrations(comparable_calibrations)
        if rolling_reference.refusal:
            refusals.append(rolling_reference.refusal)
        if rolling_reference.sessions or summary is not None:
            noise = _pool_pair_noise(comparable_calibrations, rolling_reference.sessions)
            references.append(_make_reference(rolling_reference, node_class, environment, clock, summary, noise))
    return references, refusals


def summarise_calibrations(calibrations: Iterable[Calibration]) -> CalibrationSummary | None:
    """Summarise calibrations. Return None if they have fewer than two placebo pairs together.

    Only sessions that reached a look have a decision of the gate, so only these count for its error rates. ``covered``
    says whether the intervals of the last look contain the true value. It is None for a session without a look.
    ``contradicted`` says why the gate must not decide on this node class; '' if it may.
    """
    oldest_first = sorted(calibrations, key=lambda calibration: calibration.measured)
    # Two files can have the same session. It counts once, as the newer file has it.
    session_by_identity = {session.session: session for calibration in oldest_first for session in calibration.sessions}
    sessions = list(session_by_identity.values())
    placebos = [session for session in sessions if session.injected_pct == 0]
    ratios_by_session = [session.log_ratios.get("median", []) for session in placebos]
    log_ratios = [log_ratio for session_ratios in ratios_by_session for log_ratio in session_ratios]
    if len(log_ratios) < 2:
        return None
    newest = oldest_first[-1]
    # The correlations of neighbouring pairs, and of the two pairs of a block.
    lag, within_block = lag_correlation(ratios_by_session), block_correlation(ratios_by_session)
    allocations = {
        session.session: (calibration.measured[: len("2026-01-01")], calibration.provenance.node)
        for calibration in oldest_first
        for session in calibration.sessions
    }
    luck = estimate_stored_luck(placebos, allocations, lag)
    judged_sessions = [session for session in sessions if session.covered is not None]
    judged_placebos = [session for session in judged_sessions if session.injected_pct == 0]
    false_flag_rate = _rate_of(session.decision in ("regressed", "improved") for session in judged_placebos)
    # An injected slowdown is made by a sleep, which is not exact. Therefore only placebo sessions decide whether the
    # coverage contradicts the gate. The coverage in the summary also counts sessions with an injected slowdown.
    placebo_coverage = _rate_of(bool(session.covered) for session in judged_placebos)
    coverage = _rate_of(bool(session.covered) for session in judged_sessions)
    injected_pcts = (session.injected_pct for session in judged_sessions if session.injected_pct > 0)
    largest_injected_pct = max(injected_pcts, default=None)
    with_largest_slowdown = [session for session in judged_sessions if session.injected_pct == largest_injected_pct]
    detection_rate = _rate_of(session.decision == "regressed" for session in with_largest_slowdown)
    sd, sd_low, sd_high = statistics.estimate_pair_sd(log_ratios)
    return CalibrationSummary(
        measured=newest.measured,
        pairs=len(log_ratios),
        sd_pct=100 * sd,
        sd_low_pct=100 * sd_low,
        sd_high_pct=100 * sd_high,
        false_flags=false_flag_rate,
        covered=coverage,
        injected_pct=largest_injected_pct,
        detected=detection_rate if with_largest_slowdown else None,
        lag_correlation=lag,
        block_correlation=within_block,
        arm_luck=luck,
        contradicted=statistics.contradiction(
            false_flags=false_flag_rate,
            covered=placebo_coverage,
            correlations={"neighbouring pairs": lag, "the two pairs of a block": within_block},
            luck=luck,
        ),
    )


def _rate_of(outcomes: Iterable[bool]) -> Rate:
    outcome_list = list(outcomes)
    return statistics.estimate_rate(sum(outcome_list), len(outcome_list))


def _pool_pair_noise(calibrations: Iterable[Calibration], nights: Iterable[Baseline]) -> PairNoise | None:
    """Return the noise of a pair from placebo pairs and from nightly pairs against the anchor; None if too few exist.

    ``nights`` are the stored sessions of main. Those that measured the anchor too have pairs (``against``).

    All placebo pairs have the true effect 0, so they are one sample, which also shows what differs from session to
    session. The effect of a nightly pair is constant only within its night, so each night is a sample of its own, which
    shows only the noise within the night. Two estimates are made: from the placebo pairs, and from all pairs. To be on
    the safe side, the result has the larger standard deviation and the fewer degrees of freedom of the two.
    """
    placebo_by_identity = {
        session.session: session
        for calibration in calibrations
        for session in calibration.sessions
        if session.injected_pct == 0
    }
    placebo_sample: dict[str, list[float]] = {name: [] for name in SUMMARIES}
    for placebo in placebo_by_identity.values():
        for name in SUMMARIES:
            placebo_sample[name] += placebo.log_ratios.get(name, [])
    night_samples = [night.against.log_ratios for night in nights if night.against is not None]
    samples = [sample for sample in (placebo_sample, *night_samples) if _has_equal_counts(sample)]
    pooled = (statistics.pool_noise([placebo_sample]), statistics.pool_noise(samples))
    estimates = [noise for noise in pooled if noise is not None]
    if not estimates:
        return None
    return PairNoise(
        df=min(noise.df for noise in estimates),
        median_sd=max(noise.median_sd for noise in estimates),
        mean_sd=max(noise.mean_sd for noise in estimates),
    )


def _has_equal_counts(log_ratios: Mapping[str, Sequence[float]]) -> bool:
    return len({len(log_ratios.get(name, ())) for name in SUMMARIES}) == 1


def _make_reference(
    rolling_reference: RollingReference,
    node_class: str,
    environment: EnvironmentKey,
    clock: Clock,
    summary: CalibrationSummary | None,
    noise: PairNoise | None,
) -> Reference:
    """Return the record that a check uses. Executed dispatcher, losses, dropped tokens and duration are those of the
    newest stored session; they are None or empty if only calibrations are stored.

    A check compares the first ``SESSION_RUNS`` runs of a session. Sessions with fewer runs are left out.
    """
    newest = rolling_reference.sessions[-1] if rolling_reference.sessions else None  # sessions are oldest first
    first_runs = newest.runs[:SESSION_RUNS] if newest is not None else []
    dropped_tokens = [run.dropped_tokens for run in first_runs if run.dropped_tokens is not None]
    run_durations_s = [run.wall_s for run in first_runs if run.wall_s is not None]
    return Reference(
        node_class=node_class,
        environment=environment,
        clock=clock,
        executed=newest.executed if newest is not None else None,
        sessions=[
            StoredSession(
                session=session.session,
                measured=session.measured,
                commit=session.commit,
                node=session.provenance.node,
                log_median=[run.log_median for run in session.runs[:SESSION_RUNS]],
                log_mean=[run.log_mean for run in session.runs[:SESSION_RUNS]],
            )
            for session in rolling_reference.sessions
            if len(session.runs) >= SESSION_RUNS
        ],
        loss=[run.loss for run in first_runs if run.loss],
        dropped_tokens=max(dropped_tokens, default=None),
        run_s=median(run_durations_s) if run_durations_s else None,
        calibrated=summary,
        noise=noise,
        warnings=rolling_reference.warnings,
    )
