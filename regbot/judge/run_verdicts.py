"""Build the verdict on every timed run of a workload: the role of the run, its step times, and why it was left out.

Step times are taken after the same cut as in the statistical tests: the shared cut of a valid pair, else the run's own.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import median, quantiles

from regbot.judge.pairs import PairSet, describe_fault, is_head_only, is_warm, pair_key, summarise_timing
from regbot.records.run import RankSteps, Run, Timing
from regbot.records.text.clip import clip_label, clip_message
from regbot.records.verdict import RankComparison, RankTimes, RunRole, RunVerdict
from regbot.stats.launch import SUMMARIES, launch_cut
from regbot.stats.summary import summarise


def run_verdicts(runs: Sequence[Run], pair_set: PairSet, used: int | None = None) -> list[RunVerdict]:
    """Return the verdict on each of ``runs``, the timed runs of one workload in session order. ``used``: number of
    valid pairs that the decision used, counted from the first one; None for all. Later ones are "unused"."""
    numbered_pairs = {pair.key: (pair_number, pair) for pair_number, pair in enumerate(pair_set.valid, 1)}
    used = len(numbered_pairs) if used is None else used
    last_head_attempt = max((run.attempt for run in runs if is_head_only(run)), default=1)
    verdicts = []
    for run_number, run in enumerate(runs, 1):
        key = pair_key(run)
        if key in numbered_pairs:
            pair_number, pair = numbered_pairs[key]
            is_used = pair_number <= used
            role: RunRole = "pair" if is_used else "unused"
            reason = "" if is_used else "earlier pairs had already decided"
            verdicts.append(run_verdict(run, run_number, role, reason, pair_number, pair.cut))
        else:
            role, reason = _assign_unpaired_role(run, last_head_attempt)
            if key is not None and not reason:  # the run itself is sound, but its pair does not count
                reason = pair_set.reasons[key]
                role = "unused" if key in pair_set.unstarted else "void"
            verdicts.append(run_verdict(run, run_number, role, reason))
    return verdicts


def run_verdict(
    run: Run, number: int, role: RunRole, reason: str = "", pair: int | None = None, cut: int | None = None
) -> RunVerdict:
    """Return the verdict on one run, with its step times after ``cut``, by default the run's own. ``number`` and
    ``pair`` count from 1. ``reason`` says why the run does not count; '' if it counts."""
    fields: dict[str, object] = {}
    timing = run.timing
    if timing is not None and timing.steady_s:
        cut = min(launch_cut(timing), len(timing.step_s) - 1) if cut is None else cut
        log_step_s = summarise_timing(timing, cut)
        fields = {
            "cut": cut,
            **{f"{name}_s": math.exp(log_step_s[name]) for name in SUMMARIES},  # median_s and mean_s
            "ranks": [_rank_times(name, timing.ranks[name], cut) for name in sorted(timing.ranks, key=rank_order)],
        }
        slowest_s = _slowest_rank_s(timing, cut)
        if len(slowest_s) > 1:  # "exclusive" quartiles can be outside of the values
            low, _, high = quantiles(slowest_s, n=4, method="inclusive")
            fields |= {"low_quartile_s": low, "high_quartile_s": high}
    return RunVerdict(
        number=number,
        arm=run.arm.name,
        role=role,
        pair=pair,
        reason=clip_message(reason),
        peak_bytes=timing.memory_peak_bytes if timing is not None else 0,
        wall_s=run.wall_s,
        **fields,  # type: ignore[arg-type]
    )


def step_s(runs: Sequence[RunVerdict], arm: str, role: RunRole = "pair") -> float | None:
    """Return the step time of ``arm`` in seconds: the median of the median step times of its runs with ``role``. None
    if no such run has times."""
    medians = [run.median_s for run in runs if run.arm == arm and run.role == role and run.median_s is not None]
    return math.exp(median(map(math.log, medians))) if medians else None


def compare_ranks(runs: Sequence[RunVerdict]) -> list[RankComparison]:
    """Return the times of each rank in both arms, as medians over the runs that the decision used: those with the role
    ``pair``, else ``stored``."""
    base, head = (_rank_medians(runs, arm) for arm in ("base", "head"))
    return [
        RankComparison(rank=name, base=base.get(name), head=head.get(name))
        for name in sorted({*base, *head}, key=rank_order)
    ]


def _rank_medians(runs: Sequence[RunVerdict], arm: str) -> dict[str, RankTimes]:
    by_role = {role: [run for run in runs if run.arm == arm and run.role == role] for role in ("pair", "stored")}
    by_rank: dict[str, list[RankTimes]] = {}
    for run in by_role["pair"] or by_role["stored"]:
        for times in run.ranks:
            by_rank.setdefault(times.rank, []).append(times)
    return {
        name: RankTimes(
            rank=name,
            step_s=_median_of_known(times.step_s for times in times_of_runs),
            cpu_s=_median_of_known(times.cpu_s for times in times_of_runs),
            wait_s=_median_of_known(times.wait_s for times in times_of_runs),
            peak_bytes=max(times.peak_bytes for times in times_of_runs),
        )
        for name, times_of_runs in by_rank.items()
    }


def rank_order(name: str) -> tuple[bool, int, str]:
    """Return the sort key of a rank's name: numeric names by value, then the other names."""
    is_number = name.isascii() and name.isdigit() and len(name) < 10
    value = int(name) if is_number else 0
    return not is_number, value, name  # False sorts before True


def _assign_unpaired_role(run: Run, last_attempt: int) -> tuple[RunRole, str]:
    """Return the role of a run that is in no valid pair, and the reason if the run itself is void; '' for a sound run
    of a void pair. Runs of head alone are "stored", but for earlier attempts than ``last_attempt``."""
    if is_warm(run) and run.outcome == "ok":
        return "warm-up", ""
    if reason := describe_fault(run):
        return "void", reason
    if is_head_only(run):
        return ("stored", "") if run.attempt == last_attempt else ("void", "the runs of head were repeated")
    return "void", ""


def _rank_times(name: str, steps: RankSteps, cut: int) -> RankTimes:
    return RankTimes(
        rank=clip_label(name),
        step_s=math.exp(summarise(steps.step_s[cut:])["median"]),
        cpu_s=_median_or_none(steps.cpu_s[cut:]),
        wait_s=_median_or_none(steps.wait_s[cut:]),
        peak_bytes=steps.peak_bytes,
    )


def _slowest_rank_s(timing: Timing, cut: int) -> Sequence[float]:
    """The rank with the largest median counts."""
    steady_s = [steps.step_s[cut:] for steps in timing.ranks.values() if len(steps.step_s) > cut]
    return max(steady_s, key=median, default=timing.step_s[cut:])


def _median_of_known(seconds: Iterable[float | None]) -> float | None:
    return _median_or_none([value for value in seconds if value is not None])


def _median_or_none(seconds: Sequence[float]) -> float | None:
    return median(seconds) if seconds else None
