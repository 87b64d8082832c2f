"""Helpers for text that people read: clipping, safe printing, units, tables, wrapping and progress messages."""
