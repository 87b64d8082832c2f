"""Kineto trace."""

from regbot.ledgers.readers.source import Source
from regbot.records.ledger import Ledger

NAME = "kineto"
TITLE = "Kineto trace"


def recognises(head: bytes) -> bool:
    return False


def read(source: Source) -> Ledger:
    raise source.error("not read yet")
