"""Build the verdict on every timed run of a workload: the role of the run, its step times, and why it was left out.

Step times are taken after the same cut as in the statistical tests: the shared cut of a valid pair, else the run's own.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import median, quantiles

from regbot.judge.pairs import PairSet, describe_fault, is_head_only, is_warm, pair_key
from regbot.records.run import Run
from regbot.records.text.clip import clip_label, clip_message
from regbot.records.verdict import RankComparison, RankTimes, RunRole, RunVerdict
from regbot.stats.launch import SUMMARIES, launch_cut, summarise_timing
from regbot.stats.summary import summarise


def run_verdicts(runs: Sequence[Run], pair_set: PairSet, used: int | None = None) -> list[RunVerdict]:
    """Return the verdict on each of ``runs``, the timed runs of one workload in session order. ``used``: number of
    valid pairs that the decision used, counted from the first one; None for all. Later ones are "unused"."""
    numbered_pairs = {pair.key: (pair_number, pair.cut) for pair_number, pair in enumerate(pair_set.valid, 1)}
    used = len(numbered_pairs) if used is None else used
    last_head_attempt = max((run.attempt for run in runs if is_head_only(run)), default=1)
    verdicts = []
    for run_number, run in enumerate(runs, 1):
        key, reason = pair_key(run), ""
        pair_number, cut = numbered_pairs.get(key, (None, None)) if key is not None else (None, None)
        role: RunRole = "void"
        if pair_number is not None:
            role, reason = ("pair", "") if pair_number <= used else ("unused", "earlier pairs had already decided")
        elif is_warm(run) and run.outcome == "ok":
            role = "warm-up"
        elif reason := describe_fault(run):
            pass
        elif is_head_only(run):
            is_last = run.attempt == last_head_attempt
            role, reason = ("stored", "") if is_last else ("void", "the runs of head were repeated")
        elif key is not None:  # the run itself is sound, but its pair does not count
            role, reason = "unused" if key in pair_set.unstarted else "void", pair_set.reasons[key]
        verdicts.append(run_verdict(run, run_number, role, reason, pair_number, cut))
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
            "ranks": [
                RankTimes(
                    rank=clip_label(name),
                    step_s=math.exp(summarise(steps.step_s[cut:])["median"]),
                    cpu_s=_median(steps.cpu_s[cut:]),
                    wait_s=_median(steps.wait_s[cut:]),
                    peak_bytes=steps.peak_bytes,
                )
                for name, steps in sorted(timing.ranks.items(), key=lambda item: rank_order(item[0]))
            ],
        }
        # The rank with the largest median counts.
        steady_s = [steps.step_s[cut:] for steps in timing.ranks.values() if len(steps.step_s) > cut]
        slowest_s = max(steady_s, key=median, default=timing.step_s[cut:])
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
    roles: tuple[RunRole, ...] = ("pair", "stored")
    medians: dict[str, dict[str, RankTimes]] = {}  # by rank and arm
    for arm in ("base", "head"):
        by_role = [[run for run in runs if run.arm == arm and run.role == role] for role in roles]
        by_rank: dict[str, list[RankTimes]] = {}
        for times in (times for run in by_role[0] or by_role[1] for times in run.ranks):
            by_rank.setdefault(times.rank, []).append(times)
        for name, times_of_runs in by_rank.items():
            medians.setdefault(name, {})[arm] = RankTimes(
                rank=name,
                step_s=_median(times.step_s for times in times_of_runs),
                cpu_s=_median(times.cpu_s for times in times_of_runs),
                wait_s=_median(times.wait_s for times in times_of_runs),
                peak_bytes=max(times.peak_bytes for times in times_of_runs),
            )
    return [
        RankComparison(rank=name, base=medians[name].get("base"), head=medians[name].get("head"))
        for name in sorted(medians, key=rank_order)
    ]


def rank_order(name: str) -> tuple[bool, int, str]:
    """Return the sort key of a rank's name: numeric names by value, then the other names."""
    is_number = name.isascii() and name.isdigit()
    return not is_number, len(name) if is_number else 0, name  # False sorts before True


def _median(seconds: Iterable[float | None]) -> float | None:
    """The median of the known values; None without one."""
    known_s = [value for value in seconds if value is not None]
    return median(known_s) if known_s else None
