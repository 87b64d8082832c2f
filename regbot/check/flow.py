"""A whole check, in the order in which it runs: change, plan, traces, timed runs, conclusion.

Each run is appended to ``session.jsonl`` when it ends. The verdict is computed only from that file.
"""

from contextlib import nullcontext

from regbot.check.conclusion import CheckResult, conclude
from regbot.check.plan import CheckOptions, CheckPlan, find_change, make_plan
from regbot.check.sessions.recording import RunSetup, SessionRecorder
from regbot.check.sessions.run_log import RunLog
from regbot.check.sessions.timed import time_arms
from regbot.check.sessions.traces import trace_arms
from regbot.check.sessions.worktrees import Worktrees
from regbot.engines import Engine, open_engine
from regbot.engines.removal import discard_folder
from regbot.records.files import RecordError
from regbot.records.session import Session, read_session
from regbot.records.text.progress import Progress, Watcher
from regbot.workloads.checkout.cache import repository_cache
from regbot.workloads.checkout.worktrees import prune
from regbot.workloads.guest import Limits, Scratch

__all__ = ["CheckOptions", "check"]

KEPT_WORKTREES = 16
"""Number of worktrees of a repository to keep in the cache. The least recently used ones are removed first."""


def check(options: CheckOptions, watch: Watcher = lambda _: None, engine: Engine | None = None) -> CheckResult:
    """Trace and time both arms, and judge them. Raises ConfigError, CheckoutError, EngineError, RecordError."""

    def say(text: str) -> None:
        watch(Progress(done=0, total=0, text=text))  # a message without a count of runs

    change = find_change(options)
    config = change.config
    own_engine = open_engine(
        options.engine, config, options.cache, say, untrusted=options.untrusted, no_sandbox=options.no_sandbox
    )
    with own_engine if engine is None else nullcontext(engine) as engine_in_use:
        plan = make_plan(options, change, engine_in_use)
        # The report beside the session file is written again at the end.
        results = ("verdict.json", "comment.md", "report.html")
        log = RunLog(options.out / "session.jsonl", "check", read_session, MAY_DIFFER_ON_RESUME, results)
        with log.lock():
            session = _open_session(log, plan, options)
            limits = Limits(
                max_output_bytes=int(config.local.max_output_mb * 2**20),
                max_record_bytes=int(config.local.max_record_mb * 2**20),
            )
            setup = RunSetup(
                trees=Worktrees(options.repo, options.cache, say, engine_in_use.sandbox),
                engine=engine_in_use,
                scratch=Scratch(options.out / "runs", limits),
                recorder=SessionRecorder(log, session, options.cache),
                watch=watch,
            )
            untrusted = options.untrusted or config.sandbox.untrusted
            trace_arms(plan.traced, setup, parallel=config.local.parallel, untrusted=untrusted)
            time_arms(plan.timed, setup, join=options.join)
            result = conclude(read_session(log.path), config, options.expectations, options.out)
    # After the verdict, because nothing that the code under test left in the cache may prevent a verdict.
    prune(repository_cache(options.cache, options.repo), KEPT_WORKTREES, watch)
    return result


MAY_DIFFER_ON_RESUME = {
    **dict.fromkeys(("created", "seed", "budget_min", "warnings", "stored"), True),
    "timed": {"__all__": {"references", "no_reference", "fresh_caches"}},
}
"""Fields of the session's header that may differ when a check is resumed. The store may have new references by
then, but the resumed session keeps the references that it began with.

The form is pydantic's ``exclude``: True excludes a whole field, and ``__all__`` stands for all items of a list."""


def _open_session(log: RunLog[Session], plan: CheckPlan, options: CheckOptions) -> Session:
    """Return the session to resume, or a new one without runs. Raises RecordError."""
    if options.resume and (session := log.resume(plan.header)) is not None:
        own_runs = [run for run in session.runs if not run.is_from_earlier_session]
        timed_on = {run.node.node_class for run in own_runs if run.node is not None}
        here = {timed.node.node_class for timed in plan.timed if timed.node is not None}  # empty if not known yet
        if here and timed_on - here:
            raise RecordError(
                f"{log.path}: was timed on {', '.join(timed_on - here)}, but this node is {', '.join(here)}",
                "resume it there, or leave out --resume to start a new session",
            )
        log.remove_results()
        # Use the new budget, because a larger one may decide a session that was undecided.
        budget = {"budget_min": plan.header.budget_min}
        return Session(header=session.header.model_copy(update=budget), runs=session.runs)
    log.create(plan.header)
    discard_folder(options.out / "runs")
    return Session(header=plan.header, runs=[])
