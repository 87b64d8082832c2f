"""What a bisection is asked, as the command line gives it; and which of it goes together."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from regbot.checkout.git import without_credentials
from regbot.config import ConfigError
from regbot.records.bisection import On

DEFAULT_POSTERIOR = 0.95
DEFAULT_TIMEOUT_MIN = 10.0


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    repo: Path
    cache: Path
    out: Path
    good: str
    bad: str
    workloads: Sequence[str] = ()
    on: On | None = None
    command: str = ""
    exact: bool = False
    axis: str = ""
    full: bool = False
    paths: Sequence[str] = ()
    suspects: Sequence[str] = ()
    config: Path | None = None
    node_config: Path | None = None
    check: Path | None = None
    """Folder or session file of the check that saw the slowdown; None looks into ``regbot-out``."""
    reuse: bool = True
    effect_pct: float | None = None
    """The smallest slowdown that is worth finding."""
    noise_pct: float | None = None
    summary: Literal["median", "mean"] = "median"
    posterior: float = DEFAULT_POSTERIOR
    most_runs: int = 200
    budget_min: float | None = None
    confirm: bool = True
    build: Sequence[str] = ()
    timeout_min: float = DEFAULT_TIMEOUT_MIN
    index_options: Sequence[str] = ()
    slots: int = 1
    engine: str = "local"
    untrusted: bool = False
    """Run the code in a sandbox, or not at all."""
    resume: bool = False
    anyway: bool = False


def words_of(options: Options) -> list[str]:
    """What was given besides the question itself, as it stands on the command line."""
    given = {
        "--config": [str(options.config)] if options.config is not None else [],
        "--suspect": options.suspects,
        "--build": options.build,
        "--pip": options.index_options,
        "--effect": [f"{options.effect_pct:g}"] if options.effect_pct is not None else [],
        "--noise": [f"{options.noise_pct:g}"] if options.noise_pct is not None else [],
        "--summary": [options.summary] if options.summary != "median" else [],
        "--posterior": [f"{options.posterior:g}"] if options.posterior != DEFAULT_POSTERIOR else [],
    }
    words = [word for option, values in given.items() for value in values for word in (option, value)]
    words += ["--timeout", f"{options.timeout_min:g}"] if options.timeout_min != DEFAULT_TIMEOUT_MIN else []
    return [without_credentials(word)[:500] for word in (*words, *(["--no-confirm"] if not options.confirm else []))]


def check_options(options: Options, on: On) -> None:
    """Raises ConfigError for options that do not go together."""
    if on == "command" and not options.command:
        raise ConfigError("--on command needs --command CMD, which prints one number, the cost, as its last line")
    if on != "command" and options.command:
        raise ConfigError(f"--command is a measurement of its own; leave out --on {on}")
    if options.exact and on == "time":
        raise ConfigError("--exact: step times are never exact; leave it out")
    if options.untrusted and (on == "command" or options.axis):
        what = "--axis installs packages and" if options.axis else "--command"
        raise ConfigError(f"{what} runs outside of the sandbox; leave out --untrusted, or bisect the workloads")
    if on == "command" and options.workloads:
        raise ConfigError("--workload: a command measures what it runs; leave out --workload or --command")
    if options.full and options.axis:
        raise ConfigError("--full is of commits, and --axis walks versions at one commit; give one of them")
    if on == "time" and options.slots > 1 and options.engine == "local":
        raise ConfigError("--slots: timed runs at the same time on one machine would slow each other; leave it out")
    if options.build and on != "command":
        raise ConfigError("--build goes with --command; the workloads of regbot.toml have build commands of their own")
    if options.index_options and not options.axis:
        raise ConfigError("--pip goes with --axis; leave it out")
    if options.check is not None and on != "time":
        raise ConfigError("--check: the runs of a check are step times, which only --on time can use; leave it out")
    if options.exact or on == "ledger":
        for option, value in (("--noise", options.noise_pct), ("--effect", options.effect_pct)):
            if value is not None:
                raise ConfigError(f"{option}: exact values have no noise, and every change counts; leave it out")
