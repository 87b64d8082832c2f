"""From what was asked to a site: the points of the axis, the workloads, what is on record. Nothing is measured."""

import hashlib
import json
import math
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from regbot import __version__
from regbot.bisect import counting, history
from regbot.bisect.options import Options, check_options, words_of
from regbot.bisect.reuse import Reused, reused
from regbot.bisect.site import Site
from regbot.bisect.span import span_of
from regbot.bisect.versions import parse_axis, points_of, versions_between
from regbot.check import HEADS_CONFIG, CheckOptions, find_config
from regbot.checkout import resolve_exactly
from regbot.checkout.git import find_commit
from regbot.config import FILE_NAME, Config, ConfigError
from regbot.engines import open_engine
from regbot.records.bisection import BisectionHeader, On, Point
from regbot.stored import store_at, with_references
from regbot.workloads import Task, needs_of, plan, plan_of, timed_tasks


def prepare(options: Options) -> Site:
    """The site of a bisection. Raises ConfigError, CheckoutError, RecordError, ShapeError."""
    on = options.on or ("command" if options.command else "ledger")
    check_options(options, on)
    good, bad = (find_commit(options.repo, rev, name) for rev, name in ((options.good, "GOOD"), (options.bad, "BAD")))
    config, tasks, notes = _workloads(options, good, bad, on)
    points, warnings = _points(options, bad, tasks)
    exact = on == "ledger" or options.exact
    header = BisectionHeader(
        regbot=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        on=on,
        exact=exact,
        axis=parse_axis(options.axis).package if options.axis else "",
        points=points,
        corner=_corner(options, good, bad, points),
        full=options.full,
        paths=list(options.paths),
        entries=[] if on == "command" else list(tasks),
        plan=plan_of(next(iter(tasks.values())), config.session) if on == "time" else None,
        command=options.command,
        options=words_of(options),
        terms=_terms(options, tasks, config),
        summary="cost" if on == "command" else options.summary,
        posterior=options.posterior,
        most_runs=options.most_runs,
        budget_min=options.budget_min,
        confirm=options.confirm,
        seed=secrets.randbelow(2**32),
        warnings=[*warnings, *notes],
    )
    found = _on_record(options, header, config, good, next(iter(tasks.values()), None)) if on == "time" else Reused()
    noise = options.noise_pct or found.noise_pct
    smallest = options.effect_pct or max(config.throughput.threshold_pct, noise or 0.0)
    header = header.model_copy(
        update={
            "smallest_pct": smallest,
            "noise_pct": noise,
            "noise_pairs": 0 if options.noise_pct else found.pairs,
            "warnings": [*header.warnings, *found.warnings],
        }
    )
    affected = history.affected(options.repo, points, options.full and not header.axis)
    span = span_of(points, affected, header.none_prior, math.log1p(smallest / 100))
    stretch = counting.Stretch(tuple(points), affected if options.full and not header.axis else None)
    return Site(options, header, config, tasks, found, span, stretch)


def _terms(options: Options, tasks: Mapping[str, Task], config: Config) -> str:
    """A digest of what decides every measurement, so that a log goes on only on the terms on which it was begun."""
    workloads = [task.workload.model_dump(mode="json") for task in tasks.values()]
    asked = [
        list(options.build),
        list(options.index_options),
        options.timeout_min,
        config.session.model_dump(mode="json"),
    ]
    return hashlib.sha256(json.dumps([workloads, asked]).encode()).hexdigest()


def _on_record(options: Options, header: BisectionHeader, config: Config, good: str, task: Task | None) -> Reused:
    """The runs of the check that saw it; where that does not tell the noise, that of the calibrations at good."""
    with open_engine(options.engine, config, options.cache) as engine:
        node = engine.describe(needs_of(task)) if task is not None else None
    if node is None:  # of a cluster that has never been timed on
        return Reused()
    found = reused(options, header, node.node_class)
    if found.noise_pct is not None or header.plan is None:
        return found
    wanted = [(header.plan.entry, header.plan.variant)]
    with store_at(options.repo, good, config.baselines.folder, None, wanted) as store:
        looked_up, notes = with_references(header.plan, store, config.throughput, node.node_class)
    known = [each.calibrated for each in looked_up.references if each.calibrated is not None and each.calibrated.sd_pct]
    if not known:
        return replace(found, warnings=(*found.warnings, *notes))
    worst = max(known, key=lambda each: each.sd_pct)
    return replace(found, noise_pct=worst.sd_pct / math.sqrt(2), pairs=worst.pairs, warnings=(*found.warnings, *notes))


def _points(options: Options, bad: str, tasks: Mapping[str, Task]) -> tuple[list[Point], list[str]]:
    if not options.axis:
        found = history.commit_range(
            options.repo, options.good, options.bad, options.full, options.paths, options.suspects
        )
        points = found.points
        if options.command:
            points = history.by_tree(points)
        return points, found.warnings
    axis = parse_axis(options.axis)
    versions = versions_between(axis, python_of(tasks), options.index_options)
    return points_of(options.repo, bad, axis, versions), []


def _corner(options: Options, good: str, bad: str, points: Sequence[Point]) -> Point | None:
    """Good's code with the first version, where versions are walked between two commits."""
    if not options.axis or good == bad:
        return None
    return points_of(options.repo, good, parse_axis(options.axis), [point.version for point in points])[0]


def python_of(tasks: Mapping[str, Task]) -> str:
    """The interpreter whose packages are taken over: that of the workloads, where they name one on this machine."""
    named = {task.workload.python for task in tasks.values() if task.workload.python}
    if len(named) > 1:
        raise ConfigError("--axis: these workloads run under several interpreters; name those of one with --workload")
    python = next(iter(named), sys.executable)
    if "/" in python and not Path(python).is_absolute():
        raise ConfigError(f"--axis: the interpreter {python} lies in the checkout, where its build puts the versions")
    return python


def _workloads(options: Options, good: str, bad: str, on: On) -> tuple[Config, dict[str, Task], list[str]]:
    """The tasks of good's regbot.toml that are asked for."""
    lookup = CheckOptions(
        repo=options.repo,
        cache=options.cache,
        out=options.out,
        base=good,
        exact=True,
        config=options.config,
        node_config=options.node_config,
    )
    base, head, _ = resolve_exactly(options.repo, good, bad)
    try:
        config, notes = find_config(lookup, base, head)
    except ConfigError:
        if on != "command":
            raise
        config, notes = Config(), []  # a command needs none
    if options.untrusted and options.node_config is None and HEADS_CONFIG in notes:
        raise ConfigError(
            f"--untrusted: only BAD has a {FILE_NAME}, and it does not say itself how it is confined; "
            "give --config FILE"
        )
    if on == "command":
        return config, {}, []
    tasks = plan(config, options.workloads)
    if on == "time":
        with open_engine(options.engine, config, options.cache) as engine:
            timed = timed_tasks(config, tasks, engine.gpus)
        if not timed:
            raise ConfigError("none of these workloads is timed; name one that is with --workload")
        if len(timed) > 1:
            names = ", ".join(task.entry for task in timed)
            raise ConfigError(f"--on time follows one workload, and these are timed: {names}; name one with --workload")
        return config, {timed[0].entry: timed[0]}, notes
    traced = [task for task in tasks if task.workload.adapter != "command"]
    if not traced:
        raise ConfigError("these workloads are commands, which have no ledger; bisect them with --on time")
    return config, {task.entry: task for task in traced}, notes
