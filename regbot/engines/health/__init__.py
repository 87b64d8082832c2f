"""Node health around a run: monitoring, and faults of the node that void a run. It records facts but gives no
verdict."""

from regbot.engines.health.monitor import Monitor, visible_devices
from regbot.engines.health.nvml import GpuDevice, NoNvmlError, snapshot_gpus

__all__ = ["GpuDevice", "Monitor", "NoNvmlError", "snapshot_gpus", "visible_devices"]
