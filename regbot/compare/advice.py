"""Advice if the files decide nothing: how small the noise would have to be for a decision, and how many pairs or files
would decide."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from regbot.compare.sections import ALPHA, SETTINGS, THRESHOLDS, UNUSUAL_PCT
from regbot.judge.estimates import percent
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import LOOKS, Thresholds, mde, pairs_needed
from regbot.stats.prediction import MIN_SESSIONS, SESSION_ALPHA
from regbot.stats.unpaired import MAX_SESSIONS, Difference, sessions_needed, tipping_sd

PREDICTION_ALPHA = SESSION_ALPHA / len(SUMMARIES)
"""Two-sided error of one prediction interval. Median and mean step time share the error ``SESSION_ALPHA``."""


@dataclass(frozen=True)
class NodeNoise:
    """Noise of a kind of node in the simulations: standard deviations in percent, as ``benchmarks/nodes.py`` prints
    them."""

    kind: str
    pair_pct: float
    """Standard deviation of a pair's log-ratio."""
    launch_pct: float
    """Standard deviation between launches that each run in another session on another node."""
    session_pct: float
    """Standard deviation of the effect that is the same in all launches of a session, and differs between sessions."""


NODE_NOISES = (
    NodeNoise("quiet", pair_pct=0.3, launch_pct=0.5, session_pct=0.45),
    NodeNoise("typical", pair_pct=0.8, launch_pct=1.0, session_pct=0.9),
    NodeNoise("noisy", pair_pct=2.5, launch_pct=2.4, session_pct=1.7),
)


def pairs_advice(estimates: Mapping[str, float], command: str = " and compare with --paired: it takes") -> str:
    """Return how many pairs would prove a difference as large as the estimate on a quiet, a typical and a noisy node.

    If the estimate is below the threshold for PASS, the threshold takes its place. ``estimates`` are percentages, by
    summary (median, mean). ``command`` are the words between how to run and the numbers of pairs.
    """
    # ``delta`` is the difference that the pairs have to detect.
    thresholds = Thresholds(delta=math.log1p(_target_pct(estimates) / 100), eps=THRESHOLDS.eps)
    advice = f"to prove {_target_text(estimates)}, run base and head in turn on one node{command}"
    needed = [pairs_needed(noise.pair_pct / 100, ALPHA, thresholds) for noise in NODE_NOISES]
    numbers = [_number_text(pairs, limit=LOOKS[-1]) for pairs in needed]  # a session has no more pairs than this
    pair_noises = [f"{noise.pair_pct:g}%" for noise in NODE_NOISES]
    return f"{advice} {_list_by_node(numbers, 'pairs', pair_noises)}"


def tipping_point(intervals: Mapping[str, Difference], has_single_launch: bool) -> str:
    """Return how much two launches, or two sessions, of one commit may differ at most if the estimate is to decide.

    ``intervals`` has the interval of each summary (median, mean) without the effects of sessions. The files do not show
    these effects.

    ``has_single_launch``: an arm has only one launch, so the unknown effect is the difference between two launches.
    That difference includes the noise inside a launch, so the interval from the steps is not added to it.
    """
    # Summary -> largest standard deviation of the unknown effect with which the summary decides; 0 if it never does.
    largest_sds: dict[str, float] = {}
    for name, interval in intervals.items():
        half_width = 0.0 if has_single_launch else interval.high - interval.estimate
        largest_sds[name] = tipping_sd(interval.estimate, half_width, ALPHA, THRESHOLDS)
    # Summaries whose estimate can prove a change. If there are none, the estimate can only prove "no change".
    beyond_eps = [name for name, interval in intervals.items() if abs(interval.estimate) > THRESHOLDS.eps]
    # A change is proven if one summary proves it. "No change" needs both summaries.
    sd = max(largest_sds[name] for name in beyond_eps) if beyond_eps else min(largest_sds.values())
    measurements = "runs of one commit in different sessions" if has_single_launch else "sessions of one commit"
    size = f"more than {SETTINGS.indifference_pct:g}%" if beyond_eps else f"less than {SETTINGS.threshold_pct:g}%"
    claim = f"a change of {size}"
    if sd == 0:
        goal = f"that head changed by {size}"
        return f"the runs of an arm scatter so much that they could not prove {goal}, even if sessions did not differ"
    noise_pct = [noise.launch_pct if has_single_launch else noise.session_pct for noise in NODE_NOISES]
    # The variance of a difference is the sum of the two variances.
    difference_pct = [f"{math.sqrt(2) * pct:.1f}%" for pct in noise_pct]
    return (
        f"the estimate proves {claim} only if two {measurements} differ by less than {100 * sd:.2f}% (standard "
        f"deviation); in simulations they differ by {_list_by_node(difference_pct)}"
    )


