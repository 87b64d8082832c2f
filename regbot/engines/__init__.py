"""Engines: where runs execute. Each starts a launch, bounds it, and says how it ended."""

from regbot.engines.choice import open_engine
from regbot.engines.engine import Ended, Engine, EngineError, Launch, Needs, NoSeatError, Seat, SeatLostError
from regbot.engines.local import LocalEngine, clean_environment
from regbot.engines.sandbox import Sandbox

__all__ = [
    "Ended",
    "Engine",
    "EngineError",
    "Launch",
    "LocalEngine",
    "Needs",
    "NoSeatError",
    "Sandbox",
    "Seat",
    "SeatLostError",
    "clean_environment",
    "open_engine",
]
