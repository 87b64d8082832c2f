"""Run a refresh from start to end: measure every workload, judge its session of this night, store the session, and
propose the new references as a branch or a file."""

import secrets
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath

from regbot.baselines import Store, environment_of
from regbot.baselines.intake import session_identity
from regbot.baselines.names import class_folder
from regbot.baselines.reference import has_same_terms, summarise_calibrations
from regbot.check.conclusion import CheckResult
from regbot.check.flow import CheckOptions, check
from regbot.check.refresh.context import (
    MeasuredNight,
    RefreshOptions,
    RefreshSetup,
    find_node_class,
    open_refresh_engine,
)
from regbot.check.refresh.night import NightHistory, NightLimits, judge_night
from regbot.check.refresh.storing import build_proposal, store_files, store_night, timed_sessions
from regbot.check.refresh.text import commit_message, proposal_text
from regbot.check.sessions.worktrees import folder_name
from regbot.engines import Engine
from regbot.judge.interim import thresholds_from
from regbot.judge.pairs import pair_up
from regbot.records.baseline import Acceptance, AnchorComparison, Baseline, EnvironmentKey
from regbot.records.calibration import Calibration
from regbot.records.config import FILE_NAME, Config, ConfigError, LoadedConfig, load_commit, load_file
from regbot.records.files import write_record, write_text
from regbot.records.refresh import RefreshReport
from regbot.records.run import Arm, Run
from regbot.records.text.clip import clip_message
from regbot.records.text.progress import Watcher
from regbot.records.verdict import GRAVITY, WorkloadVerdict, select_gravest_status
from regbot.stats.drift import night_pairs
from regbot.workloads.checkout.arms import resolve_arm
from regbot.workloads.checkout.commits import create_branch
from regbot.workloads.checkout.export import export
from regbot.workloads.checkout.git import file_at
from regbot.workloads.task import Task, plan, timed_tasks


def refresh(
    options: RefreshOptions, watch: Watcher = lambda _: None, engine: Engine | None = None, now: datetime | None = None
) -> RefreshReport:
    """Measure every timed workload at the commit ``options.rev`` beside its anchor, and propose new references.

    The measurements stay in the folder ``options.out``. ``engine`` is closed by the caller; None to open the engine
    that ``options`` names. ``now`` is the time in the new records; None for the present time. Raises ConfigError,
    CheckoutError, EngineError, RecordError.
    """
    now = now or datetime.now(UTC)
    head = resolve_arm(options.repo, options.rev)
    if options.config is not None:
        loaded = load_file(options.config)
    else:
        loaded = load_commit(partial(file_at, options.repo, FILE_NAME), head.commit)
    engine_context: AbstractContextManager[Engine] = (
        nullcontext(engine) if engine is not None else open_refresh_engine(options, loaded.config, watch)
    )
    with engine_context as active_engine:
        return _refresh_on(active_engine, options, watch, head, loaded, now=now)


def _refresh_on(
    engine: Engine, options: RefreshOptions, watch: Watcher, head: Arm, loaded: LoadedConfig, *, now: datetime
) -> RefreshReport:
    """Run the refresh on an open engine. ``head`` is the measured commit of main.

    If ``options.store`` is given, its files are changed. If it is None, the store of ``head`` is read, and the changes
    are proposed on a new branch. With ``options.proposal_file``, this file is written instead of a branch.
    """
    config = loaded.config
    planned = plan(config, options.workloads)
    tasks = _select_tasks(config, planned, engine)
    write_text(options.out / ".gitignore", "*\n")  # git ignores everything in the folder
    with tempfile.TemporaryDirectory(prefix="regbot-") as scratch:
        folder = config.baselines.folder
        if options.store is None:
            export(options.repo, head.commit, [folder], Path(scratch))
        store = Store(options.store if options.store is not None else Path(scratch) / folder)
        files_before = store_files(store)
        setup = RefreshSetup(
            options=options,
            loaded=loaded,
            head=head,
            store=store,
            planned=planned,
            monitors=len(tasks),
            watch=watch,
            engine=engine,
        )
        measured_nights = [_measure(setup, task) for task in tasks]
        # ``store_night`` returns why a night could not be stored; '' if nothing went wrong.
        nights_after_storing = [
            _with_storing_result(night, store_night(night, options, head, store, now)) for night in measured_nights
        ]
        files_after = store_files(store)
        written = [path for path in files_after if files_before.get(path) != files_after[path]]
        removed = [path for path in files_before if path not in files_after]
        report = _build_report(head, nights_after_storing, written)
        if options.proposal_file is not None:
            write_record(options.proposal_file, build_proposal(store, report, written, now))
        elif written and options.store is None:
            branch = options.branch or f"regbot/refresh-{now:%Y-%m-%d}-{secrets.token_hex(3)}"
            # The branch takes the content of each written file, and removes a file whose value is None.
            files: dict[str, Path | None] = {f"{folder}/{path}": store.root / path for path in written}
            files |= {f"{folder}/{path}": None for path in removed}
            proposed_commit = create_branch(options.repo, head.commit, files, branch, commit_message(report))
            report = report.model_copy(update={"branch": branch, "proposal": proposed_commit})
    write_record(options.out / "refresh.json", report)
    write_text(options.out / "pull-request.md", proposal_text(report))
    return report


