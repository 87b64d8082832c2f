"""Nsight Systems sqlite export."""

from regbot.ledgers.readers.source import Source
from regbot.records.ledger import Ledger

NAME = "nsys"
TITLE = "Nsight Systems sqlite export"


def recognises(head: bytes) -> bool:
    return False


def read(source: Source) -> Ledger:
    raise source.error("not read yet")
