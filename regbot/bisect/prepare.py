"""Preparation of a bisection: list its points, load its workloads, and load the noise on record.

The points are commits, or versions of one package (the dependency axis). The noise on record is the standard deviation
of a run that an earlier check or a calibration measured. This module measures nothing.
"""

import hashlib
import json
import math
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from regbot import __version__
from regbot.bisect.history import list_commits, list_merged_commits, match_trees
from regbot.bisect.noisy import SearchSettings
from regbot.bisect.options import BisectionOptions
from regbot.bisect.reuse import ReusedRuns, load_reused_runs
from regbot.bisect.span import Span, build_span
from regbot.bisect.versions import build_points, parse_axis, versions_between
from regbot.check.configuration import confine, find_config
from regbot.check.references import store_at, with_references
from regbot.engines import open_engine
from regbot.records.bisection import BisectionHeader, Point, SearchMetric
from regbot.records.config import DEFAULTS, Config, ConfigError
from regbot.records.text.clip import clip_message
from regbot.workloads.checkout.git import CheckoutError, find_commit, refuse_missing_files
from regbot.workloads.launch import needs_of
from regbot.workloads.task import Task, plan, plan_of, timed_tasks


@dataclass
class BisectionSetup:
    """The inputs of a bisection, and a cache of what its search has read from git."""

    options: BisectionOptions
    header: BisectionHeader
    config: Config
    tasks: dict[str, Task]
    """The workloads to measure, by entry; {} if a command is measured."""
    reused_runs: ReusedRuns
    """Runs of an earlier check of the same commits, and what that check saw."""
    span: Span
    branches: dict[str, Span | None] = field(default_factory=dict)
    """Cache: key of a merge -> the commits that it brought in."""
    notes: list[str] = field(default_factory=list)
    """Warnings that arose during the search, for the result."""

    @property
    def search_settings(self) -> SearchSettings:
        """Settings of a noisy search, with percentages as log-ratios."""
        header = self.header
        return SearchSettings(
            noise=math.log1p(header.noise_pct / 100) if header.noise_pct else None,
            noise_pairs=header.noise_pairs,
            smallest=math.log1p(header.smallest_pct / 100),
            most_runs=header.most_runs,
            summary=header.summary,
            indifference=math.log1p(self.config.throughput.indifference_pct / 100),
            seed=header.seed,
        )

    def note(self, text: str) -> None:
        """Keep a warning. Each text is kept once."""
        if clip_message(text) not in self.notes:
            self.notes.append(clip_message(text))

    def expand_merge(self, merge: Point) -> Span | None:
        """Return the commits that ``merge`` brought in; None if there is nothing to search."""
        if self.header.axis:
            return None
        if merge.key not in self.branches:
            try:
                points = list_merged_commits(self.options.repo, merge, self.config.inert)
            # A shallow clone may lack the branch. The search goes on, because its other measurements are still useful.
            except CheckoutError as error:
                points = None
                self.note(f"the commits that {merge.name} merged cannot be searched: {error}")
            if points is not None and self.header.on == "command":
                points = match_trees(points)
            self.branches[merge.key] = build_span(points, merge.key) if points is not None else None
        return self.branches[merge.key]


