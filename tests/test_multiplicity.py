"""Secondary metrics: the test against scipy's, the adjustment by hand, and how often it is wrong."""

import math
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from regbot.stats import SECONDARY_Q, secondary

VALUES = st.lists(st.floats(-0.5, 0.5).map(lambda value: round(value, 6)), min_size=2, max_size=24)


class TestOneMetric:
    @given(VALUES.filter(lambda values: len(set(values)) > 1))
    def test_p_is_that_of_scipys_t_test(self, values: list[float]) -> None:
        (found,) = secondary({"memory": values})
        assert found.p == pytest.approx(float(stats.ttest_1samp(values, 0).pvalue), rel=1e-6, abs=1e-12)
        assert found.p_adjusted == pytest.approx(found.p)  # the only one needs no adjustment
        assert found.estimate == pytest.approx(math.fsum(values) / len(values))

    def test_the_same_change_in_all_pairs_is_certain_and_none_is_none(self) -> None:
        memory, same = secondary({"memory": [0.1, 0.1, 0.1], "same": [0.0, 0.0, 0.0]})
        assert memory.estimate == pytest.approx(0.1)
        assert (memory.p, memory.significant) == (0.0, True)
        assert (same.estimate, same.p, same.significant) == (0.0, 1.0, False)

    def test_fewer_than_two_pairs_show_nothing(self) -> None:
        one, none = secondary({"one": [5.0], "none": []})
        assert (one.estimate, one.p, one.significant) == (5.0, 1.0, False)
        assert (none.estimate, none.p, none.significant) == (0.0, 1.0, False)

    @pytest.mark.parametrize("values", [[math.nan], [0.0, math.inf], [0.0, 0.1, math.nan]])
    def test_what_is_not_finite_is_refused(self, values: list[float]) -> None:
        with pytest.raises(ValueError, match="not finite"):
            secondary({"memory": values})


class TestSeveral:
    def test_adjusted_by_hand(self) -> None:
        """Benjamini and Yekutieli: the i-th smallest p of m, times m (1 + 1/2 + ... + 1/m) / i, never falling."""
        metrics = {str(shift): [shift + 0.01 * step for step in (-2, -1, 0, 1, 2)] for shift in (0.05, 0.0, 0.02, 0.03)}
        found = {each.name: each for each in secondary(metrics)}
        ordered = sorted(found.values(), key=lambda each: each.p)
        raw = [each.p * 4 * (1 + 1 / 2 + 1 / 3 + 1 / 4) / rank for rank, each in enumerate(ordered, start=1)]
        expected = [min(1.0, *raw[index:]) for index in range(4)]
        assert [each.p_adjusted for each in ordered] == pytest.approx(expected)
        assert [each.name for each in ordered] == ["0.05", "0.03", "0.02", "0.0"]

    def test_come_in_the_order_given_and_none_gives_none(self) -> None:
        names = ["waits", "memory", "allocations"]
        assert [each.name for each in secondary({name: [0.0, 0.1] for name in names})] == names
        assert secondary({}) == []

    def test_a_difference_among_many_that_show_nothing_counts_for_less(self) -> None:
        change = [0.010, 0.013, 0.004, 0.012, 0.002, 0.009]
        (alone,) = secondary({"memory": change})
        still = {f"still {i}": [0.01, -0.01, 0.01, -0.01, 0.01, -0.01] for i in range(19)}
        among = secondary({"memory": change, **still})[0]
        assert alone.p == among.p < SECONDARY_Q
        assert alone.significant
        assert not among.significant

    def test_significant_means_at_most_five_percent(self) -> None:
        metrics = {str(i): [0.001 * i + 0.01 * step for step in (-2, -1, 0, 1, 2)] for i in range(0, 60, 3)}
        found = secondary(metrics)
        assert {each.significant for each in found} == {True, False}
        assert all(each.significant == (each.p_adjusted <= 0.05) for each in found)

    def test_of_metrics_that_hang_together_and_do_not_change_one_is_named_in_few_checks(self) -> None:
        """Without the adjustment something is named in 4 of 10 checks."""
        generator = random.Random(1)
        checks, named, unadjusted = 300, 0, 0
        for _ in range(checks):
            common = [generator.gauss(0, 1) for _ in range(12)]
            metrics = {str(i): [each + generator.gauss(0, 1) for each in common] for i in range(20)}
            found = secondary(metrics)
            named += any(each.significant for each in found)
            unadjusted += any(each.p <= SECONDARY_Q for each in found)
        assert named / checks <= SECONDARY_Q
        assert unadjusted / checks > 0.3


def test_the_example_of_the_documentation_is_right() -> None:
    text = (Path(__file__).parents[1] / "docs" / "statistics.md").read_text()
    section = text[text.index("## Several metrics") : text.index("## Calibration")]
    rows = re.findall(r"^\| [a-z -]+ \| (0\.\d{4}) \| (0\.\d{4}) \| (yes|no) \|$", section, re.MULTILINE)
    assert len(rows) == 4
    adjusted = stats.false_discovery_control([float(p) for p, _, _ in rows], method="by")
    assert [f"{each:.4f}" for each in adjusted] == [shown for _, shown, _ in rows]
    assert ["yes" if each <= SECONDARY_Q else "no" for each in adjusted] == [named for _, _, named in rows]
