"""Ledgers of collectives: readers of trace files, comparison of two ledgers, named patterns, wire-time model.

The subpackage ``readers`` reads files. All other modules are pure functions on records, without I/O. No module here
uses git or torch.
"""
