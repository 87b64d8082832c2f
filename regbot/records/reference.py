"""Stored sessions and calibrations that a check uses besides the base of the pull request.

The header of the check's session file contains them, so that the verdict can be computed again from that one file. The
header has the stored sessions of all environments of the node class, because the environment of the pull request is
known only after its first run.
"""

from typing import Annotated

from pydantic import Field

from regbot.records.base import Record
from regbot.records.baseline import EnvironmentKey
from regbot.records.calibration_summary import CalibrationSummary, PairNoise
from regbot.records.ledger import Digest, Message, Text
from regbot.records.run import Bytes, Clock


class StoredSession(Record):
    """One stored session as ``gate = "stored"`` uses it: log summaries of its first runs, in session order."""

    session: Digest
    measured: Text
    commit: Text
    node: Text | None = Field(default=None, description="name of the machine; None if unknown")
    log_median: list[float]
    log_mean: list[float]


class Reference(Record):
    """Stored sessions of one node class and environment, oldest first, timed on the same terms as the check."""

    node_class: Text
    environment: EnvironmentKey
    clock: Clock
    executed: Text | None = Field(description="dispatcher of the newest session; None if unknown")
    sessions: Annotated[list[StoredSession], Field(max_length=1000)]
    loss: list[list[float | None]] = Field(default_factory=list, description="of the newest session's first runs")
    dropped_tokens: Bytes | None = Field(default=None, description="by the newest session; None if unknown")
    run_s: float | None = Field(default=None, description="seconds of one launch, median; None if unknown")
    calibrated: CalibrationSummary | None = None
    noise: PairNoise | None = Field(
        default=None,
        description="noise of a pair, for look 0; None if too few pairs are stored, or before look 0 existed",
    )
    warnings: list[Message] = Field(default_factory=list)
