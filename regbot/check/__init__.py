"""Checks of two commits, verdicts from stored sessions, single runs, single traces, and preflight."""
