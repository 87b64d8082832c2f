"""The engine that ``--engine`` names."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from regbot.config import ENGINES, Config, ConfigError
from regbot.engines.availability import sandbox_for
from regbot.engines.engine import Engine
from regbot.engines.local import LocalEngine
from regbot.engines.slurm import SlurmEngine


@contextmanager
def open_engine(
    name: str,
    config: Config,
    cache: Path,
    say: Callable[[str], None] = lambda _: None,
    untrusted: bool = False,
    no_sandbox: bool = False,
    refused: Callable[[], frozenset[str]] = frozenset,
) -> Iterator[Engine]:
    """The engine ``name`` as ``config`` has it; what it reserved is given back at the end. Raises ConfigError.

    ``cache``: of this user; where nodes are several, on the file system that all of them share. ``untrusted`` code is
    confined, unless ``no_sandbox`` says otherwise. ``refused`` names nodes that are not to be used now.
    """
    sandbox = sandbox_for(config.sandbox, untrusted, no_sandbox)
    if name == "local":
        yield LocalEngine(cache / "timing.lock", sandbox)
    elif name == "slurm":
        with SlurmEngine(config.slurm, cache.resolve() / "slurm", refused=refused, say=say, sandbox=sandbox) as engine:
            yield engine
    else:
        raise ConfigError(f"--engine {name}: there is no such engine; there are {' and '.join(ENGINES)}")
