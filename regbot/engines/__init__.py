"""Engines: where runs execute. Each starts a launch, bounds it, and says how it ended."""

from regbot.engines.engine import Ended, Engine, EngineError, Launch
from regbot.engines.local import LocalEngine, clean_environment

__all__ = ["Ended", "Engine", "EngineError", "Launch", "LocalEngine", "clean_environment"]
