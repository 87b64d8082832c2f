"""``regbot baseline``: the stored references."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from regbot.commands.options import (
    ConfigFile,
    EngineName,
    Json,
    StoreFolder,
    Who,
    cache_folder,
    exit_code,
    known_engine,
    progress,
    usage_errors,
)

app = typer.Typer(help="The stored references.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def baseline_list(store: StoreFolder = Path("baselines"), json: Json = False) -> None:
    """What is stored."""
    with usage_errors():
        from regbot.baselines import Store, commands

        found = commands.listing(Store(store))
        text = found.to_json() if json else commands.list_page(found)
    typer.echo(text.rstrip("\n"))


@app.command("show")
def baseline_show(
    name: Annotated[str, typer.Argument(metavar="HASH")], store: StoreFolder = Path("baselines"), json: Json = False
) -> None:
    """One stored session in full."""
    with usage_errors():
        from regbot.baselines import Store, commands

        path, found = commands.find(Store(store), name)
        text = found.to_json() if json else commands.show_page(path, found)
    typer.echo(text.rstrip("\n"))


@app.command("history")
def baseline_history(
    workload: Annotated[str, typer.Argument(metavar="ENTRY")],
    variant: Annotated[str | None, typer.Option("--variant", metavar="V")] = None,
    node_class: Annotated[str | None, typer.Option("--class", metavar="CLASS", help="Node class.")] = None,
    last: Annotated[int | None, typer.Option("--last", metavar="N", min=1, help="Only the last N sessions.")] = None,
    points: Annotated[int, typer.Option("--points", metavar="N", min=1, max=1000, help="Thin it to at most N.")] = 60,
    store: StoreFolder = Path("baselines"),
    json: Json = False,
) -> None:
    """How the step time of a workload went over its stored sessions. It annotates, and decides nothing."""
    with usage_errors():
        from regbot.baselines import Store
        from regbot.baselines.history import history, history_page

        found = history(Store(store), workload, variant, node_class, last, points)
        text = found.to_json() if json else history_page(found)
    typer.echo(text.rstrip("\n"))


@app.command("add")
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
    with usage_errors():
        from regbot.baselines import Intake, Store, commands

        asked = Intake(str(session), who or commands.default_who(), why, arm, workload or (), series, container)
        found = commands.add(Store(store), session, asked)
        text = found.to_json() if json else commands.added_page(found)
    typer.echo(text.rstrip("\n"))


@app.command("refresh")
def baseline_refresh(
    workload: Annotated[list[str] | None, typer.Option("--workload", metavar="W", help="Only these.")] = None,
    rev: Annotated[str, typer.Option("--rev", metavar="REV", help="The commit to measure, main's usually.")] = "HEAD",
    accept: Annotated[
        float | None,
        typer.Option("--accept", metavar="PCT", help="Take a slowdown up to this into the anchor. Needs --who, --why."),
    ] = None,
    who: Who = None,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Why it is measured, or accepted.")] = "",
    pairs: Annotated[
        int | None, typer.Option("--pairs", metavar="N", min=4, help="Of one night. Default: as the noise asks for.")
    ] = None,
    branch: Annotated[str | None, typer.Option("--branch", metavar="NAME", help="Of the proposal.")] = None,
    store: Annotated[
        Path | None, typer.Option("--store", metavar="DIR", help="Write there at once; default: propose a branch.")
    ] = None,
    proposal: Annotated[
        Path | None,
        typer.Option("--proposal", metavar="FILE", help="Propose in this file, for 'regbot github refresh'."),
    ] = None,
    config: ConfigFile = None,
    budget: Annotated[float | None, typer.Option("--budget", metavar="MIN", min=0.1, help="Minutes of runs.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the refresh in DIR that was ended.")] = False,
    engine: EngineName = "local",
    out: Annotated[Path, typer.Option("--out", metavar="DIR")] = Path("regbot-refresh"),
    repo: Annotated[Path, typer.Option("--repo", metavar="DIR", help="The git repository.")] = Path(),
    json: Json = False,
) -> None:
    """Run main beside the anchor and propose what may be stored. Exit code as a check's."""
    with usage_errors(), progress(quiet=json) as watch:
        from regbot.baselines.commands import default_who
        from regbot.config import ConfigError
        from regbot.refresh import Options, refresh, refresh_page

        known_engine(engine)
        if accept is not None and not (who and why):
            raise ConfigError("--accept needs --who NAME and --why TEXT: somebody puts a name to a slowdown")
        if proposal is not None and (store is not None or branch is not None):
            raise ConfigError("--proposal writes a file instead of a store or a branch; leave out --store and --branch")
        options = Options(
            repo=repo,
            cache=cache_folder(),
            out=out.resolve(),
            who=who or default_who(),
            why=why or "refresh",
            rev=rev,
            workloads=workload or [],
            config=config,
            store=store.resolve() if store is not None else None,
            proposal=proposal.resolve() if proposal is not None else None,
            branch=branch,
            pairs=pairs,
            budget_min=budget,
            accept_pct=accept,
            resume=resume,
            engine=engine,
        )
        found = refresh(options, watch)
        text = found.to_json() if json else refresh_page(found, str(proposal) if proposal is not None else "")
    typer.echo(text.rstrip("\n"))
    raise typer.Exit(exit_code(found.status))


@app.command("verify")
def baseline_verify(store: StoreFolder = Path("baselines"), json: Json = False) -> None:
    """Read the whole store; every problem is one line. Exits 1 where there is one."""
    with usage_errors():
        from regbot.baselines import Store, commands

        found = commands.verified(Store(store))
        text = found.to_json() if json else commands.verify_page(found)
    typer.echo(text.rstrip("\n"))
    raise typer.Exit(1 if found.problems else 0)


@app.command("anchor")
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
    with usage_errors():
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