def single_pair_power() -> str:
    """Return the smallest slowdown that one pair of known noise could prove, by kind of node."""
    detectable = [
        mde(noise.pair_pct / 100, pairs=1, alpha=ALPHA, eps=THRESHOLDS.eps, known=True) for noise in NODE_NOISES
    ]
    return (
        "if the noise of the node is known (--paired --noise), one pair of one session proves a slowdown of at least "
        f"{_list_by_node([f'{percent(log_ratio):.1f}%' for log_ratio in detectable])}"
    )


def sessions_advice(estimates: Mapping[str, float], sessions: int, has_undeclared: bool) -> str:
    """Return how many more base files of separate sessions are needed for a decision about head, by kind of node.

    ``estimates`` are percentages, by summary (median, mean). ``sessions`` is the number of base files that are known to
    be of separate sessions. ``has_undeclared``: some base files do not show when they ran, and the user has not
    declared separate sessions.
    """
    effect = math.log1p(_target_pct(estimates) / 100)
    needed = [
        sessions_needed(noise.launch_pct / 100, effect, PREDICTION_ALPHA, THRESHOLDS.eps) for noise in NODE_NOISES
    ]
    # None stands for more files than is practical.
    missing_files = [None if number is None else max(number - sessions, 0) for number in needed]
    known_text = (
        f"{sessions} base files are known to be of separate sessions"
        if sessions > 1
        else f"{'1' if sessions else 'no'} base file is known to be of a separate session"
    )
    advice = (
        f"without pairs, a decision needs {MIN_SESSIONS} or more base files of separate sessions (other days), with "
        f"which regbot compares head's files. Here {known_text}; to prove {_target_text(estimates)} it takes "
        f"{_list_by_node([_number_text(number, limit=MAX_SESSIONS) for number in missing_files], 'further files')}"
    )
    if not has_undeclared:
        return advice
    return (
        f"{advice}. If files do not show when they ran, --separate-sessions declares that their sessions are separate"
    )


def _target_pct(estimates: Mapping[str, float]) -> int:
    """Return the difference to prove, in percent: the largest estimate, or the threshold if that is larger."""
    # On the log scale, a speed-up counts like a slowdown by the same factor.
    largest = max(abs(math.log1p(value / 100)) for value in estimates.values())
    # Round to whole percents, because so few runs do not support more digits.
    return max(round(percent(largest)), round(SETTINGS.threshold_pct))


def _target_text(estimates: Mapping[str, float]) -> str:
    """Return the difference to prove as text. A difference above ``UNUSUAL_PCT`` is not given as a number."""
    pct = _target_pct(estimates)
    if pct > UNUSUAL_PCT:
        return "a difference like this"
    is_threshold = pct <= round(SETTINGS.threshold_pct)
    return f"{'or rule out ' if is_threshold else ''}a difference of {pct}%"


def _number_text(number: int | None, limit: int) -> str:
    """Return ``number``, or ``more than <limit>`` if it is None or exceeds ``limit``."""
    return f"{number}" if number is not None and number <= limit else f"more than {limit}"


def _list_by_node(values: Sequence[str], unit: str = "", pair_noises: Sequence[str] = ()) -> str:
    """Return one value for each kind of node: ``4 pairs on a quiet node, 4 on a typical one, 8 on a noisy one``.

    ``values`` and ``pair_noises`` have one text for each of ``NODE_NOISES``. ``unit`` follows the first value.
    ``pair_noises`` are added in parentheses. Equal values become ``4 pairs on any node, quiet or noisy``.
    """
    first_value = f"{values[0]} {unit}".rstrip()
    if len({*values}) == 1:
        return f"{first_value} on any node, quiet or noisy"
    nodes = [f"a {noise.kind} {'node' if i == 0 else 'one'}" for i, noise in enumerate(NODE_NOISES)]
    notes = [f" ({noise} from pair to pair)" if i == 0 else f" ({noise})" for i, noise in enumerate(pair_noises)]
    notes = notes or [""] * len(nodes)
    values_with_unit = [first_value, *values[1:]]
    return ", ".join(
        f"{value} on {node}{note}" for value, node, note in zip(values_with_unit, nodes, notes, strict=True)
    )