def _select_tasks(config: Config, planned: Sequence[Task], engine: Engine) -> list[Task]:
    """Return the timed tasks whose sessions can be references. Raises ConfigError if there are none."""
    candidates = timed_tasks(config, planned, engine.gpus)
    tasks = [task for task in candidates if task.workload.adapter != "command"]
    if candidates and not tasks:
        raise ConfigError(
            f"workloads.{candidates[0].workload_name}: a command does not prove what code it runs, so its sessions "
            "cannot be references",
            "its step times are judged by pairs; calibrate it with 'regbot calibrate'",
        )
    if not tasks:
        raise ConfigError(
            "no workload is timed, so there is nothing to refresh", "see 'timed' in docs/configuration.md"
        )
    return tasks


def _measure(setup: RefreshSetup, task: Task) -> MeasuredNight:
    """Time one workload at the anchor's commit and at head in pairs, and judge the session of this night.

    If the workload has no anchor yet, head is compared with itself. The other meshes of the workload are traced in the
    same session. Their ledgers are refreshed, and their collectives count in the verdict.
    """
    options, store = setup.options, setup.store
    entries = [planned_task.entry for planned_task in setup.planned if _is_same_workload(planned_task, task)]
    node_class = find_node_class(setup.engine, task)
    folder = class_folder(task.entry, task.variant.name, node_class)
    anchor = store.anchor(task.entry, task.variant.name, node_class)
    anchor_commit = anchor.commit if anchor is not None else setup.head.commit
    calibrations = [store.calibration(path) for path in store.calibrations(folder)]
    check_options = _make_check_options(setup, task, entries, anchor_commit, calibrations)
    checked = check(check_options, setup.watch, setup.engine)
    pair_set = pair_up(checked.session.timed_runs(task.entry))
    tonight = AnchorComparison(commit=anchor_commit, log_ratios=pair_set.log_ratios()) if pair_set.valid else None
    verdict = _combine_meshes(checked, task.entry)
    history = _load_history(
        setup,
        task,
        checked,
        stored=timed_sessions(store, folder),
        environment=environment_of(pair_set.valid[-1].head) if pair_set.valid else None,
        anchor_commit=anchor_commit,
        calibrations=calibrations,
    )
    limits = NightLimits(
        budget_pct=setup.loaded.config.baselines.creep_budget_pct,
        threshold_pct=setup.loaded.config.throughput.threshold_pct,
    )
    acceptance = None
    if options.accept_pct is not None:  # ``options.who`` accepts a slowdown of up to this many percent
        acceptance = Acceptance(who=options.who, slowdown_pct=options.accept_pct, why=options.why)
    night = judge_night(
        verdict=verdict,
        variant=task.variant.name,
        anchor=anchor.commit if anchor else None,
        tonight=tonight,
        history=history,
        limits=limits,
        accepted=acceptance,
    )
    return MeasuredNight(
        task=task,
        entries=entries,
        node_class=node_class,
        anchor=anchor,
        checked=checked,
        night=night,
        tonight=tonight,
    )


def _is_same_workload(planned_task: Task, task: Task) -> bool:
    return planned_task.workload_name == task.workload_name and planned_task.shape.name == task.shape.name


