"""Shadow mode: checks that never block, and a scoreboard of what they would have said against what was true."""

from regbot.shadow.entries import BLOCKING, DEFAULT_FOLDER, checks, of_commit, record, settle
from regbot.shadow.scoreboard import scoreboard

__all__ = ["BLOCKING", "DEFAULT_FOLDER", "checks", "of_commit", "record", "scoreboard", "settle"]
