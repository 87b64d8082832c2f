"""Options of a bisection, as the command line gives them, and a check of which options can be combined."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from regbot.checkout.git import without_credentials
from regbot.config import ConfigError
from regbot.records.bisection import SearchMetric
from regbot.text.clip import clip_label

DEFAULT_POSTERIOR = 0.95
DEFAULT_TIMEOUT_MIN = 10.0


@dataclass(frozen=True)
class BisectionOptions:
    """Options of one bisection."""

    repo: Path
    """The user's repository."""
    cache: Path
    """Cache folder of this machine."""
    out: Path
    """Folder for the log and the result."""
    good: str
    """Revision of the good end."""
    bad: str
    """Revision of the bad end."""
    workloads: Sequence[str] = ()
    """Names of the workloads to measure; () for all."""
    on: SearchMetric | None = None
    """What the bisection searches by; None to choose it from the other options."""
    command: str = ""
    """Command that prints the cost; '' if ledgers or step times are compared."""
    exact: bool = False
    """Whether the numbers that the command prints are compared for equality."""
    axis: str = ""
    """Package and versions to search, such as ``torch=2.10..2.12``; '' to search commits."""
    full: bool = False
    """Whether all commits of the range are points, and not only the line of first parents."""
    paths: Sequence[str] = ()
    """If given, only commits that touch one of these paths are points."""
    suspects: Sequence[str] = ()
    """Revisions with a larger prior weight."""
    config: Path | None = None
    """File that replaces the ``regbot.toml`` of the good commit; None for that of good, or else of bad."""
    node_config: Path | None = None
    """File with the machine tables ``[sandbox]``, ``[slurm]`` and ``[local]``; None to take them from ``config``."""
    check: Path | None = None
    """Folder or session file of the check that saw the slowdown; None for ``regbot-out``."""
    reuse: bool = True
    """Whether runs of the check are reused."""
    effect_pct: float | None = None
    """The smallest slowdown to look for, in percent; None for the default."""
    noise_pct: float | None = None
    """Standard deviation of one run, in percent; None if the user states none."""
    summary: Literal["median", "mean"] = "median"
    """Summary of a run's step times that is compared."""
    posterior: float = DEFAULT_POSTERIOR
    """Probability at which a culprit is named."""
    most_runs: int = 200
    """Maximum number of search runs."""
    budget_min: float | None = None
    """Maximum minutes of all runs together; None for no limit."""
    confirm: bool = True
    """Whether the culprit is compared with its parent."""
    build: Sequence[str] = ()
    """Build commands for the checkouts of ``command``."""
    timeout_min: float = DEFAULT_TIMEOUT_MIN
    """Limit for one run of ``command``, in minutes."""
    index_options: Sequence[str] = ()
    """Options of pip that select the package index."""
    slots: int = 1
    """Number of measurements that run at the same time."""
    engine: str = "local"
    """Name of the engine that starts the processes: ``local`` or ``slurm``."""
    untrusted: bool = False
    """Whether the code must run in a sandbox."""
    resume: bool = False
    """Whether to continue the bisection in ``out``."""
    anyway: bool = False
    """Whether to search although the forecast says that the search cannot succeed, or although many points fail for one
    reason.
    """


def option_words(options: BisectionOptions) -> list[str]:
    """Return the options for which ``BisectionHeader`` has no field of its own, as words of the command line.

    Options with default values are left out. URLs lose their credentials.
    """
    values_by_option = {
        "--config": [str(options.config)] if options.config is not None else [],
        "--suspect": options.suspects,
        "--build": options.build,
        "--pip": options.index_options,
        "--effect": [f"{options.effect_pct:g}"] if options.effect_pct is not None else [],
        "--noise": [f"{options.noise_pct:g}"] if options.noise_pct is not None else [],
        "--summary": [options.summary] if options.summary != "median" else [],
        "--posterior": [f"{options.posterior:g}"] if options.posterior != DEFAULT_POSTERIOR else [],
    }
    words: list[str] = []
    for option, values in values_by_option.items():
        for value in values:
            words += [option, value]
    if options.timeout_min != DEFAULT_TIMEOUT_MIN:
        words += ["--timeout", f"{options.timeout_min:g}"]
    if not options.confirm:
        words.append("--no-confirm")
    return [clip_label(without_credentials(word)) for word in words]


def check_options(options: BisectionOptions, on: SearchMetric) -> None:
    """Raise ConfigError for options that cannot be combined. ``on`` is what the bisection searches by."""
    if on == "command" and not options.command:
        raise ConfigError("--on command needs --command CMD, which prints one number, the cost, as its last line")
    if on != "command" and options.command:
        raise ConfigError(f"--command cannot be combined with --on {on}", "leave out one of them")
    if options.exact and on == "time":
        raise ConfigError("--exact: step times are never exact", "leave out --exact")
    if options.untrusted and (on == "command" or options.axis):
        source = "--axis installs packages and" if options.axis else "--command"
        raise ConfigError(f"{source} runs outside the sandbox", "leave out --untrusted, or bisect the workloads")
    if on == "command" and options.workloads:
        raise ConfigError("--workload: --command measures no workload", "leave out --workload or --command")
    if options.full and options.axis:
        raise ConfigError("--full is for commits, but --axis walks versions at one commit", "leave out one of them")
    if on == "time" and options.slots > 1 and options.engine == "local":
        raise ConfigError(
            "--slots: timed runs at the same time on one machine would slow each other down", "leave out --slots"
        )
    if options.build and on != "command":
        raise ConfigError("--build needs --command", "the workloads of regbot.toml have build commands of their own")
    if options.index_options and not options.axis:
        raise ConfigError("--pip needs --axis", "leave out --pip")
    if options.check is not None and on != "time":
        raise ConfigError(
            "--check: the runs of a check are step times, which only --on time can use", "leave out --check"
        )
    if options.exact or on == "ledger":
        for option, value in (("--noise", options.noise_pct), ("--effect", options.effect_pct)):
            if value is not None:
                raise ConfigError(
                    f"{option}: exact values have no noise, and every change counts", f"leave out {option}"
                )
