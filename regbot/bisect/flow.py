"""``regbot bisect``, readable top to bottom: the axis, what is asked of it, the measurements, the answer.

Every measurement is in ``bisection.jsonl`` before the next is chosen, and the answer is told from that file alone: so a
bisection that was ended goes on with ``--resume``. The user's repository is only read.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from regbot.bisect import answer, blame, counting, noisy
from regbot.bisect.costs import Costs
from regbot.bisect.driver import VOID_LIMIT, Ended, Next, drive
from regbot.bisect.environments import VersionEnvironment, environment_for
from regbot.bisect.forecast import forecast, impossible
from regbot.bisect.measure import Ground, Measurer
from regbot.bisect.options import Options
from regbot.bisect.outline import nothing_between, refused
from regbot.bisect.prepare import prepare, python_of
from regbot.bisect.seats import Seats
from regbot.bisect.site import Site
from regbot.bisect.step_times import StepTimes
from regbot.bisect.traces import Traces
from regbot.checkout import prune
from regbot.config import ConfigError
from regbot.engines import Engine, Needs, open_engine
from regbot.nodes import Fitness, nodes_folder
from regbot.progress import Progress, Watcher
from regbot.records.bisection import Bisection, BisectionHeader, BisectionPlan, Observation, read_bisection
from regbot.records.files import RecordError, append_line, mend, write_record, write_text
from regbot.report.bisection import html
from regbot.trees import Trees
from regbot.workloads import Limits, needs_of

LOG, RESULT, PAGE = "bisection.jsonl", "bisection.json", "bisection.html"
KEPT_WORKTREES = 16

Picture = Callable[[Bisection], None]
"""Shown after every measurement: the answer so far."""


def forecast_of(options: Options) -> BisectionPlan:
    """What the bisection may cost, before anything is spent. Raises ConfigError, CheckoutError, RecordError."""
    site = prepare(options)
    return forecast(site.header, site.span, site.reused)


def bisect(
    options: Options,
    watch: Watcher = lambda _: None,
    picture: Picture = lambda _: None,
    engine: Engine | None = None,
    measurer: Measurer | None = None,
) -> Bisection:
    """Find the culprit. Raises ConfigError, CheckoutError, RecordError, EngineError.

    ``measurer`` takes the place of real measurements, in tests and simulations.
    """
    site = prepare(options)
    if len(site.span.points) < 2 and not site.header.exact:
        return _unbegun(options, nothing_between(site.header))
    if (reason := impossible(site.header, site.span, site.reused)) and not options.anyway:
        return _unbegun(options, refused(site.header, f"{reason} (--anyway begins all the same)"))
    with ExitStack() as stack:
        _own(stack, options.out)
        header, observations = _begin(site)
        site.header = header  # of one that is resumed the seed, the noise, and what is looked for are as they were
        site.span = replace(site.span, smallest=math.log1p(header.smallest_pct / 100))
        log = options.out / LOG
        fitness = Fitness(nodes_folder(options.cache), options.out)
        where = engine or stack.enter_context(
            open_engine(
                options.engine, site.config, options.cache, untrusted=options.untrusted, refused=fitness.refused
            )
        )
        trees = Trees(options.repo, options.cache, lambda text: watch(Progress(0, 0, text)), where.sandbox)
        if measurer is None:
            measurer = _measurer(site, trees, where, stack, watch)

        def keep(observation: Observation) -> None:
            with _room(log):
                append_line(log, observation)

        def say(wanted: noisy.Wanted) -> None:
            found = answer.answer(site, observations)
            picture(found)
            done = found.search_runs + found.confirm_runs + found.remainder_runs
            what = " ".join(word for word in (wanted.purpose, wanted.point.name, wanted.entry) if word)
            watch(Progress(done, 0, f"{what}; {answer.standing(found)}"))

        ended = drive(observations, _next(site), measurer, keep, options.slots, _enough(site, observations), say)
        result = answer.answer(site, observations)
        result = result.model_copy(
            update={
                "reasons": [*result.reasons, *_cut_short(ended, header)],
                "warnings": [*result.warnings, *dict.fromkeys(note[:4000] for note in site.notes)],
            }
        )
        with _room(log):
            write_record(options.out / RESULT, result)
            write_text(options.out / PAGE, html(result))
        prune(options.cache, keep=KEPT_WORKTREES)
        return result


def _unbegun(options: Options, found: Bisection) -> Bisection:
    """An answer without measurements. That of another bisection is not left to be taken for it.

    With ``--resume`` what lies there belongs to its log, and stays with it.
    """
    if options.out.is_dir() and not options.resume:
        with ExitStack() as stack:
            _own(stack, options.out)
            _forget(options.out)
    return found


def _forget(out: Path) -> None:
    """Drop the last answer: it is not of what is asked now, or not of all that was measured."""
    for name in (RESULT, PAGE):
        (out / name).unlink(missing_ok=True)


def _cut_short(ended: Ended, header: BisectionHeader) -> list[str]:
    if ended == "enough":
        return [f"it was ended by --budget, {header.budget_min:g} minutes: go on with --resume and a larger one"]
    if ended == "spoilt":
        return [f"it was ended because the node spoilt {VOID_LIMIT} runs in a row: go on with --resume when it is fit"]
    return []


def _next(site: Site) -> Next:
    header = site.header
    if header.exact:

        def next_exact(
            observations: Sequence[Observation], pending: Sequence[tuple[noisy.Wanted, str]], _: str
        ) -> Sequence[noisy.Wanted]:
            entries = header.entries or [""]
            stretch = site.suspected(observations) if header.on == "ledger" and not header.axis else site.stretch
            found = counting.next_wanted(stretch, entries, observations, pending, site.expand, header.most_runs)
            return found or blame.next_exact(header, observations, pending)

        return next_exact
    terms = site.terms

    def next_noisy(
        observations: Sequence[Observation], pending: Sequence[tuple[noisy.Wanted, str]], stratum: str
    ) -> Sequence[noisy.Wanted]:
        pace = answer.pace(observations)
        root = noisy.walk(site.span, observations, pending, stratum, terms, pace, site.inside)
        return noisy.wants(root) or blame.next_noisy(header, terms, root, observations, pending, stratum)

    return next_noisy


def _enough(site: Site, observations: Sequence[Observation]) -> Callable[[], bool]:
    """Whether the minutes are spent."""
    budget = site.header.budget_min
    if budget is None:
        return lambda: False
    return lambda: sum(each.wall_s + each.build_s for each in observations if each.purpose != "reused") >= budget * 60


def _measurer(site: Site, trees: Trees, engine: Engine, stack: ExitStack, watch: Watcher) -> Measurer:
    """What measures; the seat that it needs for that is left with ``stack``."""
    options, header = site.options, site.header
    python = python_of(site.tasks)

    def environment(version: str) -> VersionEnvironment:
        return environment_for(options.cache, header.axis, version, python, options.index_options)

    versions = environment if header.axis else None
    builder = trees.builder
    ground = Ground(options.repo, options.cache, tuple(options.build), header.axis, versions, site.notes, builder)
    local = site.config.local
    limits = Limits(
        max_output_bytes=int(local.max_output_mb * 2**20), max_record_bytes=int(local.max_record_mb * 2**20)
    )
    seats: Seats | None = None
    if not header.exact and options.slots <= engine.slots:
        watch(Progress(0, 0, "wait for other timed runs there to end, where there are any"))
        needs = needs_of(next(iter(site.tasks.values()))) if site.tasks else Needs(ranks=0, name="regbot bisect")
        seats = stack.enter_context(Seats(engine, needs))
    if header.on == "command":
        return Costs(header.command, header.exact, ground, trees, engine, seats, options.out, options.timeout_min)
    if header.on == "ledger":
        return Traces(site.tasks, ground, trees, engine, options.out, options.cache, limits, options.index_options)
    (task,) = site.tasks.values()
    assert header.plan is not None
    if seats is None:
        raise ConfigError(
            f"--slots {options.slots}: the engine {engine.name} times {engine.slots} at a time (slurm.slots), because "
            "more would slow each other"
        )
    return StepTimes(task, header.plan, ground, trees, seats, options.out, limits)


def _own(stack: ExitStack, out: Path) -> None:
    """``out`` for this bisection alone."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise ConfigError(f"--out {out}: is a file; give a folder for the log and the report") from error
    try:
        stack.enter_context(FileLock(out / ".lock", timeout=0))
    except Timeout as error:
        raise ConfigError(f"{out}: another bisection is writing there; wait for it, or give another --out") from error


