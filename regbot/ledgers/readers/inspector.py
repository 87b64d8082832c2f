"""NCCL Inspector JSON lines."""

from regbot.ledgers.readers.source import Source
from regbot.records.ledger import Ledger

NAME = "nccl-inspector"
TITLE = "NCCL Inspector JSON lines"


def recognises(head: bytes) -> bool:
    return False


def read(source: Source) -> Ledger:
    raise source.error("not read yet")
