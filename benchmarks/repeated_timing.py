"""Timing again after a verdict: somebody who pushes until the check is green.

A part of ``error_rates.py``. A pull request with a true slowdown is pushed until it passes. The pairs of all pushes may
be judged together, by the always-valid interval, or every push starts a new session. regbot judges pushes together if
the change is the same, for example after a change of comments, or if the branch was updated to a later base. Only a
decision on the same base stays until the always-valid interval decides. A harmless change of the code is another
change, so it starts a new session.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from math import log1p
from typing import Literal

import numpy as np
from nodes import BIMODAL, TYPICAL, Node
from paired_sessions import (
    BLOCK_PAIRS,
    MAX_ERROR,
    PAIRS,
    PLACEBO_PAIRS,
    PLACEBO_SESSIONS,
    PRIMARY,
    SUMMARIES,
    THRESHOLDS,
    Levels,
    judge_shipped,
    noisier,
    pooled_noise,
    simulate_sessions,
    upper_bound,
)
from promises import Promise

from regbot.stats.anytime import decide_anytime
from regbot.stats.paired import PASSING

SEED = 20261124
EFFECTS_PCT = (1.0, 2.0)
FEWER = 4
"""One in so many of the sessions is a pull request, because each has many sessions."""

TWICE = noisier(TYPICAL, 2.0)
What = Literal["comments", "code", "base"]
CASES: tuple[tuple[str, Node, Node, int, What], ...] = (
    ("5 pushes that change comments", TYPICAL, TYPICAL, 5, "comments"),
    ("5 pushes that change comments, bimodal", BIMODAL, BIMODAL, 5, "comments"),
    ("5 pushes of harmless changes", TYPICAL, TYPICAL, 5, "code"),
    ("5 pushes of harmless changes, bimodal", BIMODAL, BIMODAL, 5, "code"),
    ("20 pushes, base changed", TYPICAL, TYPICAL, 20, "base"),
    ("20 pushes, base changed, twice the noise", TWICE, TYPICAL, 20, "base"),
)
"""Name, node of the session and of its class, number of pushes, and what every push changes."""


def push_until_green(
    node: Node, node_class: Node, pushes: int, changed: What, count: int
) -> dict[float, tuple[np.ndarray, np.ndarray]]:
    """Return for each effect which pull requests are called slower at the last push, and which pass at some push."""
    sessions = simulate_sessions(node, count * pushes, SEED)
    placebos = simulate_sessions(node_class, count * PLACEBO_SESSIONS, SEED + 1, PLACEBO_PAIRS).ratios
    noise = pooled_noise(placebos.reshape(count, -1, PRIMARY))
    outcome = {}
    for percent in EFFECTS_PCT:
        is_open = np.ones(count, dtype=bool)
        slower, passed = np.zeros((2, count), dtype=bool)
        for push in range(pushes):
            indices = np.flatnonzero(is_open)
            if push == 0 or changed == "code":
                chosen = indices * pushes + push
                decided = judge_shipped(
                    Levels(sessions.base[chosen], sessions.ratios[chosen]), percent, [noise[i] for i in indices]
                )
                slower[indices], passed[indices] = decided.slower, decided.passed
            else:
                for index in indices:
                    ratios = sessions.ratios[index * pushes : index * pushes + push + 1] + log1p(percent / 100)
                    decision = judge_together(ratios.reshape(-1, PRIMARY))
                    if decision is not None or changed == "base":
                        slower[index], passed[index] = decision == "regressed", decision in PASSING
            is_open = ~passed
        outcome[percent] = slower, passed
    return outcome


def judge_together(ratios: np.ndarray) -> str | None:
    """Judge the pairs of all pushes after every block of the last one. None without a decision."""
    for pairs in range(len(ratios) - PAIRS + BLOCK_PAIRS, len(ratios) + 1, BLOCK_PAIRS):
        values = dict(zip(SUMMARIES, ratios[:pairs].T.tolist(), strict=True))
        decision = decide_anytime(values, PRIMARY, THRESHOLDS).decision
        if decision != "undecided":
            return decision
    return None


def pushes(sessions: int, jobs: int) -> Iterator[Promise]:
    """Print the table of pull requests that are pushed until they pass, and yield its promises."""
    count = max(20, sessions // FEWER)
    print(f"\npushes: {count} pull requests, pushed until they pass\n")
    print("| | called slower at the end, true 1% | passed at some push, true 2% |\n|---|---|---|")
    made = []
    with ProcessPoolExecutor(jobs) as pool:
        for (name, *_), outcome in zip(CASES, pool.map(_judge_case, CASES, [count] * len(CASES)), strict=True):
            errors = ("called slower at a true 1%", outcome[1.0][0]), ("passed at a true 2%", outcome[2.0][1])
            print(f"| {name} | {errors[0][1].mean():.4f} | {errors[1][1].mean():.4f} |", flush=True)
            for text, flags in errors:
                high = upper_bound(flags)
                text = f"{name}: {text}, upper 95% bound, at most {MAX_ERROR:.1%}"
                made.append(Promise(text, f"{flags.mean():.2%}, {high:.2%}", high <= MAX_ERROR))
    yield from made


def _judge_case(case: tuple[str, Node, Node, int, What], count: int) -> dict[float, tuple[np.ndarray, np.ndarray]]:
    _, *arguments = case
    return push_until_green(*arguments, count)
