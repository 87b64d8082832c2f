"""A node's health before and during one run, of bounded size. None and [] mean unknown. A fault removes the run
from a comparison only if the code under test did not cause it (``Cause.outside``)."""

from typing import Annotated, Literal

from pydantic import Field

from regbot.records.base import Record
from regbot.records.ledger import Count, Message, Text

MAX_GPUS = 64
MAX_PROCESSES = 16
"""Largest number of processes per GPU that are listed by name."""
MAX_XIDS = 32

Share = Annotated[float, Field(ge=0, le=1)]
Bytes = Annotated[int, Field(ge=0, le=2**53)]
Megahertz = Annotated[float, Field(ge=0, le=1e6)]
Index = Annotated[int, Field(ge=0, le=4095)]

ClockReason = Literal[
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
"""Reason why a GPU does not run at its highest clock (nvmlClocksEventReasons of NVML), in the order of its bits."""

CauseKind = Literal["uncorrected_ecc", "xid", "other_process", "hardware_slowdown", "low_clock", "lost"]


class SampleRange(Record):
    """Lowest, median and highest sample of a run."""

    low: float
    median: float
    high: float


class GpuProcess(Record):
    """A process on a GPU. ``name`` is '' if the process is not visible, for example in another container."""

    pid: Annotated[int, Field(ge=0, le=2**32)]
    name: Text = ""


class GpuSnapshot(Record):
    """One GPU at one moment. ``reasons`` say why it does not run at its highest clock."""

    index: Index
    sm_mhz: Megahertz | None
    reasons: list[ClockReason]
    temperature_c: int | None
    used_bytes: Bytes | None = Field(description="of all processes, without the driver's own")
    processes: Annotated[list[GpuProcess], Field(max_length=MAX_PROCESSES)]


class CpuUsage(Record):
    """The cores available to the run, while it ran. Shares are fractions of the time of all these cores."""

    cores: Annotated[int, Field(ge=1, le=2**20)]
    own_s: Annotated[float, Field(ge=0, le=1e12)] = Field(description="CPU seconds of regbot and its processes")
    other_share: Share | None = Field(description="share of the cores' time that all other processes used")
    steal_share: Share | None = Field(description="share that the hypervisor gave to other machines")
    mhz: SampleRange | None = Field(description="clock of the fastest core of each sample")


class GpuUsage(Record):
    """One GPU of the run, while it ran. ``reasons`` say why it did not run at its highest clock."""

    index: Index
    name: Text
    uuid: Text
    sm_mhz: SampleRange | None
    sm_max_mhz: Megahertz | None = Field(description="the highest clock that can be set")
    samples: Count | None = Field(None, description="of clock, reasons, temperature and power")
    reasons: dict[ClockReason, Share] = Field(description="share of the samples that show the reason")
    temperature_max_c: int | None
    uncorrected_ecc: Count | None = Field(description="new memory errors during the run")
    xids: Annotated[list[Count], Field(max_length=MAX_XIDS)] = Field(description="errors that the driver reported")
    others: Annotated[list[GpuProcess], Field(max_length=MAX_PROCESSES)] = Field(description="processes of others")
    lost: bool = Field(False, description="whether the GPU stopped answering")


class NodeUsage(Record):
    """The node while the run ran."""

    samples: Count
    cpu: CpuUsage
    gpus: Annotated[list[GpuUsage], Field(max_length=MAX_GPUS)]


class Cause(Record):
    """Something that went wrong on the node during a run, such as a memory error of a GPU."""

    kind: CauseKind
    text: Message
    outside: bool = Field(description="the code under test did not cause it, so that the run is void")
    gpu: Index | None = Field(None, description="the GPU with the fault; None if it is no GPU's fault")


class Health(Record):
    """Health of a node around one run."""

    before: Annotated[list[GpuSnapshot], Field(max_length=MAX_GPUS)]
    during: NodeUsage
    causes: Annotated[list[Cause], Field(max_length=6 * MAX_GPUS)] = Field([])