@contextmanager
def _room(log: Path) -> Iterator[None]:
    """Says of a disk that is full how to go on: nothing of the log is lost."""
    try:
        yield
    except OSError as error:
        raise RecordError(
            f"{log.parent}: cannot be written to: {error.strerror or error}; what was measured before is in "
            f"{log.name}: see to it, and go on with --resume"
        ) from error


def _begin(site: Site) -> tuple[BisectionHeader, list[Observation]]:
    """A new log with what is reused, or the one to be resumed. Raises RecordError."""
    out, header = site.options.out, site.header
    log = out / LOG
    if site.options.resume and log.exists():
        mend(log)
        if log.stat().st_size:
            found = read_bisection(log)
            if differs := _unlike(found.header, header):
                raise RecordError(
                    f"{log}: is of another bisection ({differs} differs); leave out --resume to begin anew, or give "
                    "another --out"
                )
            if site.options.effect_pct not in (None, found.header.smallest_pct):
                raise RecordError(
                    f"{log}: looks for slowdowns of {found.header.smallest_pct:g}%; leave out --effect, or --resume"
                )
            _forget(out)
            goes_on = {"most_runs": header.most_runs, "budget_min": header.budget_min}
            return found.header.model_copy(update=goes_on), found.observations
    _forget(out)
    if log.exists():  # what it measured may have taken hours: it is kept, under another name
        log.replace(out / "bisection.previous.jsonl")
    with _room(log):
        write_text(out / ".gitignore", "*\n")
        append_line(log, header)
        for observation in site.reused.observations:
            append_line(log, observation)
    return header, list(site.reused.observations)


MAY_DIFFER = (
    "created",
    "options",
    "seed",
    "most_runs",
    "budget_min",
    "warnings",
    "noise_pct",
    "noise_pairs",
    "smallest_pct",
)


def _unlike(found: BisectionHeader, planned: BisectionHeader) -> str:
    for name in type(planned).model_fields:
        if name not in MAY_DIFFER and getattr(found, name) != getattr(planned, name):
            return name.replace("_", " ")
    return ""
