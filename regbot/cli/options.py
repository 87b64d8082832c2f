"""Options, exit codes, error messages and the progress display, which all commands share."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from regbot.errors import INTERRUPTED, UserError

if TYPE_CHECKING:
    from regbot.records.text.progress import Watcher
    from regbot.records.verdict import Status

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
        help="Take the machine tables [sandbox], [slurm] and [local] from this regbot.toml (docs/operator.md).",
    ),
]
Baselines = Annotated[
    Path | None,
    typer.Option("--baselines", metavar="DIR", help="Stored references. Default: the base commit's, or the session's."),
]
Revision = Annotated[
    str | None, typer.Option("--rev", metavar="REV", help="A commit. Default: the files of the working tree.")
]
TimedVariant = Annotated[
    str | None, typer.Option("--variant", metavar="V", help="Default: smoke with enough GPUs, else cpu.")
]
EngineName = Annotated[str, typer.Option("--engine", metavar="E", help="Where runs execute: local, slurm.")]
StoreFolder = Annotated[Path, typer.Option("--store", metavar="DIR", help="Folder of the stored baselines.")]
Who = Annotated[str | None, typer.Option("--who", metavar="NAME", help="Default: GITHUB_ACTOR, else the user.")]


def check_engine(name: str) -> None:
    """Raise UserError if there is no engine ``name``."""
    from regbot.records.config import ENGINES

    if name not in ENGINES:
        raise UserError(f"--engine {name}: there is no such engine", f"use {' or '.join(ENGINES)}")


def cache_folder() -> Path:
    """Return the cache folder, which has clones and worktrees: REGBOT_CACHE, or else ``regbot`` in the user's cache."""
    configured = os.environ.get("REGBOT_CACHE")
    if configured:
        return Path(configured).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regbot"


def exit_code(status: "Status") -> int:
    from regbot.records.verdict import EXIT_CODES

    return EXIT_CODES[status]


def complain(text: str) -> None:
    """Print one line to standard error."""
    print(text, file=sys.stderr)


@contextmanager
def usage_errors(
    resumable: Path | None = None, log: str = "session.jsonl", say: Callable[[str], None] = complain
) -> Iterator[None]:
    """Turn errors that the user can fix, and an interruption by Ctrl-C, into a message and an exit code.

    The user can fix UserError and OSError (such as a full disk). All other errors are bugs in regbot. They are not
    caught, so that their traceback is printed. If ``resumable`` is a folder, an interrupted command prints that it can
    be resumed from the file ``log`` in this folder. ``say`` prints one line of a message.
    """
    try:
        yield
    except KeyboardInterrupt:
        log_file = resumable / log if resumable is not None else None
        resume_advice = ""
        if log_file is not None and log_file.exists():
            resume_advice = f"; the finished runs are in {log_file}, go on with --resume"
        print(f"\nregbot: interrupted{resume_advice}", file=sys.stderr)
        sys.stderr.flush()
        # Do not wait for threads. When this process ends, the supervisor processes kill the training processes.
        os._exit(INTERRUPTED)
    except OSError as error:
        file_prefix = f"{error.filename}: " if error.filename else ""
        _fail(f"{file_prefix}{error.strerror or error}", say, UserError.exit_code)
    except UserError as error:
        _fail(str(error), say, error.exit_code)


def _fail(message: str, say: Callable[[str], None], code: int) -> NoReturn:
    """Print all lines of ``message`` and end the command with the exit code ``code``."""
    for line in message.splitlines():
        say(f"regbot: {line}")
    raise typer.Exit(code)


@contextmanager
def progress(quiet: bool = False) -> Iterator["Watcher"]:
    """Yield a function that shows progress on standard error: one live line on a terminal, else plain lines.

    If ``quiet``, the function shows nothing.
    """

    if quiet:
        yield lambda _: None
    elif not sys.stderr.isatty():
        yield lambda message: print(message, file=sys.stderr, flush=True)
    else:
        with _live_progress() as watch:
            yield watch


@contextmanager
def _live_progress() -> Iterator[Callable[[Any], None]]:
    """Yield a function that shows progress in one live line. A message that must stay on the terminal (``lasting``) is
    printed above this line.
    """
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
            """Update the live line, or print a lasting message above it."""
            if progress.lasting:
                bar.console.print(str(progress), markup=False, highlight=False)
                return
            total = progress.total or None  # 0 means that the total is not known
            bar.update(task, completed=progress.done, total=total, description=progress.text)

        yield watch
