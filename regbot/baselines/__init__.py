"""Stored references: sessions and ledgers of each workload, node class and environment, and the anchor.

``store`` keeps them and ``index`` finds them, ``intake`` tells what of a session is stored, ``query`` which stored
sessions a run may be held against, ``history`` how they went, ``verify`` whether the store is what it says. What is
decided from them is none of its business.
"""

from regbot.baselines.intake import Intake, class_of, environment_of
from regbot.baselines.query import Asked, Difference, Refusal, Rolling, StoredLedger, rolling, stored_ledger
from regbot.baselines.store import BaselineError, Store
from regbot.baselines.verify import verify

__all__ = [
    "Asked",
    "BaselineError",
    "Difference",
    "Intake",
    "Refusal",
    "Rolling",
    "Store",
    "StoredLedger",
    "class_of",
    "environment_of",
    "rolling",
    "stored_ledger",
    "verify",
]
