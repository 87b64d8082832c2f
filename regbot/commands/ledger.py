"""``regbot ledger``: the collectives of one step, traced, read or compared."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from regbot.commands.options import ConfigFile, Json, cache_folder, exit_code, progress, usage_errors

app = typer.Typer(
    help="Collective ledgers: trace one without a GPU, compare two.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("trace")
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
    device: Annotated[
        Literal["", "cuda", "cpu"],
        typer.Option("--device", metavar="D", help="cuda (on paper) or cpu. Default: cuda where it can be."),
    ] = "",
    json: Json = False,
) -> None:
    """Trace the static ledger of one workload as the files stand here. No GPU, any world."""
    with usage_errors(), progress(quiet=json) as watch:
        from regbot.terminal import trace_page
        from regbot.tracing import Choice, trace_here

        choice = Choice(workload, world, ep, variant, dispatcher, device)
        run = trace_here(choice, Path.cwd(), cache_folder(), watch)
    if run.ledger is None:
        print(f"regbot: {run.workload}: INVALID: {run.reason}", file=sys.stderr)
        for line in run.log_tail.splitlines() if run.outcome != "refused" else []:
            print(f"  | {line}", file=sys.stderr)
        if json:
            typer.echo(run.to_json().rstrip("\n"))
        raise typer.Exit(exit_code("INVALID"))
    typer.echo((run.ledger.to_json() if json else trace_page(run)).rstrip("\n"))


@app.command("read")
def ledger_read(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="One file of each rank, of one format.")],
    format: Annotated[str, typer.Option("--format", metavar="F", help="Default: what the content shows.")] = "",
    json: Json = False,
) -> None:
    """The collectives in a trace, a compiled program or a communication log."""
    with usage_errors():
        from regbot.terminal import ledger_page
        from regbot.tracing import read_ledgers

        ledger = read_ledgers(files, format)
    typer.echo((ledger.to_json() if json else ledger_page(ledger, files[0].name)).rstrip("\n"))


@app.command("diff")
def ledger_diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="The base: a ledger, a run record, or any file 'read' takes.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Ledger of the head.")],
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """What changed between two ledgers, by name, and what it means."""
    with usage_errors():
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
    raise typer.Exit(exit_code(sharding.status))
