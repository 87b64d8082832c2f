"""``regbot bisect``: parse the options, run the search, and print its result."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from regbot.cli.console import show
from regbot.cli.options import (
    ConfigFile,
    EngineName,
    Json,
    NodeConfigFile,
    cache_folder,
    check_engine,
    progress,
    usage_errors,
)
from regbot.errors import UserError

if TYPE_CHECKING:
    from regbot.records.bisection import Bisection

DEFAULT_OUT = Path("regbot-bisect")


def bisect(
    *,
    good: Annotated[str, typer.Argument(metavar="GOOD", help="A commit without the change.")],
    bad: Annotated[str, typer.Argument(metavar="BAD", help="A commit with the change.")],
    workload: Annotated[list[str] | None, typer.Option("--workload", metavar="W", help="Only these workloads.")] = None,
    on: Annotated[
        Literal["ledger", "time", "command"] | None,
        typer.Option("--on", metavar="WHAT", help="ledger (default): exact counts, no GPU; time: noisy step times."),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option("--command", metavar="CMD", help="Bisect the cost that CMD prints as its last line."),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="The command's cost has no noise.")] = False,
    axis: Annotated[
        str, typer.Option("--axis", metavar="PKG=V1..V2", help="Search versions of a dependency instead of commits.")
    ] = "",
    full: Annotated[bool, typer.Option("--full", help="All commits of the range, not only first parents.")] = False,
    path: Annotated[
        list[str] | None, typer.Option("--path", metavar="P", help="Only commits that touch P. Repeatable.")
    ] = None,
    suspect: Annotated[
        list[str] | None,
        typer.Option("--suspect", metavar="REV", help="A commit that is more probable than others. Repeatable."),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option("--check", metavar="DIR", help="Reuse the runs of this check. Default: regbot-out."),
    ] = None,
    no_reuse: Annotated[bool, typer.Option("--no-reuse", help="Do not reuse runs of a check.")] = False,
    effect: Annotated[
        float | None, typer.Option("--effect", metavar="PCT", min=0.01, help="Smallest slowdown to look for.")
    ] = None,
    noise: Annotated[
        float | None, typer.Option("--noise", metavar="PCT", min=0.001, help="Known sd of one run, in percent.")
    ] = None,
    summary: Annotated[
        Literal["median", "mean"],
        typer.Option("--summary", metavar="S", help="Step time of a run: median or mean of its steps."),
    ] = "median",
    posterior: Annotated[
        float, typer.Option("--posterior", metavar="P", min=0.51, max=0.9999, help="Stop at this probability.")
    ] = 0.95,
    runs: Annotated[int, typer.Option("--runs", metavar="N", min=2, help="Limit on search runs.")] = 200,
    budget: Annotated[
        float | None, typer.Option("--budget", metavar="MIN", min=0.01, help="Limit on the minutes of runs and builds.")
    ] = None,
    no_confirm: Annotated[
        bool, typer.Option("--no-confirm", help="Do not confirm the culprit by runs against its parent.")
    ] = False,
    build: Annotated[
        list[str] | None,
        typer.Option("--build", metavar="CMD", help="With --command: build command of a new checkout."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="MIN", min=0.01, help="With --command: time limit of one command.")
    ] = 10.0,
    index: Annotated[
        list[str] | None,
        typer.Option("--pip", metavar="OPTION", help="With --axis: an option for pip, such as --find-links=DIR."),
    ] = None,
    slots: Annotated[int, typer.Option("--slots", metavar="K", min=1, help="Measurements at the same time.")] = 1,
    engine: EngineName = "local",
    config: ConfigFile = None,
    node_config: NodeConfigFile = None,
    untrusted: Annotated[
        bool, typer.Option("--untrusted", help="Refuse to run the code without a sandbox (docs/sandbox.md).")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Print the expected cost, and start nothing.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Start or continue even if success is unlikely.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted bisection in DIR.")] = False,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the log and the report.")] = DEFAULT_OUT,
    repo: Annotated[Path, typer.Option("--repo", metavar="DIR", help="The git repository.")] = Path(),
    json: Json = False,
) -> None:
    """Find the commit that changed the collectives, made the steps slower, or raised the cost that a command prints."""
    with (
        usage_errors(resumable=out.resolve(), log="bisection.jsonl"),
        progress(quiet=json or _has_live_display(json)) as watch,  # the live display shows the progress itself
    ):
        from regbot.bisect import flow
        from regbot.bisect.options import BisectionOptions
        from regbot.records.bisection import EXIT_CODES
        from regbot.report.bisection_text import bisection_page, plan_page

        check_engine(engine)
        if command is not None and not command.strip():
            raise UserError("--command is empty", "give the command that prints the cost of a commit as its last line")
        options = BisectionOptions(
            repo=repo.resolve(),
            cache=cache_folder(),
            out=out.resolve(),
            good=good,
            bad=bad,
            workloads=workload or [],
            on=on,
            command=command or "",
            exact=exact,
            axis=axis,
            full=full,
            paths=path or [],
            suspects=suspect or [],
            config=config,
            node_config=node_config,
            check=check,
            reuse=not no_reuse,
            effect_pct=effect,
            noise_pct=noise,
            summary=summary,
            posterior=posterior,
            most_runs=runs,
            budget_min=budget,
            confirm=not no_confirm,
            build=build or [],
            timeout_min=timeout,
            index_options=index or [],
            slots=slots,
            engine=engine,
            untrusted=untrusted,
            resume=resume,
            anyway=anyway,
        )
        if plan:
            forecast = flow.plan_bisection(options)
            show(forecast.to_json() if json else plan_page(forecast), json)
            raise typer.Exit(0 if forecast.possible else EXIT_CODES["unmeasurable"])
        with _draw_posterior(json) as draw:
            result = flow.bisect(options, watch, draw)
    output_folder = out.resolve() if result.observations else None  # a refused bisection has written no files
    show(result.to_json() if json else bisection_page(result, output_folder), json)
    raise typer.Exit(EXIT_CODES[result.outcome])


def _has_live_display(json: bool) -> bool:
    """Return whether the probabilities of the commits are drawn on the terminal during the search."""
    return not json and sys.stderr.isatty()


@contextmanager
def _draw_posterior(json: bool) -> Iterator[Callable[["Bisection"], None]]:
    """Yield a function that draws the probabilities of the commits on the terminal.

    If there is no terminal, or with ``--json``, the yielded function does nothing."""
    if not _has_live_display(json):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from regbot.bisect.answer import describe_progress
    from regbot.report.bisection_words import point_name
    from regbot.report.posterior import posterior_rows

    with Live(console=Console(stderr=True), transient=True) as live:

        def draw(bisection: "Bisection") -> None:
            """Draw one row for each place, below a line with the number of runs and the state of the search."""
            names = [point_name(place.key) for place in bisection.places]
            rows = posterior_rows(bisection.places, names, bisection.none_probability)
            summary_line = (
                f"{bisection.search_runs} search, {bisection.confirm_runs} confirmation runs; "
                f"{describe_progress(bisection)}"
            )
            live.update(Text("\n".join([summary_line, *rows]), no_wrap=True, overflow="ellipsis"))

        yield draw
