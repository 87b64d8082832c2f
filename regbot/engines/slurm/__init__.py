"""The engine of a Slurm cluster: one reservation for each session, its runs as job steps, nothing left behind."""

from regbot.engines.slurm.engine import SlurmEngine

__all__ = ["SlurmEngine"]
