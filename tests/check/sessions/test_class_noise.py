"""Sessions on a class whose noise is known: the first block may pass, and a look follows every block."""

from collections.abc import Sequence

import pytest

from regbot.judge import judge
from regbot.records.config import Config
from regbot.records.run import Run
from regbot.records.session import SessionHeader
from regbot.records.verdict import Throughput
from support.stored_cases import ENVIRONMENT, NOISE, at, calibrated, header, reference, run_at
from support.timed_builder import HEADER, NODE, play, session_of

KNOWN = reference(noise=NOISE)


def throughput(runs: Sequence[Run], session_header: SessionHeader) -> Throughput:
    section = judge(session_of(runs, session_header), Config()).workloads[0].throughput
    assert section is not None
    return section


def test_a_harmless_change_passes_after_two_pairs_with_its_bound_and_says_why() -> None:
    session_header = header(KNOWN)
    runs = play(at(0.1), session_header)
    assert len(runs) == 2 + 4, "a warm launch of each arm and one block"
    section = throughput(runs, session_header)
    assert (section.status, section.decision, section.by, section.pairs) == ("PASS", "within_bound", "pairs", 2)
    assert section.class_noise == NOISE
    assert section.bound_pct is not None
    assert 0 < section.bound_pct < 2
    assert "slower than base" in section.reasons[0]
    assert "0.3% (39 degrees of freedom)" in section.reasons[1]
    assert play(at(0.1), session_header, runs=runs) == runs, "the session has ended"


@pytest.mark.parametrize(("head", "decision"), [(0.104, "regressed"), (0.096, "improved")])
def test_a_change_takes_as_many_pairs_as_it_needs(head: float, decision: str) -> None:
    session_header = header(KNOWN)
    runs = play(at(head), session_header)
    section = throughput(runs, session_header)
    assert (section.by, section.decision, section.class_noise) == ("pairs", decision, NOISE)
    assert len(section.tests[0].log_ratios) == section.pairs == (len(runs) - 2) / 2
    assert section.pairs >= (4 if decision == "regressed" else 2)
    assert throughput(runs[:6], session_header).decision in ("undecided", "improved"), "the first block fails nothing"


def test_a_reverted_gain_fails_although_head_is_like_the_stored_sessions() -> None:
    """Main became 5% faster after the sessions were stored, and head takes that back."""
    session_header = header(KNOWN)
    runs = play(at(0.1, base_s=0.095), session_header)
    assert throughput(runs, session_header).decision == "regressed"


OTHER_ENVIRONMENT = ENVIRONMENT.model_copy(update={"torch": "2.14.0"})
CONTRADICTED = calibrated(0.0).model_copy(update={"contradicted": "9 of 20 placebos were flagged"})


@pytest.mark.parametrize(
    ("session_header", "changes"),
    [
        (header(reference()), {}),
        (header(), {}),
        (header(KNOWN), {"environment": OTHER_ENVIRONMENT}),
        (header(KNOWN), {"node": NODE.model_copy(update={"node_class": "another processor, 2 cores"})}),
        (header(KNOWN.model_copy(update={"calibrated": CONTRADICTED})), {}),
        (header(KNOWN, head=HEADER.head.model_copy(update={"overrides": {"steps": 8}})), {}),
    ],
    ids=["few pairs stored", "nothing stored", "environment", "class", "no vote", "overrides"],
)
def test_without_a_known_noise_the_first_look_is_after_four_pairs(
    session_header: SessionHeader, changes: dict[str, object]
) -> None:
    runs = play(lambda slot: run_at(slot, 0.1 * (1 + 0.001 * slot.position.slot), **changes), session_header)
    assert len(runs) >= 2 + 8


def test_more_pairs_on_the_same_trees_join_those_of_the_first_block() -> None:
    session_header = header(KNOWN)
    first = [run.model_copy(update={"joined": "a" * 64}) for run in play(at(0.1), session_header)]
    pairs = [run for run in first if run.position and run.position.block]
    section = throughput(play(at(0.1), session_header, runs=pairs), session_header)
    assert section.decision in ("within_bound", "no_change")
    assert throughput(play(at(0.12), session_header, runs=pairs), session_header).decision == "regressed"


def test_a_pass_of_the_first_block_does_not_outlive_more_pairs_of_another_session() -> None:
    session_header = header(KNOWN)
    first = [run.model_copy(update={"joined": "d" * 64}) for run in play(at(0.1), session_header)]
    assert throughput(first, session_header).by == "pairs"
    one_block_later = play(at(0.104), session_header, runs=first)[: len(first) + 6]
    section = throughput(one_block_later, session_header)
    assert (section.status, section.decision, section.by) == ("INCONCLUSIVE", "undecided", "pairs")
