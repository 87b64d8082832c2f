"""``regbot bisect``: options in, one function, the answer out."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from regbot.commands.options import (
    ConfigFile,
    EngineName,
    Json,
    NodeConfigFile,
    cache_folder,
    known_engine,
    progress,
    usage_errors,
)

if TYPE_CHECKING:
    from regbot.records.bisection import Bisection

OUT = Path("regbot-bisect")


def bisect(
    good: Annotated[str, typer.Argument(metavar="GOOD", help="A commit without the change.")],
    bad: Annotated[str, typer.Argument(metavar="BAD", help="A commit with it.")],
    workload: Annotated[list[str] | None, typer.Option("--workload", metavar="W", help="Only these workloads.")] = None,
    on: Annotated[
        Literal["ledger", "time", "command"] | None,
        typer.Option("--on", metavar="WHAT", help="ledger (default): exact counts, no GPU; time: noisy step times."),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option("--command", metavar="CMD", help="Bisect what CMD prints last in each commit: one cost."),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="The command's cost has no noise.")] = False,
    axis: Annotated[
        str, typer.Option("--axis", metavar="PKG=V1..V2", help="Walk versions of a dependency instead of commits.")
    ] = "",
    full: Annotated[bool, typer.Option("--full", help="All commits of the range, not only first parents.")] = False,
    path: Annotated[
        list[str] | None, typer.Option("--path", metavar="P", help="Only commits that touch P. Repeatable.")
    ] = None,
    suspect: Annotated[
        list[str] | None, typer.Option("--suspect", metavar="REV", help="More probable than the others. Repeatable.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option("--check", metavar="DIR", help="The check that saw it; its runs are used. Default: regbot-out."),
    ] = None,
    no_reuse: Annotated[bool, typer.Option("--no-reuse", help="Use no run of a check.")] = False,
    effect: Annotated[
        float | None, typer.Option("--effect", metavar="PCT", min=0.01, help="Smallest slowdown that is looked for.")
    ] = None,
    noise: Annotated[
        float | None, typer.Option("--noise", metavar="PCT", min=0.001, help="Known sd of one run, in percent.")
    ] = None,
    summary: Annotated[
        Literal["median", "mean"], typer.Option("--summary", metavar="S", help="Of a run's steps: median or mean.")
    ] = "median",
    posterior: Annotated[
        float, typer.Option("--posterior", metavar="P", min=0.51, max=0.9999, help="Stop at this probability.")
    ] = 0.95,
    runs: Annotated[int, typer.Option("--runs", metavar="N", min=2, help="Search runs at most.")] = 200,
    budget: Annotated[
        float | None, typer.Option("--budget", metavar="MIN", min=0.01, help="Minutes of runs and builds at most.")
    ] = None,
    no_confirm: Annotated[
        bool, typer.Option("--no-confirm", help="Do not hold the culprit against its parent.")
    ] = False,
    build: Annotated[
        list[str] | None, typer.Option("--build", metavar="CMD", help="With --command: run first in a new checkout.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="MIN", min=0.01, help="With --command: minutes that it may take.")
    ] = 10.0,
    index: Annotated[
        list[str] | None,
        typer.Option("--pip", metavar="OPTION", help="With --axis: an option for pip, such as --find-links=DIR."),
    ] = None,
    slots: Annotated[int, typer.Option("--slots", metavar="K", min=1, help="Measurements at a time.")] = 1,
    engine: EngineName = "local",
    config: ConfigFile = None,
    node_config: NodeConfigFile = None,
    untrusted: Annotated[
        bool, typer.Option("--untrusted", help="Run the code in a sandbox, or not at all (docs/sandbox.md).")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Say what it may cost, and begin nothing.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Begin although it is not likely to succeed.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the bisection in DIR that was ended.")] = False,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the log and the report.")] = OUT,
    repo: Annotated[Path, typer.Option("--repo", metavar="DIR", help="The git repository.")] = Path(),
    json: Json = False,
) -> None:
    """Name the commit that changed the collectives, made the steps slower, or raised what a command prints."""
    with usage_errors(resumable=out.resolve(), log="bisection.jsonl"), progress(quiet=json or _live(json)) as watch:
        from regbot.bisect import flow
        from regbot.bisect.options import Options
        from regbot.config import ConfigError
        from regbot.records.bisection import EXIT_CODES
        from regbot.report.bisection_text import bisection_page, plan_page

        known_engine(engine)
        if command is not None and not command.strip():
            raise ConfigError("--command is empty; give the command that prints the cost of a commit as its last line")
        options = Options(
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
            found = flow.forecast_of(options)
            typer.echo((found.to_json() if json else plan_page(found)).rstrip("\n"))
            raise typer.Exit(0 if found.possible else EXIT_CODES["unmeasurable"])
        with _picture(json) as picture:
            result = flow.bisect(options, watch, picture)
    begun = out.resolve() if result.observations else None  # one that was refused leaves no files
    typer.echo((result.to_json() if json else bisection_page(result, begun)).rstrip("\n"))
    raise typer.Exit(EXIT_CODES[result.found])


def _live(json: bool) -> bool:
    return not json and sys.stderr.isatty()


@contextmanager
def _picture(json: bool) -> Iterator[Callable[["Bisection"], None]]:
    """The posterior, drawn again after every run, where there is a terminal."""
    if not _live(json):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from regbot.bisect.answer import standing
    from regbot.report.bisection_words import name_of
    from regbot.report.posterior import posterior_rows

    with Live(console=Console(stderr=True), transient=True) as live:

        def draw(found: "Bisection") -> None:
            names = [name_of(place.key) for place in found.places]
            rows = posterior_rows(found.places, names, found.none_probability)
            made = f"{found.search_runs} search, {found.confirm_runs} confirmation runs; {standing(found)}"
            live.update(Text("\n".join([made, *rows]), no_wrap=True, overflow="ellipsis"))

        yield draw
