"""The trusted part of the paper GPU. It builds the paper GPU's library."""

from regbot.workloads.paper.build import NoPaperGpuError, Readiness, library_for, readiness
from regbot.workloads.paper.libraries import Libraries

__all__ = ["Libraries", "NoPaperGpuError", "Readiness", "library_for", "readiness"]
