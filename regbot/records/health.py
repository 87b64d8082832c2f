"""The health of a node around one run: before it, during it and after it, as a summary that is small whatever the run.

Facts as the trusted side read them from the system and from NVML; None and [] where they are not known. ``causes`` is
what they show to be wrong with the run; only a cause from outside the arm takes a run out of a comparison.
"""

from typing import Annotated, Literal

from pydantic import Field

from regbot.records.base import Record
from regbot.records.ledger import Count, Message, Text

MAX_GPUS = 64
MAX_PROCESSES = 16
"""Of each GPU; more are counted and not named."""
MAX_XIDS = 32

Share = Annotated[float, Field(ge=0, le=1)]
Bytes = Annotated[int, Field(ge=0, le=2**53)]
Megahertz = Annotated[float, Field(ge=0, le=1e6)]
Index = Annotated[int, Field(ge=0, le=4095)]

Reason = Literal[
    "idle",
    "application_clocks",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
    "display_clocks",
    "board_limit",
    "reliability",
]
"""Why a GPU does not run at its highest clock, as NVML tells it (nvmlClocksEventReasons)."""

CauseKind = Literal["uncorrected_ecc", "xid", "other_process", "hardware_slowdown", "low_clock", "lost"]


class Span(Record):
    """Lowest, median and highest of the samples of a run."""

    low: float
    median: float
    high: float


class GpuProcess(Record):
    """A process on a GPU. ``name`` is '' where it cannot be seen, as from another container."""

    pid: Annotated[int, Field(ge=0, le=2**32)]
    name: Text = ""


class CpuMoment(Record):
    """The processors at one moment."""

    load: Annotated[float, Field(ge=0, le=1e9)] | None = Field(description="load average of the last minute")
    free_bytes: Bytes | None = Field(description="memory that could be had without swapping")


class GpuMoment(Record):
    """One GPU at one moment."""

    index: Index
    sm_mhz: Megahertz | None
    reasons: list[Reason]
    temperature_c: int | None
    power_w: Annotated[float, Field(ge=0, le=1e6)] | None
    used_bytes: Bytes | None = Field(description="memory of all its processes, without what the driver reserves")
    processes: Annotated[list[GpuProcess], Field(max_length=MAX_PROCESSES)]


class Moment(Record):
    """The node at one moment."""

    cpu: CpuMoment
    gpus: Annotated[list[GpuMoment], Field(max_length=MAX_GPUS)]


class CpuDuring(Record):
    """The cores that the run may use, while it ran. Shares are of the time of all these cores together."""

    cores: Annotated[int, Field(ge=1, le=2**20)]
    own_s: Annotated[float, Field(ge=0, le=1e12)] = Field(
        description="CPU seconds of regbot and of all that it started, the run's processes and their descendants"
    )
    other_share: Share | None = Field(description="CPU time of everything else")
    steal_share: Share | None = Field(description="taken by the hypervisor for other machines")
    load_high: Annotated[float, Field(ge=0, le=1e9)] | None = Field(description="highest load average of a minute")
    mhz: Span | None = Field(description="clock of the fastest core of each sample")
    free_low_bytes: Bytes | None = Field(description="least memory that could be had without swapping")


class GpuDuring(Record):
    """One GPU of the run, while it ran."""

    index: Index
    name: Text
    uuid: Text
    sm_mhz: Span | None
    sm_max_mhz: Megahertz | None = Field(description="the highest that this GPU can be set to")
    reasons: dict[Reason, Share] = Field(description="share of the samples that show the reason")
    temperature_max_c: int | None
    power_w: Span | None
    power_limit_w: Annotated[float, Field(ge=0, le=1e6)] | None
    uncorrected_ecc: Count | None = Field(description="memory errors that were added during the run")
    xids: Annotated[list[Count], Field(max_length=MAX_XIDS)] = Field(description="errors that the driver reported")
    others: Annotated[list[GpuProcess], Field(max_length=MAX_PROCESSES)] = Field(
        description="processes seen during the run that are none of its own"
    )
    unplaced: Count = Field(
        default=0, description="processes whose number is of another namespace: the run's own, or not"
    )
    lost: bool = Field(default=False, description="it stopped answering")


class During(Record):
    """The node while the run ran."""

    seconds: Annotated[float, Field(ge=0, le=1e9)]
    samples: Count
    cpu: CpuDuring
    gpus: Annotated[list[GpuDuring], Field(max_length=MAX_GPUS)]


class Cause(Record):
    """Something wrong with a run. ``outside``: not the doing of the code under test, so the run shows nothing of it."""

    kind: CauseKind
    text: Message
    outside: bool
    gpu: Index | None = None


class Health(Record):
    """What is known of a node's health around one run."""

    before: Moment
    during: During
    after: Moment
    causes: Annotated[list[Cause], Field(max_length=6 * MAX_GPUS)] = Field(default_factory=list)
