"""Stored references: sessions and ledgers of each workload, node class and environment, and the anchor."""

from regbot.baselines.intake import Intake, environment_of, node_class_of
from regbot.baselines.store import BaselineError, Store
from regbot.baselines.verify import verify

__all__ = ["BaselineError", "Intake", "Store", "environment_of", "node_class_of", "verify"]
