"""Every number of the section "Each decision by example" of the documentation, computed again."""

import math
import re
from pathlib import Path

import pytest

from regbot.records.calibration_summary import PairNoise
from regbot.stats.drift import cusum
from regbot.stats.paired import ClassNoise, SequentialTest, Thresholds, sequential_test, session_mde
from regbot.stats.prediction import stored_gate

TEXT = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text()
SECTION = TEXT[TEXT.index("## Each decision by example") :].split("\n## ")[0]
WORDS = " ".join(SECTION.split())
ROWS = {
    name: (values, interval, verdict)
    for name, values, interval, verdict in re.findall(r"^\| ([^|]+) \| ([-\d. ]+) \| (.+?) \| (.+?) \|$", SECTION, re.M)
}
THRESHOLDS = Thresholds.from_percent(2.0, 1.0)


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.\d+", text)]


def described(name: str) -> str:
    """Return the explanation of a decision below the table."""
    match = re.search(rf"- \*\*{name}\.\*\* (.*?)(?= - \*\*|$)", WORDS)
    assert match is not None
    return match[1]


def test_all_decisions_are_shown() -> None:
    assert list(ROWS) == ["PASS by class", "PASS by pairs", "FAIL", "INCONCLUSIVE", "withheld"]


@pytest.mark.parametrize("name", ROWS)
def test_the_pairs_give_the_interval_and_the_verdict(name: str) -> None:
    values, interval, verdict = ROWS[name]
    result = judged(name, [value / 100 for value in numbers(values)])
    bounds = result.tests["median"][1]
    assert f"{100 * bounds.low:.3f} to {100 * bounds.high:.3f}" == interval
    assert f"{result.decision} after {result.pairs} pairs" == verdict
    assert result.withheld == (name == "withheld")
    if name == "PASS by pairs":
        assert f"is {100 * math.expm1(bounds.high):.2f}%." in described(name)
    if name == "INCONCLUSIVE":
        assert f"a standard deviation of {100 * bounds.sd:.3f}." in described(name)
        detectable = math.expm1(session_mde([bounds], 12, THRESHOLDS.eps))
        assert f"a slowdown of {100 * detectable:.2f}% " in described(name)
    if name == "withheld":
        pairs = [outlier.pair for outlier in result.outliers]
        assert {outlier.arm for outlier in result.outliers} == {"head"}
        assert f"in pairs {pairs[0]} and {pairs[1]}," in described(name)


def judged(name: str, values: list[float]) -> SequentialTest:
    both = {"median": values, "mean": values}
    noise = None
    if name == "PASS by class":
        sd, df, difference = (float(number) for number in re.findall(r"[\d.]*\d", described(name))[:3])
        base = {key: [0.0, difference / 100] for key in both}
        noise = ClassNoise.from_record(PairNoise(df=int(df), median_sd=sd / 100, mean_sd=sd / 100), base)
    result = sequential_test(both, 2, THRESHOLDS, noise=noise)
    assert result is not None
    return result


def test_the_stored_gate_gives_its_interval() -> None:
    words = described("The stored gate")
    *stored, head, low, high = numbers(words)
    levels = [math.log(milliseconds) for milliseconds in stored]
    decision, tests = stored_gate(
        {"median": levels, "mean": levels},
        dict.fromkeys(("median", "mean"), math.log(head)),
        2,
        THRESHOLDS,
        math.log(1.05),
    )
    bounds = tests["median"][1]
    assert (f"{100 * bounds.low:.3f}", f"{100 * bounds.high:.3f}") == (f"{low:.3f}", f"{high:.3f}")
    assert f": {decision}, against the last {len(stored)} sessions" in words


def test_the_nights_raise_the_alarm_of_creep() -> None:
    words = described("Creep")
    sd, *nights = numbers(words[: words.index("slower than")])
    assert len(nights) == 10
    means = [(night / 100, 4) for night in nights]
    *_, before, result = cusum(means, sd / 100, series=2)
    assert (before.alarm, result.alarm) == (False, True)
    assert f"The sum reaches {result.value / result.limit * (8 + math.log(2)):.2f}" in words
    assert f"the limit is {8 + math.log(2):.2f}" in words
    assert result.estimate is not None
    assert f"by {100 * result.estimate:.2f} since night {result.since}," in words
