"""A refresh from beginning to end: measure, judge each night, store, propose a branch or one file."""

import secrets
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from regbot.baselines import Store, environment_of
from regbot.baselines.intake import run_summaries, session_identity
from regbot.baselines.names import class_folder
from regbot.baselines.reference import calibrated, on_terms
from regbot.check import CheckOptions, check
from regbot.checkout import export, propose, resolve_arm
from regbot.conclusion import Checked
from regbot.config import FILE_NAME, Config, ConfigError, parse_config
from regbot.engines import Engine
from regbot.judge.pairs import pair_up, timed_runs
from regbot.judge.standing import thresholds_of
from regbot.progress import Watcher
from regbot.records.baseline import Acceptance, AgainstAnchor, Baseline, EnvironmentKey
from regbot.records.calibration import Calibration
from regbot.records.files import write_record, write_text
from regbot.records.refresh import Refreshed
from regbot.records.run import Arm, Run
from regbot.records.verdict import GRAVITY, WorkloadVerdict, gravest
from regbot.refresh.keeping import keep
from regbot.refresh.night import History, Limits, judge_night
from regbot.refresh.proposal import proposal_of
from regbot.refresh.site import Measured, Options, Site, class_of, engine_of, settings_of
from regbot.refresh.stored import store_files, timed_sessions
from regbot.refresh.words import commit_message, proposal_text
from regbot.stats.drift import night_pairs
from regbot.trees import plain_name
from regbot.workloads import Task, plan, timed_tasks


def refresh(
    options: Options, watch: Watcher = lambda _: None, engine: Engine | None = None, now: datetime | None = None
) -> Refreshed:
    """Measure every timed workload of ``rev`` beside its anchor and propose what may be stored.

    Raises ConfigError, CheckoutError, EngineError, RecordError. What was measured stays in ``options.out``.
    """
    now = now or datetime.now(UTC)
    head = resolve_arm(options.repo, options.rev)
    text = settings_of(options, head)
    config = parse_config(text, f"{FILE_NAME} of {options.rev}")
    with nullcontext(engine) if engine is not None else engine_of(options, config, watch) as where:
        return _refresh_on(where, options, watch, now, head, text, config)


def _refresh_on(
    engine: Engine, options: Options, watch: Watcher, now: datetime, head: Arm, text: str, config: Config
) -> Refreshed:
    planned = plan(config, options.workloads)
    every = timed_tasks(config, planned, engine.gpus)
    tasks = [task for task in every if task.workload.adapter != "command"]
    if every and not tasks:
        raise ConfigError(
            f"workloads.{every[0].workload_name}: is a command, which does not prove the code that it runs, so nothing "
            "of it can be a reference; its step times are judged by pairs, and 'regbot calibrate' takes it"
        )
    if not tasks:
        raise ConfigError("no workload is timed, so there is nothing to refresh; see 'timed' in docs/configuration.md")
    write_text(options.out / ".gitignore", "*\n")
    with tempfile.TemporaryDirectory(prefix="regbot-") as scratch:
        folder = config.baselines.folder
        if options.store is None:
            export(options.repo, head.commit, [folder], Path(scratch))
        store = Store(options.store if options.store is not None else Path(scratch) / folder)
        before = store_files(store)
        settings = Path(scratch) / FILE_NAME
        settings.write_text(text, encoding="utf-8")
        site = Site(options, config, settings, head, store, planned, len(tasks), watch, engine)
        measured = [_measure(site, task) for task in tasks]
        warnings = [warning for each in measured for warning in keep(each, options, head, store, now)]
        after = store_files(store)
        added = [path for path in after if before.get(path) != after[path]]
        found = _refreshed(head, measured, added, warnings)
        if options.proposal is not None:
            write_record(options.proposal, proposal_of(store, found, added, now))
        elif added and options.store is None:
            branch = options.branch or f"regbot/refresh-{now:%Y-%m-%d}-{secrets.token_hex(3)}"
            changed = [*added, *(path for path in before if path not in after)]
            files = {f"{folder}/{path}": store.root / path if path in after else None for path in changed}
            commit = propose(options.repo, head.commit, files, branch, commit_message(found))
            found = found.model_copy(update={"branch": branch, "proposal": commit})
    write_record(options.out / "refresh.json", found)
    write_text(options.out / "pull-request.md", proposal_text(found))
    return found