def _make_check_options(
    setup: RefreshSetup, task: Task, entries: list[str], anchor_commit: str, calibrations: Sequence[Calibration]
) -> CheckOptions:
    """Return the options of the check that compares head with the anchor's commit.

    It always times a new session, even if no code has changed since the anchor.
    """
    options = setup.options
    noise = summarise_calibrations(calibrations, thresholds_from(setup.loaded.config.throughput))
    pair_sd = noise.sd_pct / 100 if noise is not None else 0.0
    return CheckOptions(
        repo=options.repo,
        cache=options.cache,
        out=options.out / folder_name(task.entry),
        base=anchor_commit,
        head=setup.head.commit,
        workloads=entries,
        config=setup.loaded,
        untrusted=True,
        no_sandbox=options.no_sandbox,
        even_if_identical=True,
        gate="pairs",  # decide by the pairs of this night, not by stored sessions
        exact=True,  # compare with the anchor's commit itself, not with the merge base
        join=False,  # use no pairs of earlier sessions
        baselines=setup.store.root,
        # Without recorded noise, the night has the smallest number of pairs.
        max_pairs=options.pairs or night_pairs(pair_sd),
        budget_min=options.budget_min,
        resume=options.resume,
    )


def _load_history(
    setup: RefreshSetup,
    task: Task,
    checked: CheckResult,
    *,
    stored: Sequence[Baseline],
    environment: EnvironmentKey | None,
    anchor_commit: str,
    calibrations: Sequence[Calibration],
) -> NightHistory:
    """Return the earlier nights of a workload that are comparable with this night.

    ``stored`` and ``calibrations`` are those of the workload on this node class. ``environment`` is the environment of
    this night; None without a valid pair.
    """
    # With --resume, the session of this night may already be stored. It is not an earlier night.
    own_session = session_identity(checked.session.header, task.entry, "timed", "head")
    same_environment = [
        baseline for baseline in stored if baseline.environment == environment and baseline.session != own_session
    ]
    # ``against`` is the comparison with the anchor; None if the session did not measure the anchor beside main.
    comparisons = [baseline.against for baseline in same_environment if baseline.against is not None]
    timed_runs = checked.session.timed_runs(task.entry)
    comparable_calibrations = [
        calibration
        for calibration in calibrations
        if calibration.environment == environment and _has_same_settings(calibration, checked, timed_runs)
    ]
    noise = summarise_calibrations(comparable_calibrations, thresholds_from(setup.loaded.config.throughput))
    return NightHistory(
        nights=[comparison for comparison in comparisons if comparison.commit == anchor_commit],
        pair_sd=noise.sd_pct / 100 if noise is not None else None,
        monitors=setup.monitors,
    )


def _combine_meshes(checked: CheckResult, entry: str) -> WorkloadVerdict:
    """Return the verdict on ``entry``, with the gravest sharding section and the gravest validity section of all meshes
    of the workload."""
    mesh_verdicts = checked.verdict.workloads
    own_verdict = next(workload for workload in mesh_verdicts if workload.name == entry)
    sharding_sections = [workload.sharding for workload in mesh_verdicts if workload.sharding is not None]
    validity_sections = [workload.validity for workload in mesh_verdicts]
    # ``GRAVITY`` begins with the gravest status.
    sharding = min(sharding_sections, key=lambda section: GRAVITY.index(section.status), default=None)
    validity = min(validity_sections, key=lambda section: GRAVITY.index(section.status))
    return own_verdict.model_copy(update={"sharding": sharding, "validity": validity})


def _has_same_settings(calibration: Calibration, checked: CheckResult, runs: Sequence[Run]) -> bool:
    """Return whether a calibration was measured on the same terms as the timed ``runs`` of a session.

    ``runs`` has at least one run. All are of the same entry.
    """
    plan = next(plan for plan in checked.session.header.timed if plan.entry == runs[-1].workload)
    return any(run.timing is not None and has_same_terms(calibration, plan, run.timing.clock) for run in runs)


def _with_storing_result(measured: MeasuredNight, not_stored: str) -> MeasuredNight:
    return replace(measured, night=measured.night.model_copy(update={"not_stored": not_stored}))


def _build_report(head: Arm, measured: Sequence[MeasuredNight], written: Sequence[PurePosixPath]) -> RefreshReport:
    """Return the report on all workloads. ``written`` are the new and changed files of the store.

    If all nights pass, but one could not be stored, the report is INVALID.
    """
    nights = [measured_night.night for measured_night in measured]
    storing_warnings = [
        clip_message(f"{night.name}: not stored: {night.not_stored}") for night in nights if night.not_stored
    ]
    status = select_gravest_status(night.status for night in nights)
    check_warnings = [warning for measured_night in measured for warning in measured_night.checked.verdict.warnings]
    return RefreshReport(
        status="INVALID" if storing_warnings and status == "PASS" else status,
        commit=head.commit,
        branch=None,
        proposal=None,
        files=[str(path) for path in written],
        workloads=nights,
        warnings=list(dict.fromkeys([*storing_warnings, *check_warnings])),  # without duplicates, in order
    )
