"""Secondary metrics: the test compared with scipy's, the adjustment by hand, and its error rate."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from regbot.stats.multiplicity import analyse_secondary_metrics

VALUES = st.lists(st.floats(-0.5, 0.5).map(lambda value: round(value, 6)), min_size=2, max_size=24)


class TestOneMetric:
    @given(VALUES.filter(lambda values: len(set(values)) > 1))
    def test_p_is_that_of_scipys_t_test(self, values: list[float]) -> None:
        (results,) = analyse_secondary_metrics({"memory": values})
        assert results.p == pytest.approx(float(stats.ttest_1samp(values, 0).pvalue), rel=1e-6, abs=1e-12)
        assert results.p_adjusted == pytest.approx(results.p)  # the only one needs no adjustment
        assert results.estimate == pytest.approx(math.fsum(values) / len(values))

    def test_equal_nonzero_pairs_have_p_0_and_zeros_have_p_1(self) -> None:
        memory, same = analyse_secondary_metrics({"memory": [0.1, 0.1, 0.1], "same": [0.0, 0.0, 0.0]})
        assert memory.estimate == pytest.approx(0.1)
        assert (memory.p, memory.significant) == (0.0, True)
        assert (same.estimate, same.p, same.significant) == (0.0, 1.0, False)


class TestSeveral:
    def test_adjusted_by_hand(self) -> None:
        """Benjamini and Yekutieli: the i-th smallest p of m, times m (1 + 1/2 + ... + 1/m) / i, made monotonic."""
        metrics = {str(shift): [shift + 0.01 * step for step in (-2, -1, 0, 1, 2)] for shift in (0.05, 0.0, 0.02, 0.03)}
        results = {metric.name: metric for metric in analyse_secondary_metrics(metrics)}
        ordered = sorted(results.values(), key=lambda metric: metric.p)
        raw = [metric.p * 4 * (1 + 1 / 2 + 1 / 3 + 1 / 4) / rank for rank, metric in enumerate(ordered, start=1)]
        expected = [min(1.0, *raw[index:]) for index in range(4)]
        assert [metric.p_adjusted for metric in ordered] == pytest.approx(expected)
        assert [metric.name for metric in ordered] == ["0.05", "0.03", "0.02", "0.0"]
