"""Stored sessions and calibrations that a check compares its own runs with. The header of its session file has those of
all environments of the node class, because the environment is known only after the first run."""

from typing import Annotated

from pydantic import Field

from regbot.records.base import Record
from regbot.records.baseline import EnvironmentKey
from regbot.records.calibration_summary import CalibrationSummary, PairNoise
from regbot.records.ledger import Digest, Message, Text
from regbot.records.run import Bytes, Clock


class StoredSession(Record):
    """Step times of one stored session of main, for ``gate = "stored"``."""

    session: Digest = Field(description="identity of the session")
    measured: Text = Field(description="when the session began, UTC")
    commit: Text = Field(description="commit that was measured")
    node: Text | None = Field(None, description="name of the machine; None if unknown")
    log_median: list[float] = Field(description="log of the median step time in seconds, of each of the first runs")
    log_mean: list[float] = Field(description="log of the mean step time in seconds, of the same runs")


class Reference(Record):
    """Stored sessions of one node class and environment, oldest first, timed on the same terms as the check."""

    node_class: Text
    environment: EnvironmentKey
    clock: Clock
    executed: Text | None = Field(description="dispatcher that the newest session executed; None if unknown")
    sessions: Annotated[list[StoredSession], Field(max_length=1000)]
    loss: list[list[float | None]] = Field([], description="of the newest session's first runs, as [runs][steps]")
    dropped_tokens: Bytes | None = Field(None, description="of the newest session in a step; None if unknown")
    run_s: float | None = Field(None, description="median seconds of one launch; None if unknown")
    calibrated: CalibrationSummary | None = Field(None, description="calibration in this environment")
    noise: PairNoise | None = Field(None, description="noise of a pair; None if few pairs are stored")
    warnings: list[Message] = Field([])
