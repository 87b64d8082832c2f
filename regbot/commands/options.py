"""What all commands share: their common options, how they end, and how progress is shown."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from regbot.progress import Watcher
    from regbot.records.verdict import Status

USAGE_ERROR = 2
INTERRUPTED = 130
"""As a shell names a command that Ctrl-C ended."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output and nothing else.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for verdict.json, comment.md, report.html.")]
Expect = Annotated[
    list[str] | None,
    typer.Option("--expect", metavar="RULE", help="Accept a finding: 'pattern@axis@workload: reason'. Repeatable."),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Use this regbot.toml instead of the base commit's.")
]
NodeConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--node-config",
        metavar="FILE",
        help="Take what belongs to the machine from this regbot.toml (docs/sandbox.md).",
    ),
]
Baselines = Annotated[
    Path | None,
    typer.Option("--baselines", metavar="DIR", help="Stored references. Default: the base commit's, or the session's."),
]
Revision = Annotated[str | None, typer.Option("--rev", metavar="REV", help="A commit. Default: files as they stand.")]
TimedVariant = Annotated[
    str | None, typer.Option("--variant", metavar="V", help="Default: smoke with enough GPUs, else cpu.")
]
EngineName = Annotated[str, typer.Option("--engine", metavar="E", help="Where runs execute: local, slurm.")]
StoreFolder = Annotated[Path, typer.Option("--store", metavar="DIR", help="Folder of the stored baselines.")]
Who = Annotated[str | None, typer.Option("--who", metavar="NAME", help="Default: GITHUB_ACTOR, else the user.")]


def known_engine(name: str) -> None:
    from regbot.config import ENGINES, ConfigError

    if name not in ENGINES:
        raise ConfigError(f"--engine {name}: there is no such engine; there are {' and '.join(ENGINES)}")


def cache_folder() -> Path:
    """Where clones and worktrees are kept: REGBOT_CACHE, else the user's cache folder."""
    given = os.environ.get("REGBOT_CACHE")
    if given:
        return Path(given).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regbot"


def exit_code(status: "Status") -> int:
    from regbot.records.verdict import EXIT_CODES

    return EXIT_CODES[status]


@contextmanager
def usage_errors(resumable: Path | None = None, log: str = "session.jsonl") -> Iterator[None]:
    """Errors that the user can mend become a message and exit code 2; all others are ours and keep their traceback.

    ``resumable``: the folder whose ``log`` an interrupted command can go on from.
    """
    try:
        yield
    except KeyboardInterrupt:
        session = resumable / log if resumable is not None else None
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
    from regbot.paper import NoPaperGpuError
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
        NoPaperGpuError,
    )
    return isinstance(error, mendable)


def _fail(message: str) -> NoReturn:
    for line in message.splitlines():
        print(f"regbot: {line}", file=sys.stderr)
    raise typer.Exit(USAGE_ERROR)


@contextmanager
def progress(quiet: bool = False) -> Iterator["Watcher"]:
    """Says on standard error what is being done: a live line on a terminal, plain lines elsewhere."""

    if quiet:
        yield lambda _: None
    elif not sys.stderr.isatty():
        yield lambda progress: print(progress, file=sys.stderr, flush=True)
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
            if progress.lasting:
                bar.console.print(str(progress), markup=False, highlight=False)
                return
            bar.update(task, completed=progress.done, total=progress.total or None, description=progress.text)

        yield watch
