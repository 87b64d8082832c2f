"""Shadow mode: checks that never block, and a scoreboard that compares their results with later outcomes."""

from regbot.shadow.entries import BLOCKING, load_checks, load_checks_of_commit, record_check, settle_commit
from regbot.shadow.scoreboard import compute_scoreboard

__all__ = ["BLOCKING", "compute_scoreboard", "load_checks", "load_checks_of_commit", "record_check", "settle_commit"]
