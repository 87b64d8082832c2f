"""Run a refresh from start to end: measure every workload, judge its session of this night, store the session, and
propose the new references as a branch or a file."""

import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath

from regbot.baselines import Store, environment_of
from regbot.baselines.intake import session_identity
from regbot.baselines.names import class_folder
from regbot.baselines.query import planned_terms, terms_of
from regbot.baselines.reference import summarise_calibrations
from regbot.check.conclusion import CheckResult
from regbot.check.configuration import add_stand_ins
from regbot.check.flow import CheckOptions, check
from regbot.check.refresh.night import MeasuredNight, NightHistory, judge_night
from regbot.check.refresh.storing import build_proposal, store_files, store_night, timed_sessions
from regbot.check.refresh.text import commit_message, proposal_text
from regbot.check.sessions.worktrees import folder_name
from regbot.engines import Engine, open_engine
from regbot.judge.pairs import Pair, pair_up
from regbot.records.baseline import Acceptance, AnchorComparison, Baseline
from regbot.records.calibration import Calibration
from regbot.records.config import FILE_NAME, ConfigError, LoadedConfig, load_commit, load_file
from regbot.records.files import write_record, write_text
from regbot.records.refresh import RefreshReport
from regbot.records.run import Arm
from regbot.records.text.clip import clip_message
from regbot.records.text.progress import Progress, Watcher
from regbot.records.verdict import GRAVITY, ProgramSection, Sharding, Validity, select_gravest_status
from regbot.stats.drift import night_pairs
from regbot.workloads.checkout.arms import resolve_arm
from regbot.workloads.checkout.commits import create_branch
from regbot.workloads.checkout.export import export
from regbot.workloads.checkout.git import file_at
from regbot.workloads.launch import needs_of
from regbot.workloads.task import Task, plan, timed_tasks


@dataclass(frozen=True)
class RefreshOptions:
    """Options of a refresh. ``store`` and ``proposal_file`` decide where the new references go."""

    repo: Path
    cache: Path
    out: Path
    who: str
    why: str = "refresh"
    rev: str = "HEAD"
    workloads: Sequence[str] = ()
    config: Path | None = None
    """Configuration file. None for the ``regbot.toml`` of ``rev``."""
    store: Path | None = None
    """Folder of baselines to read and to change. None to read the folder of ``rev`` and to propose the changes."""
    proposal_file: Path | None = None
    """File to write the proposal to. None to create a branch with the proposal in ``repo``."""
    branch: str | None = None
    """Name of the branch to create. None for a name with the date."""
    pairs: int | None = None
    """Number of pairs per night. None for the number that the recorded noise requires."""
    budget_min: float | None = None
    """Largest number of minutes for the measurement of a workload. None for no limit."""
    accept_pct: float | None = None
    """Slowdown against the anchor, in percent, that ``who`` accepts. None if no slowdown is accepted."""
    resume: bool = False
    """Whether to continue an interrupted refresh in ``out``."""
    engine: str = "local"
    no_sandbox: bool = False
    """Whether to run the code without a sandbox."""


@dataclass(frozen=True)
class _RefreshSetup:
    """The inputs that the measurements of all workloads share."""

    options: RefreshOptions
    loaded: LoadedConfig
    head: Arm
    """The measured commit of main."""
    store: Store
    planned: Sequence[Task]
    monitors: int
    watch: Watcher
    engine: Engine


