"""``regbot baseline``: commands for the stored references."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from regbot.cli.console import show
from regbot.cli.options import (
    ConfigFile,
    EngineName,
    Json,
    StoreFolder,
    Who,
    cache_folder,
    check_engine,
    exit_code,
    progress,
    usage_errors,
)
from regbot.errors import UserError

app = typer.Typer(help="The stored references.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def baseline_list(store: StoreFolder = Path("baselines"), json: Json = False) -> None:
    """List the stored sessions and ledgers."""
    with usage_errors():
        from regbot.baselines import Store, commands

        listing = commands.list_groups(Store(store))
        text = listing.to_json() if json else commands.list_page(listing)
    show(text, json)


@app.command("show")
def baseline_show(
    name: Annotated[str, typer.Argument(metavar="HASH")], store: StoreFolder = Path("baselines"), json: Json = False
) -> None:
    """Show one stored session in full."""
    with usage_errors():
        from regbot.baselines import Store, commands

        path, stored_session = commands.find_session(Store(store), name)
        text = stored_session.to_json() if json else commands.show_page(path, stored_session)
    show(text, json)


@app.command("history")
def baseline_history(
    *,
    workload: Annotated[str, typer.Argument(metavar="ENTRY")],
    variant: Annotated[str | None, typer.Option("--variant", metavar="V")] = None,
    node_class: Annotated[str | None, typer.Option("--class", metavar="CLASS", help="Node class.")] = None,
    last: Annotated[int | None, typer.Option("--last", metavar="N", min=1, help="Only the last N sessions.")] = None,
    points: Annotated[int, typer.Option("--points", metavar="N", min=1, max=1000, help="Show at most N points.")] = 60,
    store: StoreFolder = Path("baselines"),
    json: Json = False,
) -> None:
    """Show the step time of a workload over its stored sessions. The trend decides nothing."""
    with usage_errors():
        from regbot.baselines import Store
        from regbot.baselines.history import history, history_page

        step_time_history = history(Store(store), workload, variant, node_class, last=last, points=points)
        text = step_time_history.to_json() if json else history_page(step_time_history)
    show(text, json)


@app.command("add")
def baseline_add(
    *,
    session: Annotated[Path, typer.Argument(metavar="SESSION", help="session.jsonl of a check.")],
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Why this session is a reference.")],
    arm: Annotated[Literal["base", "head"], typer.Option("--arm", help="Arm whose runs are stored.")] = "base",
    workload: Annotated[
        list[str] | None, typer.Option("--workload", metavar="ENTRY", help="Only these workloads.")
    ] = None,
    series: Annotated[
        Literal["rolling", "anchor"], typer.Option("--series", help="Use anchor for a re-run of the anchor commit.")
    ] = "rolling",
    container: Annotated[
        str | None, typer.Option("--container", metavar="DIGEST", help="Container image of the runs, if any.")
    ] = None,
    who: Who = None,
    store: StoreFolder = Path("baselines"),
    json: Json = False,
) -> None:
    """Store one arm of a session."""
    with usage_errors():
        from regbot.baselines import Intake, Store, commands
        from regbot.judge import judge
        from regbot.records.config import Config
        from regbot.records.session import read_session

        intake = Intake(
            origin=str(session),
            who=who or commands.default_who(),
            why=why,
            arm=arm,
            workloads=workload or (),
            series=series,
            container=container,
        )
        session_record = read_session(session)
        # The runs are judged with the default configuration, because no repository is given here.
        result = commands.add(Store(store), session_record, judge(session_record, Config()), intake)
        text = result.to_json() if json else commands.added_page(result)
    show(text, json)


@app.command("refresh")
def baseline_refresh(
    *,
    workload: Annotated[list[str] | None, typer.Option("--workload", metavar="W", help="Only these workloads.")] = None,
    rev: Annotated[str, typer.Option("--rev", metavar="REV", help="The commit to measure, usually main's.")] = "HEAD",
    accept: Annotated[
        float | None,
        typer.Option("--accept", metavar="PCT", help="Accept a slowdown up to PCT in the anchor. Needs --who, --why."),
    ] = None,
    who: Who = None,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Reason for the measurement or acceptance.")] = "",
    pairs: Annotated[
        int | None,
        typer.Option("--pairs", metavar="N", min=4, help="Pairs of one night. Default: depends on the noise."),
    ] = None,
    branch: Annotated[str | None, typer.Option("--branch", metavar="NAME", help="Branch of the proposal.")] = None,
    store: Annotated[
        Path | None, typer.Option("--store", metavar="DIR", help="Write to this store. Default: propose a branch.")
    ] = None,
    proposal: Annotated[
        Path | None,
        typer.Option(
            "--proposal", metavar="FILE", help="Write the proposal to this file, for 'regbot github refresh'."
        ),
    ] = None,
    config: ConfigFile = None,
    budget: Annotated[
        float | None, typer.Option("--budget", metavar="MIN", min=0.1, help="Limit on the minutes of runs.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted refresh in DIR.")] = False,
    engine: EngineName = "local",
    no_sandbox: Annotated[
        bool, typer.Option("--no-sandbox", help="Run without a sandbox (docs/operator.md); the proposal says so.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", metavar="DIR")] = Path("regbot-refresh"),
    repo: Annotated[Path, typer.Option("--repo", metavar="DIR", help="The git repository.")] = Path(),
    json: Json = False,
) -> None:
    """Time main against the anchor, and propose new references. The exit code is that of a check."""
    with usage_errors(), progress(quiet=json) as watch:
        from regbot.baselines.commands import default_who
        from regbot.check.refresh import RefreshOptions, refresh, refresh_page

        check_engine(engine)
        if accept is not None and not (who and why):
            raise UserError("--accept needs --who NAME and --why TEXT: a person must answer for an accepted slowdown")
        if proposal is not None and (store is not None or branch is not None):
            raise UserError("--proposal writes a file, not a store or a branch", "leave out --store and --branch")
        options = RefreshOptions(
            repo=repo,
            cache=cache_folder(),
            out=out.resolve(),
            who=who or default_who(),
            why=why or "refresh",
            rev=rev,
            workloads=workload or [],
            config=config,
            store=store.resolve() if store is not None else None,
            proposal_file=proposal.resolve() if proposal is not None else None,
            branch=branch,
            pairs=pairs,
            budget_min=budget,
            accept_pct=accept,
            resume=resume,
            engine=engine,
            no_sandbox=no_sandbox,
        )
        result = refresh(options, watch)
        text = result.to_json() if json else refresh_page(result, str(proposal) if proposal is not None else "")
    show(text, json)
    raise typer.Exit(exit_code(result.status))


@app.command("verify")
def baseline_verify(store: StoreFolder = Path("baselines"), json: Json = False) -> None:
    """Check the whole store and print one line per problem. Exits 1 if there is a problem."""
    with usage_errors():
        from regbot.baselines import Store, commands, verify

        result = verify(Store(store))
        text = result.to_json() if json else commands.verify_page(result)
    show(text, json)
    raise typer.Exit(1 if result.problems else 0)


@app.command("anchor")
def baseline_anchor(
    *,
    workload: Annotated[str, typer.Argument(metavar="ENTRY")],
    to: Annotated[str | None, typer.Option("--to", metavar="COMMIT", help="Move the anchor to this commit.")] = None,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Why the anchor moves.")] = "",
    variant: Annotated[str | None, typer.Option("--variant", metavar="V")] = None,
    node_class: Annotated[str | None, typer.Option("--class", metavar="CLASS", help="Node class.")] = None,
    who: Who = None,
    store: StoreFolder = Path("baselines"),
    json: Json = False,
) -> None:
    """Show the anchors of a workload, or move one with --to."""
    with usage_errors():
        from regbot.baselines import Store, commands

        opened_store = Store(store)
        if to is not None and not why:
            raise UserError("--to needs --why TEXT: every anchor records why it was chosen")
        if to is not None:
            move = commands.AnchorMove(
                workload=workload,
                commit=to,
                who=who or commands.default_who(),
                why=why,
                variant=variant,
                node_class=node_class,
            )
            results = [commands.move_anchor(opened_store, move)]
        else:
            results = commands.find_anchors(opened_store, workload, variant, node_class)
        json_list = "[" + ",\n".join(result.to_json() for result in results) + "]"
        text = json_list if json else commands.anchor_page(results)
    show(text, json)
