"""Stored references: sessions and ledgers of each workload, node class and environment, and the anchor.

A *group* is the folder of one workload, node class and environment in the store. ``store`` reads and writes the files,
and ``index`` finds them. ``intake`` selects which parts of a session are stored. ``query`` selects comparable sessions
for a run, ``history`` shows the trend of the sessions, and ``verify`` checks the store. The judge makes the decisions,
not this package.
"""

from regbot.baselines.intake import Intake, environment_of, node_class_of
from regbot.baselines.query import ReferenceQuery, RollingReference, load_rolling_reference
from regbot.baselines.store import BaselineError, Store
from regbot.baselines.verify import verify

__all__ = [
    "BaselineError",
    "Intake",
    "ReferenceQuery",
    "RollingReference",
    "Store",
    "environment_of",
    "load_rolling_reference",
    "node_class_of",
    "verify",
]