def refresh(options: RefreshOptions, watch: Watcher = lambda _: None, now: datetime | None = None) -> RefreshReport:
    """Measure every timed workload at the commit ``options.rev`` beside its anchor, and propose new references.

    If ``options.store`` is given, its files are changed. If it is None, the store of the measured commit is read, and
    the changes are proposed on a new branch. With ``options.proposal_file``, this file is written instead of a branch.

    The measurements stay in the folder ``options.out``. They run in a sandbox, unless with ``options.no_sandbox``.
    ``now`` is the time in the new records; None for the present time. Raises ConfigError, CheckoutError, EngineError,
    RecordError.
    """
    now = now or datetime.now(UTC)
    head = resolve_arm(options.repo, options.rev)
    if options.config is not None:
        loaded = load_file(options.config)
    else:
        loaded = add_stand_ins(load_commit(partial(file_at, options.repo, FILE_NAME), head.commit), options.repo)
    config, folder = loaded.config, loaded.config.baselines.folder
    own_engine = open_engine(
        options.engine,
        config,
        options.cache,
        lambda text: watch(Progress(done=0, total=0, text=text)),
        untrusted=True,
        no_sandbox=options.no_sandbox,
    )
    with own_engine as engine, tempfile.TemporaryDirectory(prefix="regbot-") as scratch:
        planned = plan(config, options.workloads)
        tasks = [task for task in timed_tasks(config, planned, engine.gpus) if task.workload.adapter != "command"]
        if not tasks:
            raise ConfigError(
                "no workload is timed whose sessions can be references: a command does not prove what code it runs",
                "see 'timed' in docs/configuration.md; calibrate a command with 'regbot calibrate'",
            )
        write_text(options.out / ".gitignore", "*\n")  # git ignores everything in the folder
        if options.store is None:
            export(options.repo, head.commit, [folder], Path(scratch))
        store = Store(options.store if options.store is not None else Path(scratch) / folder)
        files_before = store_files(store)
        setup = _RefreshSetup(options, loaded, head, store, planned, len(tasks), watch, engine)
        measured_nights = [_measure(setup, task) for task in tasks]
        # Why each night could not be stored; '' if nothing went wrong.
        problems = [store_night(measured, head, store, options.who, options.why, now) for measured in measured_nights]
        files_after = store_files(store)
        written = [path for path in files_after if files_before.get(path) != files_after[path]]
        report = _build_report(head, measured_nights, problems, written)
        if options.proposal_file is not None:
            write_record(options.proposal_file, build_proposal(store, report, written, now))
        elif written and options.store is None:
            branch = options.branch or f"regbot/refresh-{now:%Y-%m-%d}-{secrets.token_hex(3)}"
            # The branch takes the content of each written file, and removes a file whose value is None.
            files: dict[str, Path | None] = {f"{folder}/{path}": store.root / path for path in written}
            files |= {f"{folder}/{path}": None for path in files_before if path not in files_after}
            proposed_commit = create_branch(options.repo, head.commit, files, branch, commit_message(report))
            report = report.model_copy(update={"branch": branch, "proposal": proposed_commit})
    write_record(options.out / "refresh.json", report)
    write_text(options.out / "pull-request.md", proposal_text(report))
    return report


def _measure(setup: _RefreshSetup, task: Task) -> MeasuredNight:
    """Time one workload at the anchor's commit and at head in pairs, and judge the session of this night.

    If the workload has no anchor yet, head is compared with itself. The other meshes of the workload are traced in the
    same session. Their ledgers are refreshed, and their collectives count in the verdict.
    """
    options, store, config = setup.options, setup.store, setup.loaded.config
    siblings = [other for other in setup.planned if other.workload_name == task.workload_name]
    entries = [other.entry for other in siblings if other.shape.name == task.shape.name]
    node_class = _find_node_class(setup.engine, task)
    folder = class_folder(task.entry, task.variant.name, node_class)
    anchor = store.anchor(task.entry, task.variant.name, node_class)
    anchor_commit = anchor.commit if anchor is not None else setup.head.commit
    calibrations = [store.calibration(path) for path in store.calibrations(folder)]
    checked = check(_make_check_options(setup, task, entries, anchor_commit, calibrations), setup.watch, setup.engine)
    pair_set = pair_up(checked.session.timed_runs(task.entry))
    tonight, history = None, NightHistory(nights=[], pair_sd=None, monitors=setup.monitors)
    if pair_set.valid:
        tonight = AnchorComparison(commit=anchor_commit, log_ratios=pair_set.log_ratios())
        stored = timed_sessions(store, folder)
        history = _load_history(setup, task, checked, pair_set.valid[-1], anchor_commit, stored, calibrations)
    acceptance = None
    if options.accept_pct is not None:  # ``options.who`` accepts a slowdown of up to this many percent
        acceptance = Acceptance(who=options.who, slowdown_pct=options.accept_pct, why=options.why)
    own_verdict = next(workload for workload in checked.verdict.workloads if workload.name == task.entry)
    meshes = checked.verdict.workloads
    # The gravest sections of all meshes count. ``GRAVITY`` begins with the gravest status.
    sections = {
        "sharding": min((mesh.sharding for mesh in meshes if mesh.sharding is not None), key=_gravity, default=None),
        "program": min((mesh.program for mesh in meshes if mesh.program is not None), key=_gravity, default=None),
        "validity": min((mesh.validity for mesh in meshes), key=_gravity),
    }
    verdict, variant = own_verdict.model_copy(update=sections), task.variant.name
    night = judge_night(verdict, variant, anchor.commit if anchor else None, tonight, history, config, acceptance)
    return MeasuredNight(task, entries, node_class, anchor, checked, night, tonight)


