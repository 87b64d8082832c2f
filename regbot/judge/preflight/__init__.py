"""Preflight: before anything runs, find conflicts in a resolved configuration, and give advice on dispatchers with the
date of its source.
"""

from regbot.judge.preflight.dump import Dump, read_dump
from regbot.judge.preflight.facts import facts_of_run, unknown_hardware
from regbot.judge.preflight.page import preflight_page
from regbot.judge.preflight.rules import Advice, Conflict, find_advice, find_conflicts

__all__ = [
    "Advice",
    "Conflict",
    "Dump",
    "facts_of_run",
    "find_advice",
    "find_conflicts",
    "preflight_page",
    "read_dump",
    "unknown_hardware",
]