def prepare(options: BisectionOptions) -> BisectionSetup:
    """Prepare a bisection from its options. Raises ConfigError, CheckoutError, RecordError, ShapeError.

    The noise and the smallest slowdown to look for are added to the header last. The runs of a check show the noise,
    and loading them needs the header.
    """
    on = options.on or ("command" if options.command else "ledger")
    _check_options(options, on)
    good = find_commit(options.repo, options.good, "GOOD")
    bad = find_commit(options.repo, options.bad, "BAD")
    refuse_missing_files(options.repo, good, bad)
    config, tasks, notes = _load_workloads(options, good, bad, on)
    points, warnings = _list_points(options, bad, tasks, config.inert)
    first_task = next(iter(tasks.values()), None)  # a bisection by step time has one task, by a command none
    header = BisectionHeader(
        regbot=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        on=on,
        exact=on == "ledger" or options.exact,
        axis=parse_axis(options.axis).package if options.axis else "",
        points=points,
        entries=list(tasks),
        plan=plan_of(first_task, config.session) if on == "time" and first_task is not None else None,
        command=options.command or "",
        terms=_terms_digest(options, tasks, config),
        summary="cost" if on == "command" else options.summary,
        most_runs=options.most_runs,
        seed=secrets.randbelow(2**32),
        warnings=[*warnings, *notes],
    )
    reused_runs = _load_known_noise(options, header, config, good, first_task) if on == "time" else ReusedRuns()
    noise_pct = options.noise_pct or reused_runs.noise_pct
    header = header.model_copy(
        update={
            # By default, the search looks for slowdowns from the gate's threshold on, but for none below the noise.
            "smallest_pct": options.effect_pct or max(config.throughput.threshold_pct, noise_pct or 0.0),
            "noise_pct": noise_pct,
            "noise_pairs": 0 if options.noise_pct else reused_runs.pairs,  # 0 means that the user stated the noise
            "warnings": [*header.warnings, *reused_runs.warnings],
        }
    )
    return BisectionSetup(options, header, config, tasks, reused_runs, build_span(points))


def _check_options(options: BisectionOptions, on: SearchMetric) -> None:
    """Raise ConfigError for options that cannot be combined. ``on`` is what the bisection searches by."""
    is_exact = options.exact or on == "ledger"
    conflicts = {
        "--on command needs --command CMD": on == "command" and not options.command,
        f"--command cannot be combined with --on {on}": on != "command" and bool(options.command),
        "--exact: step times are never exact": options.exact and on == "time",
        "--untrusted: --command and --axis run outside the sandbox": options.untrusted
        and (on == "command" or bool(options.axis)),
        "--workload: --command measures no workload": on == "command" and bool(options.workloads),
        "--build needs --command, because the workloads have build commands of their own": bool(options.build)
        and on != "command",
        "--check: the runs of a check are step times, which only --on time can use": options.check is not None
        and on != "time",
        "--noise and --effect: exact values have no noise, and every change counts": is_exact
        and (options.noise_pct is not None or options.effect_pct is not None),
    }
    for message, is_given in conflicts.items():
        if is_given:
            raise ConfigError(message, "leave out one of the options")


def _terms_digest(options: BisectionOptions, tasks: Mapping[str, Task], config: Config) -> str:
    """Return a digest of everything that decides a measurement. A log can be resumed only if its digest is the same."""
    workloads = [task.workload.model_dump(mode="json") for task in tasks.values()]
    settings = [options.build, options.timeout_min, config.session.model_dump(mode="json")]
    return hashlib.sha256(json.dumps([workloads, settings]).encode()).hexdigest()


def _load_known_noise(
    options: BisectionOptions, header: BisectionHeader, config: Config, good: str, task: Task | None
) -> ReusedRuns:
    """Load the runs of the check that saw the slowdown, with the noise that they show.

    If these runs do not show the noise, use the noisiest calibration that the good commit has in its store. Returns
    empty ``ReusedRuns`` if the node is not known yet. ``good`` is the good commit, and ``task`` the workload to time.
    """
    with open_engine(options.engine, config, options.cache) as engine:
        node = engine.describe(needs_of(task)) if task is not None else None
    if node is None:  # a cluster tells its node class only after a first timed run
        return ReusedRuns()
    reused_runs = load_reused_runs(options.check, header, node.node_class)
    if reused_runs.noise_pct is not None or header.plan is None:
        return reused_runs
    workload_variants = [(header.plan.entry, header.plan.variant)]
    # ``override=None``: the store is that of the good commit, and not a folder that the user named.
    with store_at(options.repo, good, config.baselines.folder, override=None, workloads=workload_variants) as store:
        stored, notes = with_references(header.plan, store, node.node_class)
    # A reference has no calibration (None) if the store has none for it.
    all_calibrations = [reference.calibrated for reference in stored.references]
    calibrations = [calibration for calibration in all_calibrations if calibration is not None and calibration.sd_pct]
    if not calibrations:
        return replace(reused_runs, warnings=(*reused_runs.warnings, *notes))
    noisiest = max(calibrations, key=lambda calibration: calibration.sd_pct)
    return replace(
        reused_runs,
        noise_pct=noisiest.sd_pct / math.sqrt(2),  # from the standard deviation of a pair to that of one run
        pairs=noisiest.pairs,
        warnings=(*reused_runs.warnings, *notes),
    )


