"""The command line: parse, call one function, print, exit code. What is imported where decides how fast help is."""

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

os.environ.setdefault("TYPER_USE_RICH", "0")  # plain help: rich alone costs as much as everything else together

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from regbot.check import Checked
    from regbot.progress import Watcher
    from regbot.records.verdict import Status

USAGE_ERROR = 2
INTERRUPTED = 130
"""As a shell names a command that Ctrl-C ended."""
INTERNAL_ERROR = 70
"""A fault of regbot itself: a code that no verdict has, so that no build takes it for a regression."""

app = typer.Typer(
    help="Did the sharding change, did throughput change, can the answer be trusted: regbot judges pull requests to "
    "MoE training code.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
ledger_app = typer.Typer(
    help="Collective ledgers: trace one without a GPU, compare two.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(ledger_app, name="ledger")

baseline_app = typer.Typer(help="The stored references.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(baseline_app, name="baseline")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output and nothing else.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for verdict.json, comment.md, report.html.")]
Expect = Annotated[
    list[str] | None,
    typer.Option("--expect", metavar="RULE", help="Accept a finding: 'pattern@axis@workload: reason'. Repeatable."),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Use this regbot.toml instead of the base commit's.")
]


StoreFolder = Annotated[Path, typer.Option("--store", metavar="DIR", help="Folder of the stored baselines.")]
Who = Annotated[str | None, typer.Option("--who", metavar="NAME", help="Default: GITHUB_ACTOR, else the user.")]


class _Lists(TyperCommand):
    """A command whose ``--base`` and ``--head`` take all values up to the next option, as a shell's ``*`` gives."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spread: list[str] = []
        option, waiting = "", False
        for word in args:
            if word.startswith("-"):
                name = word.partition("=")[0]
                option = name if name in ("--base", "--head") else ""
                waiting = option == word
            elif option and not waiting:
                spread.append(option)
            else:
                waiting = False
            spread.append(word)
        return super().parse_args(ctx, spread)


def main() -> None:
    """Entry point of the ``regbot`` command."""
    try:
        app()
    except Exception:
        traceback.print_exc()
        print("regbot: this is a fault of regbot; please report it with the lines above", file=sys.stderr)
        sys.exit(INTERNAL_ERROR)


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from regbot import __version__

        typer.echo(f"regbot {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def demo(
    harmless: Annotated[bool, typer.Option("--harmless", help="A pull request that changes nothing.")] = False,
    slow: Annotated[bool, typer.Option("--slow", help="A slow pull request with unchanged collectives.")] = False,
    out: Out = Path("demo-out"),
) -> None:
    """The main job on embedded defaults: a small repository, a pull request, a verdict. Needs no GPU.

    Exits 0 when regbot saw what was planted.
    """
    if harmless and slow:
        raise typer.BadParameter("--harmless and --slow are two different pull requests; give one of them")
    with _usage_errors(), _progress() as watch:
        from regbot.demo.run import run_demo

        result = run_demo("harmless" if harmless else "slow" if slow else "fallback", out.resolve(), _cache(), watch)
    _print_checked(result.checked, as_json=False)
    typer.echo(result.message)
    raise typer.Exit(0 if result.as_planted else 1)


@app.command()
def check(
    base: Annotated[str | None, typer.Option("--base", metavar="REV", help="Default: merge base with main.")] = None,
    head: Annotated[str, typer.Option("--head", metavar="REV")] = "HEAD",
    base_set: Annotated[list[str] | None, typer.Option("--base-set", metavar="K=V", help="Override at base.")] = None,
    head_set: Annotated[list[str] | None, typer.Option("--head-set", metavar="K=V", help="Override at head.")] = None,
    workload: Annotated[list[str] | None, typer.Option("--workload", metavar="W", help="Only these workloads.")] = None,
    engine: Annotated[str, typer.Option("--engine", metavar="E", help="Where runs execute: local.")] = "local",
    expect: Expect = None,
    config: ConfigFile = None,
    budget: Annotated[
        float | None, typer.Option("--budget", metavar="MIN", min=0.1, help="Minutes of timed runs. Default: 60.")
    ] = None,
    no_timing: Annotated[bool, typer.Option("--no-timing", help="Only the sharding verdict: time nothing.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the check in DIR that was ended.")] = False,
    out: Out = Path("regbot-out"),
    repo: Annotated[Path, typer.Option("--repo", metavar="DIR", help="The git repository.")] = Path(),
    json: Json = False,
) -> None:
    """Judge a change: its collectives exactly and without a GPU, its step times by interleaved runs."""
    with _usage_errors(resumable=out.resolve()), _progress(quiet=json) as watch:
        from regbot.check import CheckOptions
        from regbot.check import check as run_check
        from regbot.config import parse_override
        from regbot.judge import parse_expectation

        _known_engine(engine)
        result = run_check(
            CheckOptions(
                repo=repo,
                cache=_cache(),
                out=out.resolve(),
                base=base,
                head=head,
                base_overrides=dict(parse_override(text, "--base-set") for text in base_set or []),
                head_overrides=dict(parse_override(text, "--head-set") for text in head_set or []),
                workloads=workload or [],
                expectations=[parse_expectation(text) for text in expect or []],
                config=config,
                timing=not no_timing,
                budget_min=budget,
                resume=resume,
            ),
            watch,
        )
    _print_checked(result, json)
    raise typer.Exit(_exit_code(result.verdict.verdict))


@app.command()
def run(
    workload: Annotated[str, typer.Argument(help="A shape's name, or a workload of ./regbot.toml [:SHAPE][/MESH].")],
    rev: Annotated[
        str | None, typer.Option("--rev", metavar="REV", help="A commit. Default: files as they stand.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", metavar="V", help="Default: smoke with enough GPUs, else cpu.")
    ] = None,
    engine: Annotated[str, typer.Option("--engine", metavar="E", help="Where runs execute: local.")] = "local",
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the run record there.")] = None,
    json: Json = False,
) -> None:
    """Time one run of a workload. One run proves nothing: regbot compare wants at least four of each side."""
    with _usage_errors(), _progress(quiet=json) as watch:
        from regbot.records.files import write_record
        from regbot.single import Single, run_once
        from regbot.terminal import run_page

        _known_engine(engine)
        found = run_once(Single(workload, rev, variant), Path.cwd(), _cache(), watch)
        if out is not None:
            write_record(out, found)
    typer.echo((found.to_json() if json else run_page(found)).rstrip("\n"))
    raise typer.Exit(0 if found.outcome == "ok" else _exit_code("INVALID"))


@app.command()
def judge(
    sessions: Annotated[list[Path], typer.Argument(metavar="SESSION...", help="session.jsonl files.")],
    expect: Expect = None,
    config: ConfigFile = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Also write the report there.")] = None,
    json: Json = False,
) -> None:
    """The trusted half of check: compute the verdict again from session files."""
    with _usage_errors():
        from regbot.check import judge_sessions
        from regbot.judge import parse_expectation

        checked = judge_sessions(sessions, config, [parse_expectation(text) for text in expect or []], out)
    _print_checked(checked, json)
    raise typer.Exit(_exit_code(checked.verdict.verdict))


@app.command(cls=_Lists)
def compare(
    base: Annotated[list[Path], typer.Option("--base", metavar="F...", help="Step times of base, one file a run.")],
    head: Annotated[list[Path], typer.Option("--head", metavar="F...", help="Step times of head, one file a run.")],
    paired: Annotated[
        bool, typer.Option("--paired", help="The i-th base and head file are a pair, in session order.")
    ] = False,
    noise: Annotated[
        float | None, typer.Option("--noise", metavar="PCT", help="Known sd of a pair's log-ratio. With --paired.")
    ] = None,
    skip: Annotated[
        int | None,
        typer.Option(
            "--skip", metavar="N", help="Steps to leave out as warm-up. Default: 10 of CSV and logs, a record's own."
        ),
    ] = None,
    tokens_per_step: Annotated[
        float | None,
        typer.Option("--tokens-per-step", metavar="N", help="Of one step on one rank, for logs of torchtitan."),
    ] = None,
    json: Json = False,
) -> None:
    """Judge step times from files: CSV with the header step,step_s, Run records, or logs of Megatron-LM, Megatron
    Bridge, MaxText and torchtitan, golden values and TensorBoard's JSON export among them."""
    with _usage_errors():
        from regbot.compare import Comparison, compare_page
        from regbot.compare import compare as compare_files

        verdict = compare_files(Comparison(base, head, paired, noise, skip, tokens_per_step))
        text = verdict.to_json() if json else compare_page(verdict)
    typer.echo(text.rstrip("\n"))
    raise typer.Exit(_exit_code(verdict.verdict))


@app.command()
def shapes(
    name: Annotated[str | None, typer.Argument(help="One shape in full.")] = None,
    json: Json = False,
) -> None:
    """The fixed smoke shapes, or one of them in full."""
    with _usage_errors():
        from regbot.shapes import load_shape, shape_names
        from regbot.terminal import shape_list, shape_page

        if name is None:
            found = [load_shape(each) for each in shape_names()]
            text = "[" + ",\n".join(shape.to_json() for shape in found) + "]" if json else shape_list(found)
        else:
            shape = load_shape(name)
            text = shape.to_json() if json else shape_page(shape)
    typer.echo(text.rstrip("\n"))


@app.command()
def doctor(json: Json = False) -> None:
    """What this machine can do, and what is missing for the rest."""
    with _usage_errors():
        from regbot.doctor import examine
        from regbot.terminal import diagnosis_page

        diagnosis = examine()
    typer.echo((diagnosis.to_json() if json else diagnosis_page(diagnosis)).rstrip("\n"))


@app.command()
def preflight(
    what: Annotated[
        str, typer.Argument(metavar="FILE|WORKLOAD", help="A ledger, run or configuration; or a workload.")
    ],
    json: Json = False,
) -> None:
    """Conflicts of a resolved configuration, before any node is used, and what to try on this hardware."""
    with _usage_errors(), _progress(quiet=json) as watch:
        from regbot.preflight import preflight_page
        from regbot.resolved import examine_configuration

        found = examine_configuration(what, Path.cwd(), watch)
        text = found.record().to_json() if json else preflight_page(found.conflicts, found.advice, found.unknown)
    typer.echo(text.rstrip("\n"))
    raise typer.Exit(_exit_code("INVALID") if found.invalid else 0)


@ledger_app.command("trace")
def ledger_trace(
    workload: Annotated[str, typer.Argument(help="A shape's name, or a workload of ./regbot.toml [:SHAPE][/MESH].")],
    world: Annotated[int | None, typer.Option("--world", metavar="N", help="Ranks. Default: the shape's mesh.")] = None,
    ep: Annotated[int | None, typer.Option("--ep", metavar="N", help="Expert-parallel size.")] = None,
    variant: Annotated[str | None, typer.Option("--variant", metavar="V", help="Default: its own, else full.")] = None,
    dispatcher: Annotated[
        str,
        typer.Option(
            "--dispatcher", metavar="D", help="alltoall, allgather, deepep, hybridep; a framework has its own names."
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Trace the static ledger of one workload as the files stand here. No GPU, any world."""
    with _usage_errors(), _progress(quiet=json) as watch:
        from regbot.terminal import trace_page
        from regbot.tracing import Choice, trace_here

        run = trace_here(Choice(workload, world, ep, variant, dispatcher), Path.cwd(), watch)
    if run.ledger is None:
        print(f"regbot: {run.workload}: INVALID: {run.reason}", file=sys.stderr)
        for line in run.log_tail.splitlines() if run.outcome != "refused" else []:
            print(f"  | {line}", file=sys.stderr)
        if json:
            typer.echo(run.to_json().rstrip("\n"))
        raise typer.Exit(_exit_code("INVALID"))
    typer.echo((run.ledger.to_json() if json else trace_page(run)).rstrip("\n"))


@ledger_app.command("read")
def ledger_read(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="One file of each rank, of one format.")],
    format: Annotated[str, typer.Option("--format", metavar="F", help="Default: what the content shows.")] = "",
    json: Json = False,
) -> None:
    """The collectives in a trace, a compiled program or a communication log."""
    with _usage_errors():
        from regbot.terminal import ledger_page
        from regbot.tracing import read_ledgers

        ledger = read_ledgers(files, format)
    typer.echo((ledger.to_json() if json else ledger_page(ledger, files[0].name)).rstrip("\n"))


@ledger_app.command("diff")
def ledger_diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="The base: a ledger, a run record, or any file 'read' takes.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Ledger of the head.")],
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """What changed between two ledgers, by name, and what it means."""
    with _usage_errors():
        from regbot.config import Config, load_config
        from regbot.judge import judge_ledgers
        from regbot.terminal import diff_page
        from regbot.tracing import read_ledger

        base, head = read_ledger(a), read_ledger(b)
        sharding = judge_ledgers(base, head, load_config(config) if config else Config())
    if json:
        from regbot.records.verdict import LedgerDiff

        typer.echo(LedgerDiff.model_validate(sharding.model_dump()).to_json().rstrip("\n"))
    else:
        typer.echo(diff_page(sharding, base, head).rstrip("\n"))
    raise typer.Exit(_exit_code(sharding.status))


@baseline_app.command("list")
def baseline_list(store: StoreFolder = Path("baselines"), json: Json = False) -> None:
    """What is stored."""
    with _usage_errors():
        from regbot.baselines import Store, commands

        found = commands.listing(Store(store))
        text = found.to_json() if json else commands.list_page(found)
    typer.echo(text.rstrip("\n"))


@baseline_app.command("show")
def baseline_show(
    name: Annotated[str, typer.Argument(metavar="HASH")], store: StoreFolder = Path("baselines"), json: Json = False
) -> None:
    """One stored session in full."""
    with _usage_errors():
        from regbot.baselines import Store, commands

        path, found = commands.find(Store(store), name)
        text = found.to_json() if json else commands.show_page(path, found)
    typer.echo(text.rstrip("\n"))


@baseline_app.command("add")
def baseline_add(
    session: Annotated[Path, typer.Argument(metavar="SESSION", help="session.jsonl of a check.")],
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Why this session is a reference.")],
    arm: Annotated[Literal["base", "head"], typer.Option("--arm", help="Whose runs are stored.")] = "base",
    workload: Annotated[list[str] | None, typer.Option("--workload", metavar="ENTRY", help="Only these.")] = None,
    series: Annotated[
        Literal["rolling", "anchor"], typer.Option("--series", help="anchor for a re-run of the anchor commit.")
    ] = "rolling",
    container: Annotated[
        str | None, typer.Option("--container", metavar="DIGEST", help="Image that the runs had, if any.")
    ] = None,
    who: Who = None,
    store: StoreFolder = Path("baselines"),
    json: Json = False,
) -> None:
    """Store one arm of a session. What it says is stored is on the disk."""
    with _usage_errors():
        from regbot.baselines import Intake, Store, commands

        asked = Intake(str(session), who or commands.default_who(), why, arm, workload or (), series, container)
        found = commands.add(Store(store), session, asked)
        text = found.to_json() if json else commands.added_page(found)
    typer.echo(text.rstrip("\n"))


@baseline_app.command("verify")
def baseline_verify(store: StoreFolder = Path("baselines"), json: Json = False) -> None:
    """Read the whole store; every problem is one line. Exits 1 where there is one."""
    with _usage_errors():
        from regbot.baselines import Store, commands

        found = commands.verified(Store(store))
        text = found.to_json() if json else commands.verify_page(found)
    typer.echo(text.rstrip("\n"))
    raise typer.Exit(1 if found.problems else 0)


@baseline_app.command("anchor")
def baseline_anchor(
    workload: Annotated[str, typer.Argument(metavar="ENTRY")],
    to: Annotated[str | None, typer.Option("--to", metavar="COMMIT", help="Move the anchor there.")] = None,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Why it moves.")] = "",
    variant: Annotated[str | None, typer.Option("--variant", metavar="V")] = None,
    node_class: Annotated[str | None, typer.Option("--class", metavar="CLASS", help="Node class.")] = None,
    who: Who = None,
    store: StoreFolder = Path("baselines"),
    json: Json = False,
) -> None:
    """The anchors of a workload; with --to, move one."""
    with _usage_errors():
        from regbot.baselines import Store, commands
        from regbot.config import ConfigError

        at = Store(store)
        if to is not None and not why:
            raise ConfigError("--to needs --why: an anchor says why it is one")
        if to is not None:
            move = commands.Move(workload, to, who or commands.default_who(), why, variant, node_class)
            found = [commands.move_anchor(at, move)]
        else:
            found = commands.anchors(at, workload, variant, node_class)
        text = "[" + ",\n".join(each.to_json() for each in found) + "]" if json else commands.anchor_page(found)
    typer.echo(text.rstrip("\n"))


def _known_engine(name: str) -> None:
    from regbot.config import ConfigError

    if name != "local":
        raise ConfigError(f"--engine {name}: there is no such engine; there is local")


def _cache() -> Path:
    """Where clones and worktrees are kept: REGBOT_CACHE, else the user's cache folder."""
    given = os.environ.get("REGBOT_CACHE")
    if given:
        return Path(given).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regbot"


def _exit_code(status: "Status") -> int:
    from regbot.records.verdict import EXIT_CODES

    return EXIT_CODES[status]


def _print_checked(checked: "Checked", as_json: bool) -> None:
    if as_json:
        typer.echo(checked.verdict.to_json().rstrip("\n"))
        return
    from regbot.terminal import verdict_page

    typer.echo(verdict_page(checked.verdict, checked.out).rstrip("\n"))


@contextmanager
def _usage_errors(resumable: Path | None = None) -> Iterator[None]:
    """Errors that the user can mend become a message and exit code 2; all others are ours and keep their traceback.

    ``resumable``: the folder whose ``session.jsonl`` an interrupted command can go on from.
    """
    try:
        yield
    except KeyboardInterrupt:
        session = resumable / "session.jsonl" if resumable is not None else None
        kept = f"; what ended is in {session}, go on with --resume" if session is not None and session.exists() else ""
        print(f"\nregbot: interrupted{kept}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(INTERRUPTED)  # the supervisors notice and end what still runs; threads are not waited for
    except OSError as error:
        _fail(f"{error.filename or ''}: {error.strerror or error}".removeprefix(": "))
    except Exception as error:
        if not _is_usage_error(error):
            raise
        _fail(str(error))


def _is_usage_error(error: Exception) -> bool:
    from regbot.checkout import CheckoutError
    from regbot.config import ConfigError
    from regbot.engines import EngineError
    from regbot.judge import ExpectationError, NotComparable
    from regbot.ledgers.readers import ReadError
    from regbot.logs import LogError
    from regbot.records import RecordError
    from regbot.shapes import ShapeError

    mendable = (
        ConfigError,
        ShapeError,
        CheckoutError,
        RecordError,
        ReadError,
        LogError,
        EngineError,
        ExpectationError,
        NotComparable,
    )
    return isinstance(error, mendable)


def _fail(message: str) -> NoReturn:
    for line in message.splitlines():
        print(f"regbot: {line}", file=sys.stderr)
    raise typer.Exit(USAGE_ERROR)


@contextmanager
def _progress(quiet: bool = False) -> Iterator["Watcher"]:
    """Says on standard error what is being done: a live line on a terminal, plain lines elsewhere."""

    if quiet:
        yield lambda _: None
    elif not sys.stderr.isatty():
        yield lambda progress: print(f"[{progress.done}/{progress.total}] {progress.text}", file=sys.stderr, flush=True)
    else:
        with _live_progress() as watch:
            yield watch


@contextmanager
def _live_progress() -> Iterator[Callable[[Any], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        BarColumn(24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def watch(progress: Any) -> None:
            bar.update(task, completed=progress.done, total=progress.total or None, description=progress.text)

        yield watch
