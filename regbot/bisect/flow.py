"""``regbot bisect`` from start to end: prepare the points, measure, compute the answer.

The points are commits, or the versions of one package (the dependency axis, ``header.axis``).

Every measurement is written to ``bisection.jsonl`` before the next one is chosen, and the answer is computed from that
file alone. An interrupted bisection can therefore continue with ``--resume``. The user's repository is only read.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from regbot.bisect import answer, blame, broken, exact_search, noisy
from regbot.bisect.chained import continued_stratum
from regbot.bisect.context import BisectionSetup
from regbot.bisect.costs import CommandMeasurer
from regbot.bisect.driver import VOID_LIMIT, ChooseRequests, StopReason, drive
from regbot.bisect.environments import VersionEnvironment, provide_environment
from regbot.bisect.forecast import find_obstacle, forecast
from regbot.bisect.measure import Measurer, PointCheckouts
from regbot.bisect.options import BisectionOptions
from regbot.bisect.outline import load_run, refused_answer, same_code_answer
from regbot.bisect.prepare import common_interpreter, prepare
from regbot.bisect.seats import Seats
from regbot.bisect.step_times import StepTimeMeasurer
from regbot.bisect.traces import TraceMeasurer
from regbot.checkout import prune
from regbot.config import ConfigError
from regbot.engines import Engine, Needs, open_engine
from regbot.nodes import Fitness, nodes_folder
from regbot.records.bisection import (
    Bisection,
    BisectionHeader,
    BisectionLog,
    BisectionPlan,
    Observation,
    read_bisection,
)
from regbot.records.files import RecordError, write_record, write_text
from regbot.report.bisection import html
from regbot.sessions.run_log import RunLog
from regbot.sessions.worktrees import Worktrees
from regbot.text.clip import clip_message
from regbot.text.progress import Progress, Watcher
from regbot.workloads import Limits, needs_of
from regbot.workloads.paper import Libraries

LOG, RESULT, PAGE = "bisection.jsonl", "bisection.json", "bisection.html"
"""Files of the output folder."""
MAX_WORKTREES = 16
"""Number of worktrees that stay in the cache after the bisection."""

Picture = Callable[[Bisection], None]
"""Shows the answer so far. It is called before each new measurement."""


def plan_bisection(options: BisectionOptions) -> BisectionPlan:
    """Estimate what the bisection will cost, without measuring. Raises ConfigError, CheckoutError, RecordError."""
    setup = prepare(options)
    return forecast(setup.header, setup.noisy_span, setup.reused_runs)


def bisect(
    options: BisectionOptions,
    watch: Watcher = lambda _: None,
    picture: Picture = lambda _: None,
    engine: Engine | None = None,
    measurer: Measurer | None = None,
) -> Bisection:
    """Find the culprit, and write the log, the result and the page to the output folder.

    ``watch`` shows progress messages. ``picture`` shows the answer so far, before each new measurement. Tests and
    simulations pass a ``measurer``, which replaces real measurements. Raises ConfigError, CheckoutError, RecordError,
    EngineError.
    """
    setup = prepare(options)
    if len(setup.noisy_span.points) < 2 and not setup.header.exact:  # all points run the same code as good
        _discard_results(options)
        return same_code_answer(setup.header)
    if (reason := find_obstacle(setup.header, setup.noisy_span, setup.reused_runs)) and not options.anyway:
        _discard_results(options)
        return refused_answer(setup.header, f"{reason} (--anyway starts it nevertheless)")
    log = _run_log(options.out)
    with log.lock(), ExitStack() as stack:
        header, observations = _open_log(log, setup)
        setup.header = header  # A resumed bisection keeps the seed, the noise and the smallest slowdown of its log.
        setup.noisy_span = replace(setup.noisy_span, smallest=math.log1p(header.smallest_pct / 100))
        fitness = Fitness(nodes_folder(options.cache), options.out)  # has the list of nodes in quarantine
        active_engine = engine or stack.enter_context(
            open_engine(
                options.engine,
                setup.config,
                options.cache,
                untrusted=options.untrusted,
                excluded_hosts=fitness.quarantined_hosts,
            )
        )

        def show_text(text: str) -> None:
            watch(Progress(done=0, total=0, text=text))

        trees = Worktrees(options.repo, options.cache, show_text, active_engine.sandbox)
        if measurer is None:
            measurer = _create_measurer(setup, observations, trees, active_engine, stack, watch)

        def announce(request: noisy.MeasurementRequest) -> None:
            """Show the answer so far, and which measurement comes next."""
            bisection = answer.compute_answer(setup, observations)
            picture(bisection)
            # Remainder runs search for a second culprit before or after the first.
            run_count = bisection.search_runs + bisection.confirm_runs + bisection.remainder_runs
            description = " ".join(word for word in (request.purpose, request.point.name, request.entry) if word)
            text = f"{description}; {answer.describe_progress(bisection)}"
            watch(Progress(done=run_count, total=0, text=text))

        is_over_budget = _budget_check(setup, observations)

        def find_common_failure() -> broken.CommonFailure | None:
            """Return the reason for which many points cannot be measured. --anyway searches on despite it."""
            return None if options.anyway else broken.find_common_failure(observations)

        stop_reason = drive(
            observations,
            _make_chooser(setup),
            measurer,
            log.append,
            options.slots,
            is_enough=lambda: is_over_budget() or find_common_failure() is not None,
            announce=announce,
        )
        result = answer.compute_answer(setup, observations)
        # "enough": the budget is used up, or too many points failed for one reason.
        failure = find_common_failure() if stop_reason == "enough" else None
        if failure is not None:  # the user has to mend it, so it comes first
            reasons = [broken.explain_common_failure(failure, setup.tasks), *result.reasons]
        else:
            reasons = [*result.reasons, *_stop_reasons(stop_reason, header)]
        result = result.model_copy(
            update={
                "reasons": reasons,
                "warnings": [*result.warnings, *dict.fromkeys(clip_message(note) for note in setup.notes)],
            }
        )
        with log.writing():
            write_record(options.out / RESULT, result)
            write_text(options.out / PAGE, html(result))
        prune(trees.repository_cache, keep=MAX_WORKTREES)  # remove older worktrees from the cache
        return result


def _discard_results(options: BisectionOptions) -> None:
    """Delete results of an earlier bisection, which could be mistaken for results of this one.

    With ``--resume`` nothing is deleted, because the results in the folder belong to the log there.
    """
    if options.out.is_dir() and not options.resume:
        log = _run_log(options.out)
        with log.lock():
            log.remove_results()


def _stop_reasons(stop_reason: StopReason, header: BisectionHeader) -> list[str]:
    """Return a sentence for a search that the budget or void runs stopped; [] for a search that is done."""
    if stop_reason == "enough":
        return [
            f"--budget ended the search after {header.budget_min:g} minutes; continue with --resume and a larger budget"
        ]
    if stop_reason == "spoilt":
        return [f"{VOID_LIMIT} void runs in a row stopped the search: the node is unfit. Continue with --resume later"]
    return []


def _make_chooser(setup: BisectionSetup) -> ChooseRequests:
    """Return the function that chooses the next measurement: of the exact search or of the noisy search.

    When the search itself needs no measurement, the comparison of the code of two commits may need one (``blame``).
    """
    header = setup.header
    if header.exact:

        def next_exact(
            observations: Sequence[Observation], pending: Sequence[tuple[noisy.MeasurementRequest, str]], _: str
        ) -> Sequence[noisy.MeasurementRequest]:
            """Return the next measurement of a search on exact values. The stratum is not needed, because exact values
            do not depend on the node.
            """
            entries = exact_search.compared_entries(header)
            compares_ledgers_of_commits = header.on == "ledger" and not header.axis
            # Traces list the files that a workload loads. Commits that touch none of them are less suspicious.
            span = setup.weigh_exact_span(observations) if compares_ledgers_of_commits else setup.exact_span
            requests = exact_search.next_requests(
                span, entries, observations, pending, setup.expand_merge_exact, header.most_runs
            )
            return requests or blame.next_exact(header, observations, pending)

        return next_exact
    settings = setup.search_settings

    def next_noisy(
        observations: Sequence[Observation], pending: Sequence[tuple[noisy.MeasurementRequest, str]], stratum: str
    ) -> Sequence[noisy.MeasurementRequest]:
        """Return the next measurement of a search on noisy values, which is to run in ``stratum``."""
        mean_costs = answer.estimate_run_costs(observations)
        root = noisy.compute_search(
            setup.noisy_span,
            observations,
            pending,
            stratum,
            settings,
            mean_costs,
            expand_merge=setup.expand_merge_noisy,
        )
        return noisy.collect_requests(root) or blame.next_code_comparison(
            header, settings, root, observations, pending, stratum
        )

    return next_noisy


def _budget_check(setup: BisectionSetup, observations: Sequence[Observation]) -> Callable[[], bool]:
    """Return a predicate that is true once the minutes of --budget are spent."""
    if setup.header.budget_min is None:
        return lambda: False
    budget_s = setup.header.budget_min * 60

    def is_spent() -> bool:
        own_runs = [observation for observation in observations if observation.purpose != "reused"]
        return sum(observation.wall_s + observation.build_s for observation in own_runs) >= budget_s

    return is_spent


def _create_measurer(
    setup: BisectionSetup,
    observations: Sequence[Observation],
    trees: Worktrees,
    engine: Engine,
    stack: ExitStack,
    watch: Watcher,
) -> Measurer:
    """Create the measurer for a command, for ledgers or for step times.

    ``observations`` are those of the log. ``trees`` makes the checkouts. ``stack`` releases the seats (reserved nodes)
    that the measurer uses. Only a new bisection, whose log has no own measurements, can continue the session of a
    check.
    """
    options, header = setup.options, setup.header
    is_new = all(observation.purpose == "reused" for observation in observations)
    python = common_interpreter(setup.tasks)

    def environment(version: str) -> VersionEnvironment:
        return provide_environment(options.cache, header.axis, version, python, options.index_options)

    version_environment = environment if header.axis else None
    checkouts = PointCheckouts(trees, tuple(options.build), header.axis, version_environment, setup.notes)
    local = setup.config.local
    limits = Limits(
        max_output_bytes=int(local.max_output_mb * 2**20), max_record_bytes=int(local.max_record_mb * 2**20)
    )
    # Noisy values are measured on reserved nodes. If the engine cannot reserve enough nodes, a command runs without a
    # reservation, and a search on step times is refused below.
    seats: Seats | None = None
    if not header.exact and options.slots <= engine.slots:
        watch(Progress(done=0, total=0, text="waiting for other timed runs on these nodes"))
        first_task = next(iter(setup.tasks.values()), None)  # None for a command, which has no ranks
        needs = needs_of(first_task) if first_task is not None else Needs(ranks=0, name="regbot bisect")
        check_stratum = ""  # '' means that the bisection continues no session of a check
        if is_new and (node := engine.describe(needs)) is not None:
            check_stratum = continued_stratum(setup.reused_runs.lease, engine.name, node.name, time.time())
        seats = stack.enter_context(Seats(engine, needs, check_stratum))
    if header.on == "command":
        return CommandMeasurer(
            header.command, checkouts, engine, seats, options.out, exact=header.exact, timeout_min=options.timeout_min
        )
    if header.on == "ledger":
        libraries = Libraries(options.cache, options.out / "paper", lambda text: watch(Progress(0, 0, text)))
        stack.callback(libraries.close)
        traced = {observation.entry: observation for observation in observations if observation.usable}
        known = {entry: run for entry, observation in traced.items() if (run := load_run(options.out, observation))}
        return TraceMeasurer(setup.tasks, checkouts, engine, options.out, limits, libraries, known)
    (task,) = setup.tasks.values()
    assert header.plan is not None  # a search by step time always has the plan of its timed workload
    if seats is None:
        raise ConfigError(
            f"--slots {options.slots}: the engine {engine.name} allows {engine.slots} timed runs at a time "
            "(slurm.slots), because more runs would slow each other down"
        )
    return StepTimeMeasurer(task, header.plan, checkouts, seats, options.out, limits)


def _run_log(out: Path) -> RunLog[BisectionLog]:
    """Return the log of the bisection in the folder ``out``, with its error messages."""
    return RunLog(
        path=out / LOG,
        activity="bisection",
        read=read_bisection,
        may_differ=dict.fromkeys(MAY_DIFFER_ON_RESUME, True),  # in pydantic, True excludes a whole field
        results=(RESULT, PAGE),
        unwritable=(  # message and advice
            "{log.parent}: cannot be written to: {error}",
            "earlier measurements are in {log.name}: free space or mend the permissions, then continue with --resume",
        ),
        write_errors=(),  # every error of writing gets the message above
    )


def _open_log(log: RunLog[BisectionLog], setup: BisectionSetup) -> tuple[BisectionHeader, list[Observation]]:
    """Create a log with the reused observations, or load the log that ``--resume`` continues. Raises RecordError.

    A resumed log keeps its header, except for the limits of runs and minutes, which come from the new command line.
    """
    header = setup.header
    if setup.options.resume and (resumed := log.resume(header)) is not None:  # None: the log has no content yet
        if setup.options.effect_pct not in (None, resumed.header.smallest_pct):
            raise RecordError(
                f"{log.path}: was begun with --effect {resumed.header.smallest_pct:g}",
                "leave out --effect, or --resume",
            )
        log.remove_results()
        limits = {"most_runs": header.most_runs, "budget_min": header.budget_min}
        observations = resumed.observations
        if not setup.options.anyway:  # points that stopped the search by one common failure are measured again
            observations = broken.release_common_failures(observations)
        return resumed.header.model_copy(update=limits), observations
    log.create(header, setup.reused_runs.observations)
    return header, list(setup.reused_runs.observations)


# Fields of the header that may differ between a log and the bisection that resumes the log.
MAY_DIFFER_ON_RESUME = (
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
