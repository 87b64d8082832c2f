"""XLA optimized HLO text."""

from regbot.ledgers.readers.source import Source
from regbot.records.ledger import Ledger

NAME = "hlo"
TITLE = "XLA optimized HLO text"


def recognises(head: bytes) -> bool:
    return False


def read(source: Source) -> Ledger:
    raise source.error("not read yet")
