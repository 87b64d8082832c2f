"""The whole check, readable top to bottom: plan, check out, trace both arms, judge, report.

Everything measured goes to ``session.jsonl`` as it ends. The verdict is then computed from that file alone, exactly as
``regbot judge`` would compute it anywhere else.
"""

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from regbot import __version__
from regbot.checkout import BuildError, Worktree, check_out, prune, resolve_arms
from regbot.checkout.git import try_git
from regbot.config import FILE_NAME, Config, ConfigError, load_config, parse_config
from regbot.engines import Engine, LocalEngine, clean_environment
from regbot.judge import Expectation, judge, parse_expectation
from regbot.records.files import RecordError, append_line, write_record, write_text
from regbot.records.ledger import Scalar
from regbot.records.run import Arm, Run
from regbot.records.session import Session, SessionHeader, read_session
from regbot.records.verdict import Verdict
from regbot.report import comment, html
from regbot.workloads import Limits, Task, bare_run, plan, trace

KEPT_WORKTREES = 16
"""Worktrees kept in the cache for later checks, least recently used dropped first."""

BUILD_TIMEOUT_S = 3600.0

REPEATED = ("crashed", "hung", "no_record")
"""Outcomes that a second attempt must confirm before they are blamed on the head."""


@dataclass(frozen=True)
class CheckOptions:
    """What the user asked for. ``config`` overrides the ``regbot.toml`` of the base commit."""

    repo: Path
    cache: Path
    out: Path
    base: str | None = None
    head: str = "HEAD"
    base_overrides: dict[str, Scalar] = field(default_factory=dict)
    head_overrides: dict[str, Scalar] = field(default_factory=dict)
    workloads: Sequence[str] = ()
    expectations: Sequence[Expectation] = ()
    config: Path | None = None


@dataclass(frozen=True)
class Progress:
    """One line of what happens, for whoever watches. ``total`` is the number of runs planned so far."""

    done: int
    total: int
    text: str


Watcher = Callable[[Progress], None]

Trees = dict[str, dict[str, Worktree | str]]
"""By arm and workload: the checkout, or why there is none."""


@dataclass(frozen=True)
class Checked:
    """The result of a check, and where its files are."""

    verdict: Verdict
    session: Session
    out: Path | None


def check(options: CheckOptions, watch: Watcher = lambda _: None, engine: Engine | None = None) -> Checked:
    """Run the static tier on both arms and judge it. Raises ConfigError, CheckoutError, EngineError."""
    base, head, warnings = resolve_arms(
        options.repo, options.base, options.head, options.base_overrides, options.head_overrides
    )
    config, config_warnings = find_config(options, base, head)
    tasks = plan(config, options.workloads)
    for arm in (base, head):
        for task in tasks:
            task.at(arm.overrides)  # an override that cannot be is an error now, not after minutes of work
    session_file = options.out / "session.jsonl"
    _clear(options.out)
    append_line(
        session_file,
        SessionHeader(
            regbot=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            base=base,
            head=head,
            workloads=[task.entry for task in tasks],
            expectations=[f"{rule}: {rule.reason}" for rule in options.expectations],
            sharding=config.sharding,
            wire=config.wire,
            warnings=[*warnings, *config_warnings],
        ),
    )
    tracing = _Tracing(options, config, session_file, engine or LocalEngine(), watch)
    tracing.run([(arm, task) for task in tasks for arm in (base, head)])
    prune(options.cache, keep=KEPT_WORKTREES)
    return conclude(session_file, config, options.expectations, options.out)


def _clear(out: Path) -> None:
    """Remove what an earlier check left in ``out``: an old verdict beside a new session would be read as its own."""
    for name in ("session.jsonl", "verdict.json", "comment.md", "report.html"):
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / "runs", ignore_errors=True)
    write_text(out / ".gitignore", "*\n")


