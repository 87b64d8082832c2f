"""Node health around a run: what is watched, and what it shows to be wrong. Facts in, no verdicts."""

from regbot.health.monitor import Monitor, visible_devices
from regbot.health.nvml import Gpu, NoNvmlError, gpus_now

__all__ = ["Gpu", "Monitor", "NoNvmlError", "gpus_now", "visible_devices"]
