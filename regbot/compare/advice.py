"""Advice for undecided files: how small the noise would have to be for a decision, and how many pairs or files would
decide."""

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


@dataclass(frozen=True)
class NodeNoise:
    """Noise of a kind of node in the simulations: standard deviations in percent, as ``benchmarks/nodes.py`` prints
    them."""

    kind: str
    pair_pct: float
    """Log-ratio of a pair."""
    launch_pct: float
    """One launch in a session of its own, on a node of its own."""
    session_pct: float
    """Effect that a session and its node add to all of its launches."""


NODE_NOISES = (
    NodeNoise("quiet", 0.3, 0.5, 0.45),
    NodeNoise("typical", 0.8, 1.0, 0.9),
    NodeNoise("noisy", 2.5, 2.4, 1.7),
)


def pairs_advice(estimates: Mapping[str, float]) -> str:
    """Return how many pairs would prove the larger of the estimated difference and the threshold, on usual nodes.

    ``estimates`` are percentages.
    """
    pct = _target_pct(estimates)
    thresholds = Thresholds(delta=math.log1p(pct / 100), eps=THRESHOLDS.eps)
    advice = (
        f"to prove {_target_text(estimates)}, run base and head in turn on one node and compare with --paired: it takes"
    )
    needed = [pairs_needed(noise.pair_pct / 100, ALPHA, thresholds) for noise in NODE_NOISES]
    numbers = [_number_text(pairs, LOOKS[-1]) for pairs in needed]
    return f"{advice} {_by_node(numbers, 'pairs', [f'{noise.pair_pct:g}%' for noise in NODE_NOISES])}"


def tipping_point(intervals: Mapping[str, Difference], has_single_launch: bool) -> str:
    """Return how little two launches, or two sessions, of one commit would have to differ for a decision.

    ``has_single_launch``: an arm has only one launch, so the unknown effect is the difference between two launches.
    That difference includes the noise inside a launch, so the interval from the steps is not added to it.
    """
    tipping = {
        name: tipping_sd(
            interval.estimate, 0.0 if has_single_launch else interval.high - interval.estimate, ALPHA, THRESHOLDS
        )
        for name, interval in intervals.items()
    }
    beyond = [name for name, interval in intervals.items() if abs(interval.estimate) > THRESHOLDS.eps]
    sd = max(tipping[name] for name in beyond) if beyond else min(tipping.values())
    what = "launches" if has_single_launch else "sessions"
    limit = f"more than {SETTINGS.indifference_pct:g}%" if beyond else f"less than {SETTINGS.threshold_pct:g}%"
    if sd == 0:
        return f"the runs of an arm differ too much among themselves to prove {limit}, even if sessions did not differ"
    usual_pct = [math.sqrt(2) * (noise.launch_pct if has_single_launch else noise.session_pct) for noise in NODE_NOISES]
    return (
        f"the estimate proves {limit} only if two {what} of one commit differ by less than {100 * sd:.2f}% (standard "
        f"deviation); in simulations they differ by {_by_node([f'{pct:.1f}%' for pct in usual_pct])}"
    )


def single_pair_power() -> str:
    """Return which slowdowns one pair could prove if its noise were known."""
    provable_pct = [percent(mde(noise.pair_pct / 100, 1, ALPHA, THRESHOLDS.eps, known=True)) for noise in NODE_NOISES]
    return (
        "one pair of one session, compared with --paired --noise, proves a slowdown if it is at least "
        f"{_by_node([f'{pct:.1f}%' for pct in provable_pct])}"
    )


def sessions_advice(estimates: Mapping[str, float], sessions: int, has_undeclared: bool) -> str:
    """Return how many more base files of separate sessions would let head's files decide, on usual nodes.

    ``estimates`` are percentages. ``sessions`` is the number of base files that are known to be of separate sessions.
    ``has_undeclared``: some base files do not show when they ran, and the user has not declared separate sessions.
    """
    effect = math.log1p(_target_pct(estimates) / 100)
    needed = [
        sessions_needed(noise.launch_pct / 100, effect, PREDICTION_ALPHA, THRESHOLDS.eps) for noise in NODE_NOISES
    ]
    more = [None if number is None else max(number - sessions, 0) for number in needed]
    known = f"{sessions} base files are known to be of separate sessions"
    if sessions < 2:
        known = f"{'1' if sessions else 'no'} base file is known to be of a session of its own"
    advice = (
        f"without pairs, a decision needs {MIN_SESSIONS} or more base files of separate sessions (other days), with "
        f"which regbot compares head's files. Here {known}; to prove {_target_text(estimates)} it takes "
        f"{_by_node([_number_text(number, MAX_SESSIONS) for number in more], 'more files')}"
    )
    if not has_undeclared:
        return advice
    return (
        f"{advice}. If files do not show when they ran, --separate-sessions declares that their sessions are separate"
    )


def _target_pct(estimates: Mapping[str, float]) -> int:
    """Return the difference to prove, in percent: the largest estimate, and at least the threshold."""
    # Round to whole percents, because so few runs do not support more digits.
    largest = max(abs(math.log1p(value / 100)) for value in estimates.values())
    return max(round(percent(largest)), round(SETTINGS.threshold_pct))


def _target_text(estimates: Mapping[str, float]) -> str:
    pct = _target_pct(estimates)
    return f"{pct}%" if pct <= UNUSUAL_PCT else "a difference like this"


def _number_text(number: int | None, largest: int) -> str:
    return f"{number}" if number is not None and number <= largest else f"more than {largest}"


def _by_node(values: Sequence[str], unit: str = "", pair_noises: Sequence[str] = ()) -> str:
    """Return one value for each kind of node: ``4 pairs on a quiet node, 4 on a typical one, 8 on a noisy one``.

    ``pair_noises`` are added in parentheses.
    """
    first = f"{values[0]} {unit}".rstrip()
    if len({*values}) == 1:
        return f"{first} on any node, quiet or noisy"
    nodes = [f"a {noise.kind} {'node' if i == 0 else 'one'}" for i, noise in enumerate(NODE_NOISES)]
    notes = [f" ({noise} per pair)" if i == 0 else f" ({noise})" for i, noise in enumerate(pair_noises)]
    notes = notes or [""] * len(nodes)
    return ", ".join(
        f"{value} on {node}{note}" for value, node, note in zip([first, *values[1:]], nodes, notes, strict=True)
    )
