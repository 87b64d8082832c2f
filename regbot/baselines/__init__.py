"""Stored references: sessions and ledgers of each workload, node class and environment, and the anchor.

``store`` reads and writes the files. ``intake`` selects which parts of a session are stored. ``query`` selects
comparable sessions for a run, ``history`` shows the trend of the sessions, and ``verify`` checks the store. The judge
makes the decisions, not this package.
"""

from regbot.baselines.intake import Intake, environment_of, node_class_of
from regbot.baselines.store import BaselineError, Store
from regbot.baselines.verify import verify

__all__ = [
    "BaselineError",
    "Intake",
    "Store",
    "environment_of",
    "node_class_of",
    "verify",
]
