"""The engine for a Slurm cluster. Each session gets one reservation, and its runs are job steps in this reservation."""

from regbot.engines.slurm.engine import SlurmEngine

__all__ = ["SlurmEngine"]
