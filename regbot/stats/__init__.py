"""Statistics of step times: pure functions on numbers. No files, no records, no words for people.

``anytime.anytime`` and ``screen.screen`` have the names of their modules and are imported from there: here they would
hide the modules.
"""

from regbot.stats.anytime import ANYTIME_ALPHA, decide_anytime
from regbot.stats.calibration import (
    Rate,
    Resampled,
    contradicted,
    rate_bounds,
    resampled,
    scatter,
    upper_bound,
)
from regbot.stats.multiplicity import SECONDARY_Q, Secondary, secondary
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
from regbot.stats.screen import (
    LEAST_SESSIONS,
    SCREEN_ALPHA,
    SCREEN_RUNS,
    Prediction,
    Screened,
    level,
    prediction,
    stored_gate,
)
from regbot.stats.summary import Summaries, summarise
from regbot.stats.unpaired import Difference, welch

__all__ = [
    "ANYTIME_ALPHA",
    "LEAST_SESSIONS",
    "LOOKS",
    "LOOK_ALPHA",
    "SCREEN_ALPHA",
    "SCREEN_RUNS",
    "SECONDARY_Q",
    "Difference",
    "Interval",
    "Prediction",
    "Rate",
    "Resampled",
    "Screened",
    "Secondary",
    "Sequential",
    "Summaries",
    "Thresholds",
    "combine",
    "contradicted",
    "decide",
    "decide_anytime",
    "interval",
    "level",
    "mde",
    "pairs_needed",
    "prediction",
    "rate_bounds",
    "resampled",
    "scatter",
    "secondary",
    "sequential",
    "stored_gate",
    "summarise",
    "upper_bound",
    "welch",
]
