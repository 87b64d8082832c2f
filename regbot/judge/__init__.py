"""Records -> verdict: pure, deterministic, no I/O. Everything is computed again from what was recorded."""

from regbot.judge.expect import Expectation, ExpectationError, parse_expectation
from regbot.judge.judge import judge
from regbot.judge.sharding import NotComparable, judge_ledgers

__all__ = ["Expectation", "ExpectationError", "NotComparable", "judge", "judge_ledgers", "parse_expectation"]
