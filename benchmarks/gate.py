"""Error rates, power and cost of the throughput verdict, now and by the rule of the commit before (``before.py``).

    python benchmarks/gate.py [--sessions 4000] [--jobs 2] [--row NAME]

Each row is one kind of session (``ROWS``): a kind of node of ``nodes.py``, and what differs from the assumptions. The
shipped function ``sequential_test`` judges the same simulated sessions at every true effect. Five placebo sessions of
eight pairs show the noise of the node class, for every four sessions. In a check of several workloads, all have the
effect, and one wrong workload makes the check wrong. A row of W workloads has 4 / W as many checks.

The exit code is 1 if a promise is not kept. Rows without a promise show what the docs say about the limits of the rule.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import log1p

import numpy as np
from before import judge_before
from nodes import BIMODAL, NOISY, QUIET, TYPICAL, Array, Node, abba, levels, steps_of_runs, warm_up
from paired_sessions import (
    DRAWS,
    MAX_ERROR,
    MAX_WITHHELD,
    MIN_COVERAGE,
    PAIRS,
    PLACEBO_PAIRS,
    PLACEBO_SESSIONS,
    PRIMARY,
    SESSIONS_PER_CLASS,
    STEADY,
    Decisions,
    Levels,
    arms_of,
    draw_luck,
    judge_shipped,
    noisier,
    pooled_noise,
    simulate_sessions,
    summarise_runs,
    upper_bound,
)
from promises import Promise, report_promises

from regbot.check.compare.sections import POSITION_EFFECT_PCT
from regbot.judge.interim import luck_in_draws
from regbot.stats.arm_luck import ALLOCATION_PAIRS, ASSUMED_LUCK, DRAW_PAIRS, MIN_ALLOCATIONS, SharedLuck, estimate_luck
from regbot.stats.correlation import lag_correlation
from regbot.stats.steady import SteadyState, steady_state, unsettled_warnings
from regbot.stats.summary import summarise

SEED = 20260804
SESSIONS = 4000
EFFECTS_PCT = (0.0, 1.0, 2.0, 3.0, 5.0, 10.0)
LIMITED_PCT, OTHER_SHARE = (0.0, 1.0, 2.0), 4
"""Effects with a limit for wrong decisions and for the coverage. At the others, one in so many sessions is judged."""
STEADY_SHARE = 4
"""One in so many sessions is simulated if the steady state of every run is searched for, which is slow."""
WARM_UP_STEPS, RUN_STEPS = 12, 60
THERMAL_STEPS = 20.0

LEAST_POWER, MOST_RUNS = 0.90, {2.0: 17.0, 0.0: 8.0}
"""Power at 2%, and mean number of runs by effect, on a calibrated typical node with independent pairs."""
LEAST_LARGE = 0.99
"""Smallest share of slowdowns of 5% and 10% that fail."""


@dataclass(frozen=True)
class Row:
    """One kind of session."""

    name: str
    node: Node
    noisier: float = 1.0
    """Noise of this session, of its steps and its runs, over the noise of its class."""
    workloads: int = 1
    correlation: float = 0.0
    """Correlation of neighbouring pairs, also of the placebo pairs."""
    block_correlation: float = 0.0
    placebos: tuple[int, int] | None = (PLACEBO_SESSIONS, PLACEBO_PAIRS)
    """Placebo sessions and their pairs, which show the noise of the class. None: it is not known. The luck of an arm is
    estimated from ``MIN_ALLOCATIONS`` sessions or more; with fewer, it is known to be 0."""
    luck_pct: float = 0.0
    """Standard deviation of what an arm draws with its compiler caches."""
    luck_draw_pairs: int = DRAW_PAIRS
    """Pairs that share a draw. ``PAIRS``: emptied caches do not draw the luck anew."""
    is_calibrated: bool = True
    """If not, the intervals contain an assumed luck."""
    slow_launches: tuple[float, float] = (0.0, 0.0)
    first_pct: tuple[float, float] = (0.0, 0.0)
    """By how much the first run of base and of head is slower after the caches were emptied."""
    second_pct: float = 0.0
    """By how much the second run of a pair is slower."""
    abba_order: bool = True
    offset_pct: float = 0.0
    """By how much the intervals are wider on both sides."""
    rise_pct: float = 0.0
    """Thermal rise within each run of both arms. Runs may then have no steady state."""
    stalls: bool = False
    is_promised: bool = True
    finds_large: bool = False
    """Whether slowdowns of 5% and 10% must fail, even if the row has no other promise."""


ALLOCATIONS = (MIN_ALLOCATIONS, ALLOCATION_PAIRS)
CORRELATED = replace(Row("neighbouring pairs correlated by .2", TYPICAL), correlation=0.2)
NOISY_SESSION = Row("twice the noise of the class", TYPICAL, noisier=2.0)
ROWS = (
    Row("quiet", QUIET, finds_large=True),
    Row("typical", TYPICAL, finds_large=True),
    Row("bimodal", BIMODAL),
    Row("noisy", NOISY),
    Row("typical, noise of the class not known", TYPICAL, placebos=None),
    Row("typical, 8 degrees of freedom", TYPICAL, placebos=(1, 9)),
    Row("typical, luck of an arm estimated", TYPICAL, placebos=ALLOCATIONS),
    NOISY_SESSION,
    Row("2.5 times the noise", TYPICAL, noisier=2.5),
    Row("4 workloads", TYPICAL, workloads=4),
    Row("4 workloads, twice the noise", TYPICAL, noisier=2.0, workloads=4),
    Row("4 workloads, 2.5 times the noise", TYPICAL, noisier=2.5, workloads=4),
    CORRELATED,
    Row("the pairs of a block correlated by .2", TYPICAL, block_correlation=0.2),
    replace(CORRELATED, name="correlated by .2, noise of the class not known", placebos=None),
    replace(CORRELATED, name="20 workloads, correlated by .2", workloads=20),
    Row("neighbouring pairs correlated by .3", TYPICAL, correlation=0.3, is_promised=False),
    Row("thermal rise of 3% in both arms", TYPICAL, rise_pct=3.0, finds_large=True),
    Row("4 of 25 steps stall, random phase", TYPICAL, stalls=True, finds_large=True),
    Row("head's first run of a draw 1% slower", TYPICAL, first_pct=(0.0, 1.0)),
    Row("base's first run of a draw 1% slower", TYPICAL, first_pct=(1.0, 0.0)),
    Row("one launch in 20 takes 30% longer", TYPICAL, slow_launches=(0.05, 0.05), finds_large=True),
    Row("15% of head's launches, 3% of base's", TYPICAL, slow_launches=(0.03, 0.15), is_promised=False),
    Row("second run .7% slower, ABBA", TYPICAL, second_pct=0.7),
    Row(
        "second run .7% slower, head always second",
        TYPICAL,
        placebos=None,
        second_pct=0.7,
        abba_order=False,
        offset_pct=POSITION_EFFECT_PCT,
    ),
    Row("luck of an arm of .3%", TYPICAL, luck_pct=0.3, placebos=ALLOCATIONS),
    Row("luck of an arm of .5%", TYPICAL, luck_pct=0.5, placebos=ALLOCATIONS),
    Row("luck of .2% that emptied caches keep", TYPICAL, luck_pct=0.2, luck_draw_pairs=PAIRS, placebos=ALLOCATIONS),
    Row("luck of .3% that emptied caches keep", TYPICAL, luck_pct=0.3, luck_draw_pairs=PAIRS, placebos=ALLOCATIONS),
    Row("luck of .5% that emptied caches keep", TYPICAL, luck_pct=0.5, luck_draw_pairs=PAIRS, placebos=ALLOCATIONS),
    Row("typical, no calibration", TYPICAL, is_calibrated=False),
    Row("no calibration, luck of .5%", TYPICAL, luck_pct=0.5, is_calibrated=False),
    Row("quiet, no calibration, luck of .5%", QUIET, luck_pct=0.5, is_calibrated=False),
    Row("no calibration, luck of .3% that stays", TYPICAL, luck_pct=0.3, luck_draw_pairs=PAIRS, is_calibrated=False),
    Row("quiet, no calibration, .3% that stays", QUIET, luck_pct=0.3, luck_draw_pairs=PAIRS, is_calibrated=False),
)

Outcome = dict[float, tuple[Decisions | None, Decisions]]
"""What the rule before and the shipped rule decide, by the effect in percent."""


States = list[tuple[list[SteadyState], ...]]
"""Steady states of the runs of base and of head, for each session."""


def simulate(row: Row, sessions: int, pairs: int, node: Node, seed: int) -> Levels:
    """Simulate the sessions of a row, or its placebo sessions."""
    rng = np.random.default_rng(seed + 1)
    simulated = simulate_sessions(
        node, sessions, seed, pairs, row.slow_launches, row.second_pct, row.abba_order, row.stalls
    )
    if row.correlation:
        simulated = simulated.correlate(row.correlation)
    if row.block_correlation:
        simulated = simulated.correlate_blocks(row.block_correlation)
    is_first = np.arange(pairs) % DRAW_PAIRS == 0
    of_base, of_head = (log1p(pct / 100) * is_first[:, None] for pct in row.first_pct)
    if any(row.first_pct):
        simulated = Levels(simulated.base + of_base, simulated.ratios + of_head - of_base)
    if row.luck_pct:
        luck = draw_luck(row.luck_pct / 100, sessions, pairs, rng, row.luck_draw_pairs)
        simulated = replace(simulated, ratios=simulated.ratios + luck[..., None])
    return simulated


def simulate_rising(row: Row, sessions: int, rng: np.random.Generator) -> tuple[Levels, States]:
    """Simulate sessions whose runs become slower. Also return the steady states of the runs."""
    shape = (sessions, 2 * PAIRS)
    is_head = abba(sessions, PAIRS, rng)
    logs = levels(row.node, *shape, rng)[..., None] + steps_of_runs(row.node, shape, RUN_STEPS, rng)
    logs += warm_up(shape, RUN_STEPS, WARM_UP_STEPS, rng)
    logs += log1p(row.rise_pct / 100) * (1 - np.exp(-np.arange(RUN_STEPS) / THERMAL_STEPS))
    states = [
        tuple([steady_state(run) for run in session[heads == arm]] for arm in (False, True))
        for session, heads in zip(np.exp(logs), is_head, strict=True)
    ]
    return arms_of(summarise_runs(logs[..., -STEADY:]), is_head), states


def reason_to_go_on(states: States, session: int, pairs: int) -> str:
    base, head = states[session]
    return "".join(unsettled_warnings(base[:pairs], head[:pairs])[:1])


def was_valid(states: States, session: int, pairs: int) -> bool:
    """Whether the rule before used a session: fewer than half of the runs of each arm have no steady state."""
    return all(
        2 * sum(not state.steady for state in states_of_arm[:pairs]) < pairs for states_of_arm in states[session]
    )


def estimate_lucks(placebo_ratios: Array) -> list[SharedLuck | None]:
    """Return the luck that the placebo pairs of each class show, (classes, sessions, pairs). Each session is an
    allocation of its own."""
    lucks = []
    _, sessions, pairs = placebo_ratios.shape
    allocations = np.repeat(np.arange(sessions), pairs // DRAW_PAIRS).tolist()
    for ratios in placebo_ratios:
        lag = lag_correlation(ratios.tolist())
        draws = ratios.reshape(-1, DRAW_PAIRS).tolist()
        estimate = estimate_luck(draws, lag.value if lag is not None else 0.0, allocations)
        lucks.append(luck_in_draws(estimate, DRAWS))
    return lucks


def judge_row(row: Row, count: int) -> Outcome:
    """Simulate ``count`` sessions of ``row``, or checks of as many sessions, and judge them at every effect."""
    checks = max(16, count * min(4, row.workloads) // row.workloads // 16 * 16)
    sessions = checks * row.workloads // (STEADY_SHARE if row.rise_pct else 1)
    states: States | None = None
    if row.rise_pct:
        simulated, states = simulate_rising(row, sessions, np.random.default_rng(SEED))
    else:
        simulated = simulate(row, sessions, PAIRS, noisier(row.node, row.noisier), SEED)
    classes = sessions // SESSIONS_PER_CLASS
    noise, class_sds, df, lucks, luck_arrays = None, None, 0, None, None
    if row.placebos is not None:
        placebo_sessions, placebo_pairs = row.placebos
        even_pairs = placebo_pairs + placebo_pairs % 2
        same_commit = replace(row, slow_launches=(row.slow_launches[0],) * 2)
        placebo_levels = simulate(same_commit, classes * placebo_sessions, even_pairs, row.node, SEED + 2)
        placebos = placebo_levels.after(even_pairs).ratios[:, :placebo_pairs]
        noise = pooled_noise(placebos.reshape(classes, -1, PRIMARY))
        of_classes = placebo_levels.ratios[:, :placebo_pairs].reshape(classes, -1, PRIMARY)
        df = of_classes.shape[1] - 1
        class_sds = np.repeat(of_classes.std(axis=1, ddof=1), SESSIONS_PER_CLASS, axis=0)
        if not row.is_calibrated:
            lucks = [SharedLuck(ASSUMED_LUCK, np.inf, DRAWS)] * classes
        elif placebo_sessions >= MIN_ALLOCATIONS:
            lucks = estimate_lucks(placebos[..., 0].reshape(classes, placebo_sessions, -1))
    if lucks is not None:
        sds_and_dfs = [(luck.sd, luck.df) if luck is not None else (0.0, np.inf) for luck in lucks]
        luck_arrays = np.repeat(sds_and_dfs, SESSIONS_PER_CLASS, axis=0).T
    outcome: Outcome = {}
    for percent in EFFECTS_PCT:
        used = sessions if percent in LIMITED_PCT or row.rise_pct else sessions // OTHER_SHARE
        primary_tests = PRIMARY * row.workloads
        before = judge_before(
            simulated.ratios[:used],
            percent,
            class_sds[:used] if class_sds is not None else None,
            df,
            primary_tests,
            luck_arrays[:, :used] if luck_arrays is not None else None,
        )
        now = judge_shipped(
            simulated.first(used),
            percent,
            noise[: used // SESSIONS_PER_CLASS] if noise is not None else None,
            primary_tests,
            lucks[: used // SESSIONS_PER_CLASS] if lucks is not None else None,
            partial(reason_to_go_on, states) if states is not None else None,
            log1p(row.offset_pct / 100),
        )
        if states is not None:  # the rule before stopped, and its result was then thrown away
            is_valid = np.array([was_valid(states, session, int(pairs)) for session, pairs in enumerate(before.pairs)])
            before = replace(before, slower=before.slower & is_valid, passed=before.passed & is_valid)
        outcome[percent] = before.group(row.workloads), now.group(row.workloads)
    return outcome


def promises(outcomes: Mapping[Row, Outcome]) -> Iterator[Promise]:
    for row, outcome in outcomes.items():
        now = {percent: decisions for percent, (_, decisions) in outcome.items()}
        if row.is_promised:
            errors = (("FAIL at a true 1%", now[1.0].slower), ("PASS at a true 2%", now[2.0].passed))
            for text, flags in errors:
                high = upper_bound(flags)
                text = f"{row.name}: {text}, upper 95% bound, at most {MAX_ERROR:.1%}"
                yield Promise(text, f"{flags.mean():.2%}, {high:.2%}", high <= MAX_ERROR)
            covered = min(now[percent].covered.mean() for percent in LIMITED_PCT)
            text = f"{row.name}: coverage at least {MIN_COVERAGE:.0%}"
            yield Promise(text, f"{covered:.1%}", covered >= MIN_COVERAGE)
            if row.is_calibrated:
                withheld = max(decisions.withheld.mean() for decisions in now.values())
                text = f"{row.name}: withheld at most {MAX_WITHHELD:.0%}"
                yield Promise(text, f"{withheld:.1%}", withheld <= MAX_WITHHELD)
        if row.finds_large:
            found = min(now[percent].slower.mean() for percent in (5.0, 10.0))
            text = f"{row.name}: FAIL at a true 5% and 10% at least {LEAST_LARGE:.0%}"
            yield Promise(text, f"{found:.1%}", found >= LEAST_LARGE)
        if row.name in ("typical", "typical, luck of an arm estimated"):
            power = now[2.0].slower.mean()
            yield Promise(f"{row.name}: power at 2% at least {LEAST_POWER:.2f}", f"{power:.3f}", power >= LEAST_POWER)
            for percent, most in MOST_RUNS.items():
                runs = now[percent].rates()["runs"]
                text = f"{row.name}: runs at {percent:g}%, at most {most:g} on average"
                yield Promise(text, f"{runs:.1f}", runs <= most)


def report(outcomes: Iterable[tuple[Row, Outcome]]) -> dict[Row, Outcome]:
    """Print the rule before and the shipped rule in every row, and return the outcomes."""
    reported = {}
    found = "".join(f"{f'FAIL {percent:g}%':>10}" for percent in (1, 2, 3, 5, 10))
    print(f"{'':48}{'':7}{found}{'PASS 2%':>9}{'PASS 0%':>9}{'runs 0/2/3%':>18}{'coverage':>10}{'withheld':>10}")
    for row, outcome in outcomes:
        reported[row] = outcome
        for index, rule in enumerate(("before", "now")):
            by_effect = {percent: both[index].rates() for percent, both in outcome.items()}
            shares = "".join(f"{by_effect[percent]['slower']:>10.4f}" for percent in EFFECTS_PCT[1:])
            passed = "".join(f"{by_effect[percent]['passed']:>9.4f}" for percent in (2.0, 0.0))
            runs = " ".join(f"{by_effect[percent]['runs']:.1f}" for percent in (0.0, 2.0, 3.0))
            covered = min(by_effect[percent]["covered"] for percent in LIMITED_PCT)
            withheld = max(rates["withheld"] for rates in by_effect.values())
            name = row.name if rule == "before" else ""
            print(f"{name:48}{rule:7}{shares}{passed}{runs:>18}{covered:>10.3f}{withheld:>10.3f}", flush=True)
    return reported


def check_summaries() -> None:
    """Check that ``summarise_runs`` has the values of ``regbot.stats.summarise``. Raises AssertionError."""
    logs = np.random.default_rng(SEED).normal(0, 0.01, (3, STEADY))
    for run, values in zip(logs, summarise_runs(logs), strict=True):
        if not np.allclose(values, list(summarise(np.exp(run).tolist()).values()), rtol=0, atol=1e-12):
            raise AssertionError("the summaries differ from those of regbot.stats.summarise")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="sessions simulated per row")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--row", action="append", choices=[row.name for row in ROWS], help="only this row; repeatable")
    options = parser.parse_args(arguments)
    rows = [row for row in ROWS if not options.row or row.name in options.row]
    check_summaries()
    print(
        f"{options.sessions} sessions a row, {STEADY} steady steps a run, threshold 2%, indifference 1%, seed {SEED}\n"
    )
    with ProcessPoolExecutor(options.jobs) as pool:
        outcomes = report(zip(rows, pool.map(judge_row, rows, [options.sessions] * len(rows)), strict=True))
    print()
    return report_promises(list(promises(outcomes)))


if __name__ == "__main__":
    sys.exit(main())
