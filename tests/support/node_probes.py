"""Probes of nodes that are made of a few numbers."""

from datetime import UTC, datetime
from typing import Any

from regbot.records.node import NodeProbe, RepeatedTiming, Sizes

NOW = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
SIZES = Sizes(gemm=8192, dtype="bfloat16", all_to_all_bytes=2**26, copy_bytes=2**30)


def took(ms: float, fast: float | None = None) -> RepeatedTiming:
    """A measurement whose fastest tenth takes 1% less, unless told."""
    return RepeatedTiming(n=500, median_s=ms / 1e3, mad_s=ms / 1e5, fast_s=(fast or 0.99 * ms) / 1e3)


def probe_of(
    host: str, hours: float = 0.0, *, gemm: float = 1.6, fast: float | None = None, **changes: Any
) -> NodeProbe:
    """A healthy probe of 8 GPUs, ``hours`` before now. Times in milliseconds: gemm, local, over (all hosts), copy."""
    local, over, copy = (
        changes.pop(name, default) for name, default in (("local", 0.4), ("over", None), ("copy", 0.5))
    )
    document = {
        "host": host,
        "unix_s": NOW.timestamp() - 3600 * hours,
        "driver": "570.1",
        "container": None,
        "software": "torch 2.13.0+cu130",
        "device_name": "NVIDIA H200",
        "ranks": 8,
        "hosts": [host],
        "sizes": SIZES,
        "gemm": took(gemm, fast),
        "local_all_to_all": took(local),
        "all_to_all": took(over) if over else None,
        "copy": took(copy),
    }
    return NodeProbe.model_validate({**document, **changes})


def past(host: str, count: int, gemm: float = 1.6, scatter_pct: float = 0.3, **changes: Any) -> list[NodeProbe]:
    """Daily probes, up to yesterday, that go up and down around ``gemm``."""
    wobble = (0.0, 1.0, -1.0, 0.5, -0.5)
    return [
        probe_of(host, 24 * (count - day), gemm=gemm * (1 + scatter_pct / 100 * wobble[day % 5]), **changes)
        for day in range(count)
    ]
