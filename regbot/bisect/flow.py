"""``regbot bisect`` from start to end: prepare the points, measure, compute the answer.

Every measurement is written to ``bisection.jsonl`` before the next one is chosen, and the answer is computed from that
file alone. An interrupted bisection can therefore continue with ``--resume``. The user's repository is only read.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack

from regbot.bisect import exact, noisy
from regbot.bisect.answer import compute_answer
from regbot.bisect.costs import CommandMeasurer
from regbot.bisect.driver import VOID_LIMIT, MeasurementRequest, Measurer, drive
from regbot.bisect.exact_answer import load_run
from regbot.bisect.measure import PointCheckouts, SessionSeat
from regbot.bisect.options import BisectionOptions
from regbot.bisect.plan import plan_cost
from regbot.bisect.prepare import BisectionSetup, common_interpreter, prepare
from regbot.bisect.step_times import StepTimeMeasurer
from regbot.bisect.traces import TraceMeasurer
from regbot.check.sessions.run_log import RunLog
from regbot.check.sessions.worktrees import Worktrees
from regbot.engines import Engine, Needs, open_engine
from regbot.records.bisection import Bisection, BisectionLog, BisectionPlan, Observation, read_bisection
from regbot.records.files import write_record, write_text
from regbot.records.text.progress import Progress, Watcher
from regbot.report.bisection import bisection_page, plan_text
from regbot.workloads.checkout.worktrees import prune
from regbot.workloads.guest import Limits
from regbot.workloads.launch import needs_of

LOG, RESULT, PAGE = "bisection.jsonl", "bisection.json", "bisection.md"
"""Files of the output folder."""
MAX_WORKTREES = 16
"""Number of worktrees that stay in the cache after the bisection."""

MAY_DIFFER_ON_RESUME = ("created", "seed", "most_runs", "warnings", "noise_pct", "noise_pairs", "smallest_pct")
"""Fields of the header that may differ between a log and the bisection that resumes the log."""


def plan_bisection(options: BisectionOptions) -> BisectionPlan:
    """Estimate what the bisection will cost, without measuring. Raises ConfigError, CheckoutError, RecordError."""
    return plan_cost(prepare(options))


def bisect(
    options: BisectionOptions,
    watch: Watcher = lambda _: None,
    engine: Engine | None = None,
    measurer: Measurer | None = None,
) -> Bisection:
    """Find the culprit, and write the log, the result and the page to the output folder.

    ``watch`` shows progress messages. Tests pass a ``measurer``, which replaces real measurements. Raises ConfigError,
    CheckoutError, RecordError, EngineError.
    """
    setup = prepare(options)
    log = _run_log(options)
    if setup.span.last == 0:  # all points run the same code as good
        log.remove_results()
        return compute_answer(setup, [])
    watch(Progress(done=0, total=0, text=plan_text(plan_cost(setup)), lasting=True))
    with log.lock(), ExitStack() as stack:
        observations = _open_log(log, setup)
        active_engine = engine or stack.enter_context(
            open_engine(options.engine, setup.config, options.cache, untrusted=options.untrusted)
        )

        def show_text(text: str) -> None:
            watch(Progress(done=0, total=0, text=text))

        def announce(request: MeasurementRequest) -> None:
            text = " ".join(word for word in (request.purpose, request.point.name, request.entry) if word)
            watch(Progress(done=len(observations), total=0, text=text))

        trees = Worktrees(options.repo, options.cache, show_text, active_engine.sandbox)
        if measurer is None:
            measurer = _create_measurer(setup, observations, trees, active_engine, stack)

        def choose(known: Sequence[Observation], stratum: str) -> MeasurementRequest | None:
            if not setup.header.exact:
                return noisy.compute_search(setup.span, known, stratum, setup.search_settings).request
            entries = exact.compared_entries(setup.header)
            return exact.next_request(setup.span, entries, known, setup.expand_merge, setup.header.most_runs)

        is_finished = drive(observations, choose, measurer, log.append, announce)
        result = compute_answer(setup, observations)
        if not is_finished:
            reason = f"{VOID_LIMIT} runs in a row were void, because the nodes are unfit; continue with --resume"
            result = result.model_copy(update={"reasons": [*result.reasons, reason]})
        write_record(options.out / RESULT, result)
        write_text(options.out / PAGE, bisection_page(result))
        prune(trees.repository_cache, MAX_WORKTREES, watch)  # remove older worktrees from the cache
    return result


def _create_measurer(
    setup: BisectionSetup, observations: Sequence[Observation], trees: Worktrees, engine: Engine, stack: ExitStack
) -> Measurer:
    """Create the measurer for a command, for ledgers or for step times.

    ``observations`` are those of the log. ``trees`` makes the checkouts. ``stack`` closes what the measurer uses.
    """
    options, header = setup.options, setup.header
    python = common_interpreter(setup.tasks) if header.axis else ""
    checkouts = PointCheckouts(trees, setup.note, options.build or (), header.axis, python)
    local = setup.config.local
    limits = Limits(
        max_output_bytes=int(local.max_output_mb * 2**20), max_record_bytes=int(local.max_record_mb * 2**20)
    )
    if header.on == "ledger":
        libraries = trees.open_libraries(options.out / "paper")
        stack.callback(libraries.close)
        traced = {observation.entry: observation for observation in observations if observation.usable}
        known = {entry: run for entry, observation in traced.items() if (run := load_run(options.out, observation))}
        return TraceMeasurer(setup.tasks, checkouts, engine, options.out, limits, libraries=libraries, known=known)
    task = next(iter(setup.tasks.values()), None)
    # Noisy values are measured on reserved nodes.
    seat = _reserve_seat(setup, observations, engine, stack) if not header.exact else None
    if task is None:
        return CommandMeasurer(
            header.command, checkouts, engine, seat, options.out, exact=header.exact, timeout_min=options.timeout_min
        )
    assert header.plan is not None  # a search by step time always has the plan of its timed workload
    assert seat is not None  # step times are never exact
    return StepTimeMeasurer(task, header.plan, checkouts, seat, options.out, limits)


def _reserve_seat(
    setup: BisectionSetup, observations: Sequence[Observation], engine: Engine, stack: ExitStack
) -> SessionSeat:
    """Return the seat of the bisection's runs. Only a bisection without own runs can continue the session of a
    check."""
    task = next(iter(setup.tasks.values()), None)  # None for a command, which has no ranks
    needs = needs_of(task) if task is not None else Needs(ranks=0, name="regbot bisect")
    lease, check_stratum = setup.reused_runs.lease, ""
    is_new = all(observation.purpose == "reused" for observation in observations)
    if is_new and lease is not None and (node := engine.describe(needs)) is not None:
        check_stratum = lease.continued_stratum(engine.name, node.name, time.time())
    return SessionSeat(engine, needs, stack, check_stratum)


def _run_log(options: BisectionOptions) -> RunLog[BisectionLog]:
    """Return the log of the bisection, with its error messages."""
    return RunLog(
        path=options.out / LOG,
        activity="bisection",
        read=read_bisection,
        may_differ=dict.fromkeys(MAY_DIFFER_ON_RESUME, True),  # in pydantic, True excludes a whole field
        results=(RESULT, PAGE),
    )


def _open_log(log: RunLog[BisectionLog], setup: BisectionSetup) -> list[Observation]:
    """Create a log with the reused observations, or load the log that ``--resume`` continues. Raises RecordError.

    A resumed bisection keeps the header of its log, with its seed, its noise and its smallest slowdown. Only the limit
    of runs comes from the new command line.
    """
    header = setup.header
    if setup.options.resume and (resumed := log.resume(header)) is not None:  # None: the log has no content yet
        log.remove_results()
        setup.header = resumed.header.model_copy(update={"most_runs": header.most_runs})
        return list(resumed.observations)
    log.create(header, setup.reused_runs.observations)
    return list(setup.reused_runs.observations)