def _measure(site: Site, task: Task) -> Measured:
    """Run one workload at the anchor's commit and at head, side by side, and judge the night.

    Its other meshes are traced with it: their ledgers are refreshed too, and their collectives count.
    """
    options, store = site.options, site.store
    entries = [
        each.entry
        for each in site.planned
        if (each.workload_name, each.shape.name) == (task.workload_name, task.shape.name)
    ]
    node_class = class_of(site.engine, task)
    where = class_folder(task.entry, task.variant.name, node_class)
    anchor = store.anchor(task.entry, task.variant.name, node_class)
    commit = anchor.commit if anchor is not None else site.head.commit
    calibrations = [store.calibration(path) for group in store.folders(where) for path in store.calibrations(group)]
    noise = calibrated(calibrations, thresholds_of(site.config.throughput))
    asked = CheckOptions(
        repo=options.repo,
        cache=options.cache,
        out=options.out / plain_name(task.entry),
        base=commit,
        head=site.head.commit,
        workloads=entries,
        config=site.settings,
        even_if_identical=True,
        gate="pairs",
        exact=True,
        join=False,
        baselines=store.root,
        pairs=options.pairs or night_pairs(noise.sd_pct / 100 if noise is not None else 0.0),
        budget_min=options.budget_min,
        resume=options.resume,
    )
    checked = check(asked, site.watch, site.engine)
    runs = timed_runs(checked.session, task.entry)
    pairs = pair_up(runs)
    tonight = AgainstAnchor(commit=commit, log_ratios=pairs.log_ratios()) if pairs.valid else None
    verdict = _verdict_of(checked, task.entry)
    environment = environment_of(pairs.valid[-1].head) if pairs.valid else None
    stored = timed_sessions(store, where)
    again = session_identity(checked.session.header, task.entry, "timed", "head")
    own = [each for each in stored if each.environment == environment and each.session != again]
    nights = [each.against for each in own if each.against is not None and each.against.commit == commit]
    before, changes = _before(stored, environment, commit) if environment is not None and not own else ([], [])
    here = calibrated(
        [each for each in calibrations if each.environment == environment and _on_its_terms(each, checked, runs)],
        thresholds_of(site.config.throughput),
    )
    history = History(nights, here.sd_pct / 100 if here is not None else None, site.monitors, before, changes)
    limits = Limits(site.config.baselines.creep_budget_pct, site.config.throughput.threshold_pct)
    accepted = None
    if options.accept_pct is not None:
        accepted = Acceptance(who=options.who, slowdown_pct=options.accept_pct, why=options.why)
    levels = [run_summaries(pair.base.timing)["median"] for pair in pairs.valid if pair.base.timing is not None]
    night = judge_night(
        verdict, task.variant.name, anchor.commit if anchor else None, tonight, history, limits, accepted, levels
    )
    return Measured(task, entries, node_class, anchor, checked, night, tonight)


def _verdict_of(checked: Checked, entry: str) -> WorkloadVerdict:
    """The verdict on ``entry``, with the worst that is said of the sharding and of the trust in any of its meshes."""
    found = next(each for each in checked.verdict.workloads if each.name == entry)
    sections = [each.sharding for each in checked.verdict.workloads if each.sharding is not None]
    sharding = min(sections, key=lambda each: GRAVITY.index(each.status), default=None)
    validity = min((each.validity for each in checked.verdict.workloads), key=lambda each: GRAVITY.index(each.status))
    return found.model_copy(update={"sharding": sharding, "validity": validity})


def _on_its_terms(calibration: Calibration, checked: Checked, runs: Sequence[Run]) -> bool:
    """Whether a calibration was timed as these runs of the check were."""
    plan = next(plan for plan in checked.session.header.timed if plan.entry == runs[-1].workload)
    return any(run.timing is not None and on_terms(calibration, plan, run.timing.clock) for run in runs)


def _before(stored: Sequence[Baseline], environment: EnvironmentKey, commit: str) -> tuple[list[Baseline], list[str]]:
    """Sessions of ``commit`` in the newest environment that is not this one, and in what the two differ."""
    others = [each for each in stored if each.commit == commit and each.environment != environment]
    if not others:
        return [], []
    newest = others[-1].environment
    then, here = newest.model_dump(), environment.model_dump()
    differing = [name for name in then if then[name] != here[name]]
    changes = [f"{name}: {then[name] or 'unknown'} before, {here[name] or 'unknown'} now" for name in differing]
    return [each for each in others if each.environment == newest], changes


def _refreshed(
    head: Arm, measured: Sequence[Measured], added: Sequence[PurePosixPath], warnings: list[str]
) -> Refreshed:
    nights = [each.night for each in measured]
    status = gravest(night.status for night in nights)
    told = [warning for each in measured for warning in each.checked.verdict.warnings]
    return Refreshed(
        status="INVALID" if warnings and status == "PASS" else status,
        commit=head.commit,
        branch=None,
        proposal=None,
        files=[str(path) for path in added],
        workloads=nights,
        warnings=list(dict.fromkeys([*warnings, *told])),
    )
