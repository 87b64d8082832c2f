"""Open the engine selected by ``--engine``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from regbot.engines.availability import unavailable_reason
from regbot.engines.engine import Engine
from regbot.engines.local import LocalEngine
from regbot.engines.slurm.engine import SlurmEngine
from regbot.records.config import ENGINES, Config, ConfigError


@contextmanager
def open_engine(
    name: str,
    config: Config,
    cache: Path,
    say: Callable[[str], None] = lambda _: None,
    *,
    untrusted: bool = False,
    no_sandbox: bool = False,
) -> Iterator[Engine]:
    """Yield the engine ``name``. On exit, its reservations are released. ``cache`` is a folder of this user, on a file
    system that all nodes share. ``say`` shows a progress message. ``untrusted`` runs the code in a sandbox;
    ``no_sandbox`` overrides it. Raises ConfigError."""
    needs_sandbox = (untrusted or config.sandbox.untrusted) and not no_sandbox
    if needs_sandbox and (why := unavailable_reason(config.sandbox)):
        raise ConfigError(
            f"untrusted code needs a sandbox, and {why}",
            "make the sandbox work, or run the code without one on a machine that has no secrets (--no-sandbox)",
        )
    sandbox = config.sandbox if needs_sandbox else None
    if name == "local":
        yield LocalEngine(cache / "timing.lock", sandbox)
    elif name == "slurm":
        with SlurmEngine(config.slurm, cache.resolve() / "slurm", say=say, sandbox=sandbox) as engine:
            yield engine
    else:
        raise ConfigError(f"--engine {name}: there is no such engine", f"there are {' and '.join(ENGINES)}")