def _gravity(section: Sharding | ProgramSection | Validity) -> int:
    return GRAVITY.index(section.status)


def _find_node_class(engine: Engine, task: Task) -> str:
    """Return the class of the nodes that will time ``task``. If the engine does not know the node class yet, reserve a
    seat and read the class of the reserved node."""
    needs = needs_of(task)
    if (node := engine.describe(needs)) is not None:
        return node.node_class
    with engine.seat(needs) as seat:
        return seat.node.node_class


def _make_check_options(
    setup: _RefreshSetup, task: Task, entries: list[str], anchor_commit: str, calibrations: Sequence[Calibration]
) -> CheckOptions:
    """Return the options of the check that compares head with the anchor's commit.

    It always times a new session, even if no code has changed since the anchor.
    """
    options = setup.options
    noise = summarise_calibrations(calibrations)
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
    setup: _RefreshSetup,
    task: Task,
    checked: CheckResult,
    last_pair: Pair,
    anchor_commit: str,
    stored: Sequence[Baseline],
    calibrations: Sequence[Calibration],
) -> NightHistory:
    """Return the earlier nights of a workload that are comparable with this night.

    ``last_pair`` is the last valid pair of this night. ``stored`` and ``calibrations`` are those of the workload on
    this node class.
    """
    assert last_pair.head.timing is not None
    environment, clock = environment_of(last_pair.head), last_pair.head.timing.clock
    # With --resume, the session of this night may already be stored. It is not an earlier night.
    own_session = session_identity(checked.session.header, task.entry, "timed", "head")
    earlier = [item for item in stored if item.environment == environment and item.session != own_session]
    # ``against`` is the comparison with the anchor; None if the session did not measure the anchor beside main.
    comparisons = [baseline.against for baseline in earlier]
    timed_plan = next(timed_plan for timed_plan in checked.session.header.timed if timed_plan.entry == task.entry)
    calibrations = [item for item in calibrations if item.environment == environment]
    terms = planned_terms(timed_plan, clock)
    noise = summarise_calibrations([item for item in calibrations if terms_of(item) == terms])
    return NightHistory(
        nights=[comparison for comparison in comparisons if comparison and comparison.commit == anchor_commit],
        pair_sd=noise.sd_pct / 100 if noise is not None else None,
        monitors=setup.monitors,
        luck=noise.arm_luck.counted_pct / 100 if noise is not None and noise.arm_luck is not None else 0.0,
    )


def _build_report(
    head: Arm, measured: Sequence[MeasuredNight], problems: Sequence[str], written: Sequence[PurePosixPath]
) -> RefreshReport:
    """Return the report on all workloads. ``written`` are the new and changed files of the store.

    ``problems`` has the reason why a night could not be stored, or '', for each of ``measured``. If all nights pass,
    but one could not be stored, the report is INVALID.
    """
    pairs = zip(measured, problems, strict=True)
    nights = [item.night.model_copy(update={"not_stored": problem}) for item, problem in pairs]
    warnings = [clip_message(f"{night.name}: not stored: {night.not_stored}") for night in nights if night.not_stored]
    status = select_gravest_status(night.status for night in nights)
    if warnings and status == "PASS":
        status = "INVALID"
    warnings += [warning for measured_night in measured for warning in measured_night.checked.verdict.warnings]
    return RefreshReport(
        status=status,
        commit=head.commit,
        branch=None,
        proposal=None,
        files=[str(path) for path in written],
        workloads=nights,
        warnings=list(dict.fromkeys(warnings)),  # without duplicates, in order
    )