def conclude(session_file: Path, config: Config, expectations: Sequence[Expectation], out: Path) -> Checked:
    """Judge a session file and write ``verdict.json``, ``comment.md`` and ``report.html`` into ``out``."""
    session = read_session(session_file)
    verdict = judge(session, config, expectations)
    _write_report(out, verdict, session)
    return Checked(verdict, session, out)


def _write_report(out: Path, verdict: Verdict, session: Session) -> None:
    write_record(out / "verdict.json", verdict)
    write_text(out / "comment.md", comment(verdict, session))
    write_text(out / "report.html", html(verdict, session))


def find_config(options: CheckOptions, base: Arm, head: Arm) -> tuple[Config, list[str]]:
    """The configuration of the base commit, so that a pull request cannot soften its own judge.

    The head's is used where the base has none, which is how regbot is introduced. Raises ConfigError.
    """
    if options.config is not None:
        return load_config(options.config), []
    texts = {arm.name: _file_at(options.repo, arm.commit) for arm in (base, head)}
    if texts["base"] is not None:
        changed = texts["head"] != texts["base"]
        note = f"{FILE_NAME} differs between base and head; the base's was used, so that a change cannot judge itself"
        return parse_config(texts["base"], f"{FILE_NAME} at {base.commit[:12]}"), [note] if changed else []
    if texts["head"] is not None:
        note = f"the base has no {FILE_NAME}; the head's was used"
        return parse_config(texts["head"], f"{FILE_NAME} at {head.commit[:12]}"), [note]
    raise ConfigError(
        f"neither {base.commit[:12]} nor {head.commit[:12]} has a {FILE_NAME}; commit one that names a workload "
        "(see docs/configuration.md), or give --config FILE"
    )


def _file_at(repo: Path, commit: str) -> str | None:
    answer = try_git(repo, "show", f"{commit}:{FILE_NAME}")
    return answer.out if answer.code == 0 else None


class _Tracing:
    """All traces of one check: a few at a time, each written down as it ends."""

    def __init__(
        self, options: CheckOptions, config: Config, session_file: Path, engine: Engine, watch: Watcher
    ) -> None:
        self._options, self._config, self._engine, self._watch = options, config, engine, watch
        self._session_file = session_file
        self._limits = Limits(
            max_output_bytes=int(config.local.max_output_mb * 2**20),
            max_record_bytes=int(config.local.max_record_mb * 2**20),
        )
        self._lock = threading.Lock()
        self._hung: dict[tuple[str, str], str] = {}
        self._done = self._total = 0

    def run(self, jobs: Sequence[tuple[Arm, Task]]) -> None:
        """Check out what the jobs need, trace them, and repeat the head's failures that the base does not share."""
        self._total = len(jobs)
        trees: Trees = {
            arm.name: self._check_out([task for who, task in jobs if who == arm], arm) for arm in _arms(jobs)
        }
        first = self._trace_all(jobs, trees, attempt=1)
        repeats = [
            (arm, task)
            for arm, task in jobs
            if arm.name == "head" and first["head", task.entry] in REPEATED and first["base", task.entry] == "ok"
        ]
        self._total += len(repeats)
        self._hung.clear()
        self._trace_all(repeats, trees, attempt=2)

    def _trace_all(self, jobs: Sequence[tuple[Arm, Task]], trees: Trees, attempt: int) -> dict[tuple[str, str], str]:
        with _pool(self._config.local.parallel) as pool:
            futures = {
                (arm.name, task.entry): pool.submit(self._one, arm, task, trees[arm.name][task.workload_name], attempt)
                for arm, task in jobs
            }
            return {key: future.result().outcome for key, future in futures.items()}

    def _one(self, arm: Arm, task: Task, tree: Worktree | str, attempt: int) -> Run:
        key = (arm.name, task.workload_name)
        if isinstance(tree, str):
            run = bare_run(task, arm, "crashed", tree, attempt)
        elif key in self._hung:
            why = f"not started: {self._hung[key]} of the same arm and workload hung before it"
            run = bare_run(task, arm, "skipped", why, attempt)
        else:
            self._say(f"{task.entry} at {arm.name} {arm.commit[:7]}")
            scratch = self._options.out / "runs" / f"{_plain(task.entry)}.{arm.name}.{attempt}"
            run = trace(
                task.at(arm.overrides), arm, tree.path, self._engine, scratch, self._limits, attempt, tree.environment
            )
            run = run.model_copy(update={"warnings": [*run.warnings, *_changed_by_build(tree)]})
        with self._lock:
            if run.outcome == "hung":
                self._hung[key] = task.entry
            append_line(self._session_file, run)
            self._done += 1
        self._say(f"{task.entry} at {arm.name}: {run.outcome}")
        return run

    def _check_out(self, tasks: Sequence[Task], arm: Arm) -> dict[str, Worktree | str]:
        """Worktree per workload, or why its build failed (twice: what fails once may be the network's fault)."""
        trees: dict[str, Worktree | str] = {}
        for task in {task.workload_name: task for task in tasks}.values():
            self._say(f"check out {arm.name} {arm.commit[:7]}")
            workload = task.at(arm.overrides).workload
            for attempt in (1, 2):
                try:
                    trees[task.workload_name] = check_out(
                        self._options.repo,
                        arm.commit,
                        self._options.cache,
                        workload.build,
                        workload.python,
                        BUILD_TIMEOUT_S,
                        clean_environment({}),
                    )
                    break
                except BuildError as error:
                    trees[task.workload_name] = f"the build failed {'twice' if attempt == 2 else ''}: {error}"
        return trees

    def _say(self, text: str) -> None:
        self._watch(Progress(self._done, self._total, text))


