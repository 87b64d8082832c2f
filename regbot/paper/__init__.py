"""The trusted side of the paper GPU: its library is built here, outside of any sandbox, once for each torch."""

from regbot.paper.build import Library, NoPaperGpuError, Readiness, library_for, readiness
from regbot.paper.libraries import Libraries

__all__ = ["Libraries", "Library", "NoPaperGpuError", "Readiness", "library_for", "readiness"]
