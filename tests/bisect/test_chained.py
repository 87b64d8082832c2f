"""A bisection that continues the session of a check: one level, an early confirmation, and when it applies."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from regbot.bisect.chained import LEASE_GAP_S, CheckLease, continued_stratum
from regbot.bisect.noisy import MeasurementRequest
from regbot.bisect.reuse import SESSION, load_reused_runs
from regbot.bisect.seats import Seats
from regbot.engines import LocalEngine, Needs
from regbot.records.base import Record
from regbot.records.bisection import BisectionHeader, Observation
from regbot.records.files import append_line
from regbot.records.run import Allocation, Run
from regbot.stats.paired import LOOKS
from support.bisect_cases import SD, Runs, Searched, key, line, number_of, search, span, step
from support.timed_builder import BASE, HEAD, HEADER, NODE, PLAN, Slot, noisy, play

PAIRS = 8


def check_runs(places: int, effect: float, stratum: str) -> list[Observation]:
    """Return the runs of a check of good and bad."""
    rng = np.random.default_rng(5)
    return [
        Observation(
            point=key(place),
            purpose="reused",
            usable=True,
            values={"cost": effect * bool(place) + float(rng.normal(0, SD))},
            stratum=stratum,
            block=pair,
        )
        for pair in range(PAIRS)
        for place in (0, places)
    ]


def search_after_check(stratum: str, level: Callable[[int], float], seed: int = 0) -> Searched:
    return search(span(64), Runs(level, seed=seed), observations=check_runs(64, level(64), stratum))


@pytest.mark.parametrize("seed", range(3))
def test_after_a_check_in_the_same_session_whole_blocks_confirm_by_the_posterior(seed: int) -> None:
    chained = search_after_check("here", step(20, 4 * SD), seed)
    apart = search_after_check("another", step(20, 4 * SD), seed)
    assert chained.culprits == apart.culprits == [20]
    assert chained.root.gate is not None
    assert (chained.root.gate.decision, chained.root.gate_finished) == ("regressed", True)
    assert chained.root.gate.pairs < LOOKS[0]
    _, bounds = chained.root.gate.tests["cost"]
    assert bounds.low < 4 * SD < bounds.high
    assert apart.root.gate is not None
    assert apart.root.gate.pairs >= LOOKS[0]
    runs, runs_apart = (found.count("search") + found.count("confirm") for found in (chained, apart))
    assert runs < runs_apart


def test_a_range_of_one_commit_that_the_check_has_found_needs_one_block_only() -> None:
    result = search(span(1), Runs(step(1, 4 * SD)), observations=check_runs(1, 4 * SD, "here"))
    assert (result.culprits, result.count("search"), result.count("confirm")) == ([1], 0, 4)


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_commit_that_its_block_contradicts_is_not_confirmed(seed: int) -> None:
    """The first search runs of 40 to 44 are slow by mishap. The block of 40 shows nothing, so the search goes on."""

    class Mishap(Runs):
        def measure(self, wanted: MeasurementRequest, slot: int) -> Observation:
            is_slow = wanted.purpose == "search" and number_of(wanted.point) in range(40, 45)
            result = super().measure(wanted, slot)
            if not is_slow or sum(number_of(made.point) in range(40, 45) for made in self.made) > 5:
                return result
            return result.model_copy(update={"values": {"cost": result.values["cost"] + 4 * SD}})

    runs = Mishap(step(45, 4 * SD), seed=seed)
    result = search(span(64), runs, observations=check_runs(64, 4 * SD, "here"))
    contrasts = {run.contrast for run in result.observations if run.purpose == "confirm"}
    assert len(contrasts) > 1, "a commit before the culprit was tried too"
    assert result.culprits == [45]


def test_the_session_is_continued_on_the_same_machine_within_the_limit_only() -> None:
    lease = CheckLease("local", "n1", 1000.0, "check of today")
    assert continued_stratum(lease, "local", "n1", 1000.0 + LEASE_GAP_S) == "check of today"
    assert continued_stratum(lease, "local", "n1", 1001.0 + LEASE_GAP_S) == ""
    assert continued_stratum(lease, "local", "n1", 999.0) == "", "the clock was set back"
    assert continued_stratum(lease, "local", "n2", 1001.0) == ""
    assert continued_stratum(lease, "slurm", "n1", 1001.0) == ""
    assert continued_stratum(None, "local", "n1", 1001.0) == ""


def test_the_first_seat_has_the_level_of_the_check_until_its_nodes_are_lost() -> None:
    seats = Seats(LocalEngine(), Needs(ranks=0, name="test"), "check of today")
    assert seats.stratum(0) == "check of today"
    assert seats.stratum(1) != "check of today"
    seats.replace(0)
    assert seats.stratum(0) not in ("", "check of today")
    assert Seats(LocalEngine(), Needs(ranks=0, name="test")).stratum(0) != ""


@pytest.mark.parametrize(("job", "has_lease"), [("", True), ("7", False)], ids=["local", "a job of a scheduler"])
def test_the_lease_of_a_check_is_that_of_its_last_run(tmp_path: Path, job: str, has_lease: bool) -> None:
    class Options:
        check, reuse = tmp_path, True

    launch, start = noisy(1.2, 0.01), 1.79e9

    def launch_with_host(slot: Slot) -> Run:
        nonlocal start
        start += 60.0
        allocation = Allocation(engine="slurm" if job else "local", job=job, hosts=[NODE.name])
        return launch(slot).model_copy(update={"allocation": allocation, "started_unix_s": start, "wall_s": 30.0})

    records: Sequence[Record] = (HEADER, *play(launch_with_host))
    for record in records:
        append_line(tmp_path / SESSION, record)
    good, bad = line(1)
    header = BisectionHeader.model_validate(
        {
            "regbot": "0",
            "created": "now",
            "on": "time",
            "exact": False,
            "entries": [PLAN.entry],
            "plan": PLAN,
            "points": [
                good.model_copy(update={"commit": BASE.commit}),
                bad.model_copy(update={"commit": HEAD.commit}),
            ],
        }
    )
    reused = load_reused_runs(Options(), header, NODE.node_class)
    assert (reused.lease is not None) == has_lease
    if reused.lease is not None:
        assert reused.lease == CheckLease("local", NODE.name, start + 30.0, reused.observations[-1].stratum)
