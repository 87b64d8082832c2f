"""Health records made of a few numbers: what a monitor would have seen of a run."""

from collections.abc import Mapping, Sequence

from regbot.engines.health.causes import find_causes
from regbot.records.health import (
    ClockReason,
    CpuUsage,
    GpuSnapshot,
    GpuUsage,
    Health,
    NodeUsage,
    SampleRange,
)


def gpu(
    index: int = 0, mhz: float = 1755, reasons: Mapping[ClockReason, float] | None = None, **changes: object
) -> GpuUsage:
    """A healthy H100 that is busy."""
    made = GpuUsage(
        index=index,
        name="NVIDIA H100 80GB HBM3",
        uuid=f"GPU-{index}",
        sm_mhz=SampleRange(low=mhz - 60, median=mhz - 30, high=mhz),
        sm_max_mhz=1980,
        reasons=dict(reasons or {}),
        temperature_max_c=61,
        uncorrected_ecc=0,
        xids=[],
        others=[],
    )
    return made.model_copy(update=changes)


def idle(index: int = 0, **changes: object) -> GpuSnapshot:
    """The same before a run."""
    made = GpuSnapshot(index=index, sm_mhz=345, reasons=["idle"], temperature_c=34, used_bytes=2**20, processes=[])
    return made.model_copy(update=changes)


def cpu(other: float | None = 0.01, steal: float | None = 0.0, mhz: float | None = 3000) -> CpuUsage:
    """Two cores."""
    return CpuUsage(
        cores=2,
        own_s=60,
        other_share=other,
        steal_share=steal,
        mhz=None if mhz is None else SampleRange(low=mhz - 100, median=mhz, high=mhz + 100),
    )


def health(
    gpus: Sequence[GpuUsage] = (), before: Sequence[GpuSnapshot] | None = None, processors: CpuUsage | None = None
) -> Health:
    """A run of 40 s with a sample a second."""
    first = list(before) if before is not None else [idle(each.index) for each in gpus]
    during = NodeUsage(samples=40, cpu=processors or cpu(), gpus=list(gpus))
    return Health(before=first, during=during, causes=find_causes(first, during))
