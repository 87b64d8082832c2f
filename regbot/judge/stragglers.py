"""Find stragglers, which are ranks that the other ranks wait for, and the arm that causes them.

If a rank is late by about the same amount in both arms, the cause is its node or its share of the work. If it is late
in one arm only, the arm is the cause. This is a warning, and no run becomes void. The step times are those that the
ranks report themselves.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from regbot.judge.pairs import is_sound, is_warm
from regbot.records.run import Run
from regbot.stats.stragglers import LATE_SHARE, MIN_SLOWER_SHARE, Lateness, rank_lateness

ARMS = ("base", "head")
LATE_RUN_SHARE = 0.75
"""A rank counts as late in an arm if it is late in at least this share of the arm's runs."""
SIMILAR_SHARE = 0.5
"""A rank counts as late in both arms if its lateness in the better arm is at least this share of its lateness in the
worse arm. Otherwise a rank just below the limit in one arm would be blamed on the other arm."""
MAX_NAMED = 4
"""Warnings name at most this many ranks, the most delayed rank first. A last warning counts the other ranks."""


def warn_of_stragglers(runs: Sequence[Run]) -> list[str]:
    """Return sentences on the ranks that the others wait for in the timed ``runs`` of one workload. A rank is
    identified by its number and its host, so that a session that moved does not mix two machines."""
    lateness_by_rank: dict[tuple[int, str], dict[str, list[Lateness]]] = {}
    for run in runs:
        timing = run.timing
        if timing is None or timing.clock == "log" or not is_sound(run) or is_warm(run):
            continue  # a step log has no times of ranks
        names = [str(rank) for rank in range(len(timing.ranks))]
        if set(names) != set(timing.ranks):
            continue  # the times of a rank are missing
        ranks = [timing.ranks[name] for name in names]
        hosts = run.allocation.hosts if run.allocation is not None else []
        hosts = hosts or [run.node.name if run.node is not None else ""]
        # Hosts are assumed to be in the order of their ranks, with equally many each.
        ranks_per_host = math.ceil(len(ranks) / len(hosts))
        steps_s, waits_s = [rank.step_s[timing.cut :] for rank in ranks], [rank.wait_s[timing.cut :] for rank in ranks]
        for number, lateness in enumerate(rank_lateness(steps_s, waits_s)):
            key = (number, hosts[number // ranks_per_host])
            lateness_by_rank.setdefault(key, {}).setdefault(run.arm.name, []).append(lateness)
    stragglers = [_describe(*key, by_arm) for key, by_arm in lateness_by_rank.items()]
    texts = [text for slower_pct, text in sorted(stragglers, key=lambda late: -late[0]) if slower_pct]
    return texts[:MAX_NAMED] + ([f"{len(texts) - MAX_NAMED} more ranks are late"] if len(texts) > MAX_NAMED else [])


def _describe(rank: int, host: str, by_arm: Mapping[str, Sequence[Lateness]]) -> tuple[float, str]:
    """Return the percent by which a rank's own work takes longer in the arms where it is late, and a sentence; 0 and ''
    if it is late in no arm. ``by_arm`` is its lateness in each run."""
    slower_pct = {arm: 100 * median(lateness.slowdown for lateness in runs) for arm, runs in by_arm.items()}
    clearly_late_arms = [
        arm
        for arm, runs in by_arm.items()
        if sum(lateness.is_late for lateness in runs) >= LATE_RUN_SHARE * len(runs)
        and median(lateness.slowdown for lateness in runs) > LATE_SHARE
    ]
    if not clearly_late_arms:
        return 0.0, ""
    min_pct = SIMILAR_SHARE * max(slower_pct[arm] for arm in clearly_late_arms)
    late_arms = tuple(
        arm
        for arm in ARMS
        if arm in by_arm
        and slower_pct[arm] >= min_pct
        and median(lateness.steps_share for lateness in by_arm[arm]) >= MIN_SLOWER_SHARE
    )
    late_runs = [lateness for arm in late_arms for lateness in by_arm[arm]]
    mean_pct = fmean(slower_pct[arm] for arm in late_arms)
    text = (
        f"the others wait for rank {rank}{f' ({host})' if host else ''}: its own work takes {mean_pct:.0f}% longer "
        f"({1000 * median(lateness.seconds for lateness in late_runs):.3g} ms per step, in "
        f"{fmean(lateness.steps_share for lateness in late_runs):.0%} of the steps)"
    )
    if len(by_arm) < 2:
        text += f" in {late_arms[0]}; the other arm was not timed, so the cause is not known"
    elif len(late_arms) == 1:
        (arm,) = late_arms
        other_arm = "base" if arm == "head" else "head"
        text += f" in {arm}, and {slower_pct[other_arm]:+.0f}% in {other_arm}: the cause is {arm}"
    else:
        text += (
            f", in base and head alike ({slower_pct['base']:+.0f}% and {slower_pct['head']:+.0f}%): its node or core "
            "is slower, or it gets more work"
        )
    return mean_pct, text