@contextmanager
def _pool(size: int) -> Iterator[ThreadPoolExecutor]:
    """A pool that, when interrupted, starts nothing new; what runs is ended by the engine."""
    pool = ThreadPoolExecutor(size)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _arms(jobs: Sequence[tuple[Arm, Task]]) -> list[Arm]:
    return list({arm.name: arm for arm, _ in jobs}.values())


def _plain(name: str) -> str:
    return "".join(character if character.isalnum() or character in "-." else "_" for character in name)


def _changed_by_build(tree: Worktree) -> list[str]:
    if not tree.changed:
        return []
    return [f"the build changed tracked files: {', '.join(tree.changed[:5])}; what was traced is not quite the commit"]


def judge_sessions(
    files: Sequence[Path], config: Path | None, expectations: Sequence[Expectation], out: Path | None
) -> Checked:
    """Judge stored sessions of the same two arms as one. Raises RecordError, ConfigError.

    Settings and declared changes are those of the check, the first session's, unless others are given.
    """
    sessions = [read_session(file) for file in files]
    first = sessions[0].header
    for file, session in zip(files, sessions, strict=True):
        theirs, ours = session.header, first
        if (theirs.base, theirs.head) != (ours.base, ours.head):
            raise RecordError(
                f"{file}: compares {theirs.base.commit[:12]} with {theirs.head.commit[:12]}, not "
                f"{ours.base.commit[:12]} with {ours.head.commit[:12]} as {files[0]}; judge them one by one"
            )
    entries = list(dict.fromkeys(entry for session in sessions for entry in session.header.workloads))
    warnings = list(dict.fromkeys(warning for session in sessions for warning in session.header.warnings))
    header = first.model_copy(update={"workloads": entries, "warnings": warnings})
    together = Session(header=header, runs=[run for session in sessions for run in session.runs])
    settings = load_config(config) if config else Config(sharding=first.sharding, wire=first.wire)
    rules = expectations or [parse_expectation(text) for text in first.expectations]
    verdict = judge(together, settings, rules)
    if out is not None:
        _write_report(out, verdict, together)
    return Checked(verdict, together, out)
