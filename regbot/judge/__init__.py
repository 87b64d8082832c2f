"""The judge: compute a verdict from records. It is deterministic and does no I/O. Every number is computed from the
records."""

from regbot.judge.expectations import Expectation, ExpectationError, parse_expectation
from regbot.judge.judge import judge
from regbot.judge.sharding import judge_ledgers

__all__ = ["Expectation", "ExpectationError", "judge", "judge_ledgers", "parse_expectation"]
