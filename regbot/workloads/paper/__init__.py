"""The trusted part of the paper GPU. It builds the paper GPU's library."""

from regbot.workloads.paper.build import Libraries, Readiness, library_for, readiness
from regbot.workloads.paper.torch_files import NoPaperGpuError

__all__ = ["Libraries", "NoPaperGpuError", "Readiness", "library_for", "readiness"]
