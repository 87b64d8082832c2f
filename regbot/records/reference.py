"""What a check holds a pull request against besides its base: stored sessions and calibrations, looked up beforehand.

They stand in the header of the session, so that the verdict can be computed again from one file. All environments of
the node class are there; which of them is the pull request's is known when its first run has ended.
"""

from typing import Annotated

from pydantic import Field

from regbot.records.base import Record
from regbot.records.baseline import EnvironmentKey
from regbot.records.calibrated import Calibrated
from regbot.records.ledger import Digest, Message, Text
from regbot.records.run import Bytes, Clock


class StoredSession(Record):
    """One stored session as the screen takes it: the log summaries of its first runs, in session order."""

    session: Digest
    measured: Text
    commit: Text
    node: Text | None = Field(default=None, description="name of the machine; None if unknown")
    log_median: list[float]
    log_mean: list[float]


class Reference(Record):
    """Stored sessions of one node class and environment, oldest first, timed on the terms of the check."""

    node_class: Text
    environment: EnvironmentKey
    clock: Clock
    executed: Text | None = Field(description="dispatcher of the newest session; None where it does not show")
    sessions: Annotated[list[StoredSession], Field(max_length=1000)]
    loss: list[list[float | None]] = Field(default_factory=list, description="of the newest session's first runs")
    dropped_tokens: Bytes | None = Field(default=None, description="by the newest session; None if unknown")
    run_s: float | None = Field(default=None, description="seconds of one launch, median; None if unknown")
    calibrated: Calibrated | None = None
    warnings: list[Message] = Field(default_factory=list)
