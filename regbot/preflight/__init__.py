"""Preflight: conflicts of a resolved configuration, and dated advice on dispatchers, before anything runs."""

from regbot.preflight.advice import Advice, advice
from regbot.preflight.dump import Dump, read_dump
from regbot.preflight.facts import Facts, facts_of, unknown_hardware
from regbot.preflight.page import preflight_page
from regbot.preflight.rules import Conflict, Rule, RuleError, conflicts

__all__ = [
    "Advice",
    "Conflict",
    "Dump",
    "Facts",
    "Rule",
    "RuleError",
    "advice",
    "conflicts",
    "facts_of",
    "preflight_page",
    "read_dump",
    "unknown_hardware",
]
