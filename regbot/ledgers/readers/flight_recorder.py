"""Flight Recorder dump as JSON."""

from regbot.ledgers.readers.source import Source
from regbot.records.ledger import Ledger

NAME = "flight-recorder"
TITLE = "Flight Recorder dump as JSON"


def recognises(head: bytes) -> bool:
    return False


def read(source: Source) -> Ledger:
    raise source.error("not read yet")
