"""Engines: where launches run. An engine starts a launch, enforces its limits and reports how it ended."""

from regbot.engines.choice import open_engine
from regbot.engines.engine import Engine, Needs, Seat
from regbot.engines.launch import NO_GPUS, EngineError, Launch, LaunchResult, NoSeatError, SeatLostError
from regbot.engines.local import LocalEngine, clean_environment

__all__ = [
    "NO_GPUS",
    "Engine",
    "EngineError",
    "Launch",
    "LaunchResult",
    "LocalEngine",
    "Needs",
    "NoSeatError",
    "Seat",
    "SeatLostError",
    "clean_environment",
    "open_engine",
]
