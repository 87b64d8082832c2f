"""Every number of the section "Each decision by example" of the documentation, computed again."""

import math
import re
from pathlib import Path

import pytest

from regbot.records.calibration_summary import PairNoise
from regbot.stats.drift import cusum
from regbot.stats.look0 import look0
from regbot.stats.paired import SequentialTest, Thresholds, sequential_test, session_mde
from regbot.stats.prediction import stored_gate
from support.step_files import verdict_of, write_runs

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
    assert list(ROWS) == ["PASS by look 0", "PASS by pairs", "FAIL", "INCONCLUSIVE", "withheld"]


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
        pairs = [outlier.pair + 1 for outlier in result.outliers]
        assert {outlier.arm for outlier in result.outliers} == {"head"}
        assert f"in pairs {pairs[0]} and {pairs[1]}," in described(name)


def judged(name: str, values: list[float]) -> SequentialTest:
    both = {"median": values, "mean": values}
    if name == "PASS by look 0":
        sd, df = re.findall(r"[\d.]*\d", described(name))[:2]
        return look0(both, PairNoise(df=int(df), median_sd=float(sd) / 100, mean_sd=float(sd) / 100), 2, THRESHOLDS)
    result = sequential_test(both, 2, THRESHOLDS)
    assert result is not None
    return result


def test_a_step_that_was_not_measured_is_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base, head = write_runs("b", 4), write_runs("h", 4)
    steps = re.search(r"of head of (.*?) seconds", described("INVALID"))
    assert steps is not None
    rows = re.findall(r"nan|\d+\.\d+", steps[1])
    Path(head[0]).write_text("step,step_s\n" + "".join(f"{step},{seconds}\n" for step, seconds in enumerate(rows)))
    verdict = verdict_of(base, head, "--paired")
    assert verdict.verdict == "INVALID"
    (step,) = (index for index, seconds in enumerate(rows) if seconds == "nan")
    assert f"step {step} took nan s" in described("INVALID")
    assert f"step {step} took nan s: " in verdict.workloads[0].validity.reasons[0]


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
    before, result = (cusum(used, sd / 100, series=2) for used in (means[:-1], means))
    assert (before.alarm, result.alarm) == (False, True)
    assert f"The sum reaches {result.value / result.limit * (8 + math.log(2)):.2f}" in words
    assert f"the limit is {8 + math.log(2):.2f}" in words
    assert result.estimate is not None
    assert f"by {100 * result.estimate:.2f} since night {result.since}," in words
