"""Ledgers of collectives: readers of trace files, comparison of two ledgers, named patterns, wire-time model. Only
``readers`` does I/O."""
