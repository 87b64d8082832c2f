"""Reuse of the check that saw the slowdown: its runs of good and bad, and the noise of the node."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regbot.judge.pairs import pair_up
from regbot.records.bisection import BisectionHeader, Observation
from regbot.records.files import RecordError
from regbot.records.run import Run
from regbot.records.session import Session, TimedPlan, read_session
from regbot.records.text.clip import clip_label, short_commit
from regbot.stats.launch import launch_cut, summarise_timing
from regbot.stats.paired import interval

SESSION = "session.jsonl"
CHECK_FOLDER = Path("regbot-out")
"""Default output folder of a check."""

ALPHA = 0.05
"""Alpha of an interval whose bounds are not used. Its mean and standard deviation do not depend on alpha."""

MIN_NOISE_PAIRS = 4
"""With fewer pairs, the standard deviation of the pairs is not used as the noise."""


LEASE_GAP_S = 30 * 60.0
"""A bisection continues the session of a check if it begins at most this many seconds after the last run of the check,
on the same machine. The runs of both then have the same level, which saves a third of the runs.
"""


@dataclass(frozen=True)
class CheckLease:
    """The machine that a check used, and the time of its last run."""

    engine: str
    """Name of the engine."""
    host: str
    """Name of the machine."""
    end_unix_s: float
    """End of the last run of the check, in seconds since 1970."""
    stratum: str
    """Stratum of the runs of the check."""

    def continued_stratum(self, engine: str, host: str, now_unix_s: float) -> str:
        """Return the stratum of the check if a bisection on this engine and host continues its session; else ''."""
        is_same_machine = (self.engine, self.host) == (engine, host)
        return self.stratum if is_same_machine and 0 <= now_unix_s - self.end_unix_s <= LEASE_GAP_S else ""


@dataclass(frozen=True)
class ReusedRuns:
    """Runs and noise from a check of the same commits. All fields have their defaults if there is no such check."""

    observations: tuple[Observation, ...] = ()
    noise_pct: float | None = None
    """Standard deviation of one run, in percent: the standard deviation of a pair divided by the square root of two.
    None if the check has too few pairs.
    """
    pairs: int = 0
    """Number of valid pairs of the check."""
    effect: float | None = None
    """Slowdown of bad against good that the check estimates, as a log-ratio; None if there is no check."""
    run_s: float | None = None
    """Mean seconds of a run of the check; None if no run is reused."""
    warnings: tuple[str, ...] = ()
    lease: CheckLease | None = None
    """Lease of the check: the node on which a bisection may continue its session. None if there is no such node, as
    after a job of a scheduler.
    """


def load_reused_runs(check: Path | None, header: BisectionHeader, node_class: str) -> ReusedRuns:
    """Load the runs of the check that --check names, or of the check in ``regbot-out``.

    ``node_class`` is the class of the node on which the bisection will run. If ``check`` is None and the check in
    ``regbot-out`` does not fit, nothing is reused. Raises RecordError if ``check`` names a check that cannot be used.
    """
    path = check or CHECK_FOLDER
    file = path / SESSION if path.is_dir() else path
    try:
        session = read_session(file)
        if mismatch := _find_mismatch(session, header, node_class):
            raise RecordError(f"{file}: {mismatch}", "leave out --check, or name another check")
    except RecordError:
        if check is not None:
            raise
        return ReusedRuns()
    return _reuse_session(session, header)


def _find_mismatch(session: Session, header: BisectionHeader, node_class: str) -> str:
    """Return why the runs of the check ``session`` cannot be reused; '' if they can.

    The subject of the returned words is the session file, as in "has not timed mixtral-8x7b@1/ep".
    ``node_class`` is the class of the node on which the bisection will run.
    """
    if header.axis:
        return "is a check of commits, but this bisection searches versions"
    good, bad = header.points[0], header.points[-1]
    searched_commits = (good.commit, bad.commit)
    checked_commits = (session.header.base.commit, session.header.head.commit)
    if searched_commits != checked_commits:
        checked = " and ".join(map(short_commit, checked_commits))
        searched = " and ".join(map(short_commit, searched_commits))
        return f"is a check of {checked}, not of {searched}"
    entry = header.entries[0]
    plans = [plan for plan in session.header.timed if plan.entry == entry]
    if not plans:
        return f"has not timed {entry}"
    if header.plan is not None and _plan_settings(plans[0]) != _plan_settings(header.plan):
        return f"has timed {entry} with another variant, number of ranks, dispatcher, number of steps or warm-up"
    node_classes = {run.node.node_class for run in session.timed_runs(entry) if run.node is not None}
    if node_classes - {node_class}:
        return f"was timed on {'; '.join(sorted(node_classes))}, and this is {node_class}"
    if session.header.base.overrides or session.header.head.overrides:
        return "compares overrides of the configuration, which come from no commit"
    return ""


def _plan_settings(plan: TimedPlan) -> tuple[object, ...]:
    """Return the settings of timed runs that must be equal, so that their step times can be compared.

    ``cut`` is the number of warm-up steps.
    """
    return plan.variant, plan.world_size, plan.dispatcher, plan.steps, plan.cut


def _reuse_session(session: Session, header: BisectionHeader) -> ReusedRuns:
    """Return the runs of all valid pairs of a check as observations of good and bad, with noise and effect."""
    entry = header.entries[0]
    pairs = pair_up(session.timed_runs(entry)).valid
    if not pairs:
        return ReusedRuns()
    key_by_arm = {"base": header.points[0].key, "head": header.points[-1].key}
    observations = []
    for number, pair in enumerate(pairs):
        for run in (pair.base, pair.head):
            assert run.timing is not None
            observations.append(
                Observation(
                    point=key_by_arm[run.arm.name],
                    purpose="reused",
                    usable=True,
                    # ``launch_cut`` is the number of warm-up steps to leave out.
                    values=summarise_timing(run.timing, launch_cut(run.timing)),
                    stratum=_run_stratum(session, run),
                    block=number,  # the number of the pair, from 0
                    wall_s=run.wall_s,
                )
            )
    noise_pct, effect = _estimate_noise([pair.log_ratios[header.summary] for pair in pairs])
    runs = [run for pair in pairs for run in (pair.base, pair.head)]
    last_run = max(runs, key=lambda run: run.started_unix_s or 0.0)
    return ReusedRuns(
        observations=tuple(observations),
        noise_pct=noise_pct,
        pairs=len(pairs),
        effect=effect,
        run_s=sum(run.wall_s for run in runs) / len(runs),
        lease=_find_lease(session, last_run),
    )


def _find_lease(session: Session, last_run: Run) -> CheckLease | None:
    """Return the node of the check, on which a bisection may continue, with the end of the check's last run.

    Returns None if a scheduler allocated the node, because its job ends with the check. Also returns None if the last
    run comes from an earlier session, or if its node is unknown.
    """
    allocation, start = last_run.allocation, last_run.started_unix_s
    if allocation is None or start is None or allocation.job or last_run.joined:
        return None
    return CheckLease(allocation.engine, allocation.hosts[0], start + last_run.wall_s, _run_stratum(session, last_run))


def _estimate_noise(log_ratios: Sequence[float]) -> tuple[float | None, float]:
    """Return the noise of one run in percent, and the mean log-ratio. The noise is None if it cannot be estimated."""
    if len(log_ratios) < MIN_NOISE_PAIRS:
        return None, math.fsum(log_ratios) / len(log_ratios)
    mean_interval = interval(log_ratios, ALPHA)
    # A log-ratio is the difference of two runs, so its standard deviation is sqrt(2) times that of one run.
    run_sd = mean_interval.sd / math.sqrt(2)
    return (100 * math.expm1(run_sd) if run_sd > 0 else None), mean_interval.estimate


def _run_stratum(session: Session, run: Run) -> str:
    """Return the stratum of a run: its session and node.

    ``run.joined`` is set if the run comes from an earlier session. That session forms a stratum of its own.
    """
    node_name = run.node.name if run.node is not None else ""
    return clip_label(f"check of {run.joined or session.header.created} {node_name}")
