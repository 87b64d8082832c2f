"""Preflight: before anything runs, find conflicts in a resolved configuration, and give advice on dispatchers with the
date of its source.
"""

from regbot.preflight.advice import Advice, find_advice
from regbot.preflight.dump import Dump, read_dump
from regbot.preflight.facts import facts_of_run, unknown_hardware
from regbot.preflight.page import preflight_page
from regbot.preflight.rules import Conflict, find_conflicts

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
