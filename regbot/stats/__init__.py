"""Statistics of step times: pure functions on numbers. No files, no records, no words for people."""

from regbot.stats.paired import (
    LOOK_ALPHA,
    LOOKS,
    Interval,
    Sequential,
    Thresholds,
    combine,
    decide,
    interval,
    mde,
    pairs_needed,
    sequential,
)
from regbot.stats.summary import Summaries, summarise
from regbot.stats.unpaired import Difference, welch

__all__ = [
    "LOOKS",
    "LOOK_ALPHA",
    "Difference",
    "Interval",
    "Sequential",
    "Summaries",
    "Thresholds",
    "combine",
    "decide",
    "interval",
    "mde",
    "pairs_needed",
    "sequential",
    "summarise",
    "welch",
]
