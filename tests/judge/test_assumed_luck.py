"""Sessions on a node class where no calibration knows the luck of an arm."""

import pytest

from regbot.baselines.intake import environment_of, node_class_of
from regbot.judge import judge
from regbot.records.calibration_summary import CalibrationSummary
from regbot.records.config import Config
from regbot.records.reference import Reference
from regbot.records.session import SessionHeader
from regbot.records.verdict import Throughput
from regbot.report.throughput import LUCK_UNKNOWN, describe_undecided
from regbot.stats.arm_luck import ASSUMED_LUCK
from support.stored_cases import calibrated
from support.timed_builder import HEADER, PLAN, noisy, play, session_of, slot

RUN = noisy(1.0, 0.001)(slot(1, 0, "base"))


def planned(*calibrations: CalibrationSummary) -> SessionHeader:
    """Return a header whose plan has these calibrations of this node class."""
    references = [
        Reference(
            node_class=node_class_of(RUN),
            environment=environment_of(RUN),
            clock="perf_counter",
            executed=None,
            sessions=[],
            calibrated=calibration,
        )
        for calibration in calibrations
    ]
    plan = PLAN.model_copy(update={"fresh_caches": True, "references": references})
    return HEADER.model_copy(update={"timed": [plan]})


OLD_CALIBRATION = planned(calibrated(0.0).model_copy(update={"arm_luck": None}))


def section_of(head: float, header: SessionHeader, sd: float = 0.002) -> Throughput:
    section = judge(session_of(play(noisy(head, sd), header), header), Config()).workloads[0].throughput
    assert section is not None
    return section


@pytest.mark.parametrize("header", [planned(), OLD_CALIBRATION], ids=["no calibration", "an old calibration"])
def test_the_interval_contains_an_assumed_luck_where_no_calibration_knows_it(header: SessionHeader) -> None:
    section = section_of(1.018, header)
    assert (section.decision, section.pairs, section.decision_without_luck) == ("undecided", 12, "regressed")
    assert section.assumed_luck_pct == 100 * ASSUMED_LUCK
    (reason,) = [text for text in section.reasons if "autotuned" in text]
    assert "assumes that it changes the speed of an arm by 0.4% (standard deviation)" in reason
    assert "'regbot calibrate'" in reason
    assert describe_undecided(section) == f"head was slower, but recompiling alone may explain it {LUCK_UNKNOWN}"


def test_luck_is_assumed_until_it_was_measured_on_enough_days() -> None:
    section = section_of(1.018, planned(calibrated(0.0, allocations=9)))
    assert (section.decision_without_luck, section.assumed_luck_pct) == ("regressed", 100 * ASSUMED_LUCK)
    section = section_of(1.018, planned(calibrated(0.5, allocations=9, lasts=True)))
    assert (section.decision, section.assumed_luck_pct) == ("undecided", 0.0)
    assert any("which lasts for a session: it changes the estimate" in reason for reason in section.reasons)


@pytest.mark.parametrize(("head", "decision"), [(1.0, "within_bound"), (1.03, "regressed"), (0.97, "improved")])
def test_a_clear_answer_does_not_need_a_calibration_and_says_that_luck_is_assumed(head: float, decision: str) -> None:
    section = section_of(head, planned())
    assert (section.decision, section.decision_without_luck) == (decision, None)
    assert any("autotuned" in text for text in section.reasons)
