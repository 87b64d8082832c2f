"""Records: what regbot stores or lets cross a trust boundary. Strict, versioned, without NaN."""

from regbot.records.files import RecordError
from regbot.records.ledger import Entry, Ledger
from regbot.records.run import Arm, RawRun, Run
from regbot.records.session import Session, SessionHeader
from regbot.records.verdict import EXIT_CODES, Verdict

__all__ = [
    "EXIT_CODES",
    "Arm",
    "Entry",
    "Ledger",
    "RawRun",
    "RecordError",
    "Run",
    "Session",
    "SessionHeader",
    "Verdict",
]