def _list_points(
    options: BisectionOptions, bad: str, tasks: Mapping[str, Task], inert: Sequence[str]
) -> tuple[list[Point], list[str]]:
    """Return the commits from good to bad, or the versions of the dependency axis at bad. Also return warnings.

    ``inert`` is the setting of that name of the good commit.
    """
    if not options.axis:
        commits = list_commits(options.repo, options.good, options.bad, inert)
        return match_trees(commits.points) if options.command else commits.points, commits.warnings
    versions = versions_between(parse_axis(options.axis), common_interpreter(tasks))
    return build_points(options.repo, bad, versions), []


def common_interpreter(tasks: Mapping[str, Task]) -> str:
    """Return the interpreter to install versions for.

    It is the interpreter that the workloads name, or the interpreter of regbot itself if they name none.

    Raises ConfigError if the workloads name different interpreters, or an interpreter in the checkout.
    """
    interpreters = {task.workload.python for task in tasks.values() if task.workload.python}
    if len(interpreters) > 1:
        raise ConfigError(
            "--axis: these workloads use different interpreters", "select workloads of one interpreter with --workload"
        )
    python = next(iter(interpreters), sys.executable)
    if "/" in python and not Path(python).is_absolute():
        raise ConfigError(
            f"--axis: the interpreter {python} lies in the checkout, which another commit may lack",
            "set 'python' to an interpreter outside the checkout",
        )
    return python


def _load_workloads(
    options: BisectionOptions, good: str, bad: str, on: SearchMetric
) -> tuple[Config, dict[str, Task], list[str]]:
    """Load the regbot.toml of the good commit, and plan the selected workloads.

    Return the configuration, the tasks to measure by entry, and notes about the choice of the configuration.
    ``on="time"`` gives exactly one task, ``on="command"`` gives no task and no notes. Raises ConfigError if no selected
    workload can be measured, or if untrusted code would choose its own sandbox.
    """
    try:
        # Here ``exact`` means that the configuration of no other branch is used.
        loaded = find_config(options.repo, good, bad, exact=True, file=options.config)
    except ConfigError:
        if on != "command":
            raise
        loaded = DEFAULTS  # a command can be measured without a configuration
    loaded = confine(loaded, None, options.untrusted, "BAD", "give --config FILE")
    config, notes = loaded.config, loaded.messages()
    if on == "command":
        return config, {}, []
    tasks = plan(config, options.workloads or ())
    if on == "time":
        with open_engine(options.engine, config, options.cache) as engine:
            timed = timed_tasks(config, tasks, engine.gpus)
        if not timed:
            raise ConfigError("none of these workloads is timed", "select a timed one with --workload")
        if len(timed) > 1:
            names = ", ".join(task.entry for task in timed)
            raise ConfigError(
                f"--on time measures one workload, but these are timed: {names}", "select one with --workload"
            )
        return config, {timed[0].entry: timed[0]}, notes
    traced = [task for task in tasks if task.workload.adapter != "command"]
    if not traced:
        raise ConfigError("these workloads are commands, which have no ledger", "use --on time")
    return config, {task.entry: task for task in traced}, notes
