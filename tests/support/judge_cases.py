"""Shared by the tests of judge and others."""

from support.ledger_builder import (
    smoke_arm,
    smoke_ledger,
)

BASE, HEAD = smoke_arm("base"), smoke_arm("head")


A2A, GATHERED = smoke_ledger(), smoke_ledger(dispatcher="allgather", program="b" * 64)
