"""``regbot ledger``: trace, read or compare the collectives of one step."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from regbot.cli.console import show
from regbot.cli.options import ConfigFile, Json, cache_folder, exit_code, progress, usage_errors

if TYPE_CHECKING:
    from regbot.records.run import Run

app = typer.Typer(
    help="Collective ledgers: trace one without a GPU, compare two.", no_args_is_help=True, rich_markup_mode=None
)

World = Annotated[int | None, typer.Option("--world", metavar="N", help="Ranks. Default: the shape's mesh.")]
ExpertParallel = Annotated[int | None, typer.Option("--ep", metavar="N", help="Expert-parallel size.")]
TraceVariant = Annotated[str | None, typer.Option("--variant", metavar="V", help="Default: the workload's, else full.")]
Dispatcher = Annotated[
    str,
    typer.Option("--dispatcher", metavar="D", help="alltoall, allgather, deepep, hybridep, or a framework's own name."),
]
TraceDevice = Annotated[
    Literal["", "cuda", "cpu"],
    typer.Option("--device", metavar="D", help="cuda (paper GPU) or cpu. Default: cuda if possible."),
]
ImitatedGpu = Annotated[
    Literal["", "h100", "h200", "b200", "a100", "mi300x"],
    typer.Option("--gpu", metavar="G", help="GPU that is imitated: h100, h200, b200, a100 or mi300x. Default: h100."),
]


@app.command("trace")
def ledger_trace(
    *,
    workload: Annotated[str, typer.Argument(help="A shape's name, or a workload of ./regbot.toml [:SHAPE][/MESH].")],
    world: World = None,
    ep: ExpertParallel = None,
    variant: TraceVariant = None,
    dispatcher: Dispatcher = "",
    device: TraceDevice = "",
    gpu: ImitatedGpu = "",
    json: Json = False,
) -> None:
    """Trace the static ledger of one workload of the working tree. Needs no GPU, at any world size."""
    with usage_errors(), progress(quiet=json) as watch:
        from regbot.check.static_trace import TraceOptions, trace_working_tree
        from regbot.cli.terminal import trace_page

        options = TraceOptions(
            workload, world=world, ep=ep, variant=variant, dispatcher=dispatcher, device=device, gpu=gpu
        )
        run = trace_working_tree(options, Path.cwd(), cache_folder(), watch)
    if run.ledger is None:
        end_untraced(run, json)
    show(run.ledger.to_json() if json else trace_page(run), json)


def end_untraced(run: "Run", json: bool) -> NoReturn:
    """Say why a trace has no ledger, and end the command."""
    print(f"regbot: {run.workload}: INVALID: {run.reason}", file=sys.stderr)
    # A refused run has a reason from the guest itself, so its log is not needed.
    for line in run.log_tail.splitlines() if run.outcome != "refused" else []:
        print(f"  | {line}", file=sys.stderr)
    if json:
        show(run.to_json(), json)
    raise typer.Exit(exit_code("INVALID"))


@app.command("read")
def ledger_read(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="One file per rank, all in the same format.")],
    format: Annotated[str, typer.Option("--format", metavar="F", help="Default: detected from the content.")] = "",
    json: Json = False,
) -> None:
    """Show the collectives in a trace, a compiled program or a communication log."""
    with usage_errors():
        from regbot.check.static_trace import read_ledgers
        from regbot.cli.terminal import ledger_page

        ledger = read_ledgers(files, format)
    show(ledger.to_json() if json else ledger_page(ledger, files[0].name), json)


@app.command("diff")
def ledger_diff(
    a: Annotated[
        Path, typer.Argument(metavar="A", help="The base: a ledger, a run record, or any file that 'read' accepts.")
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="The head, in the same formats.")],
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Name the changes between two ledgers, and judge them."""
    with usage_errors():
        from regbot.check.static_trace import read_ledger
        from regbot.cli.terminal import diff_page
        from regbot.judge import judge_ledgers
        from regbot.judge.program import judge_program
        from regbot.judge.validity import changed_software
        from regbot.records.config import Config, load_config

        base, head = read_ledger(a), read_ledger(b)
        settings = load_config(config) if config else Config()
        sharding = judge_ledgers(base, head, settings)
        program = judge_program(base, head, settings)
    from regbot.records.verdict import LedgerDiff, select_gravest_status

    difference = {"program": program, "software_changes": changed_software(base, head)}
    diff = LedgerDiff.model_validate({**dict(sharding), **difference})
    show(diff.to_json() if json else diff_page(diff, base, head), json)
    raise typer.Exit(exit_code(select_gravest_status([sharding.status, *([program.status] if program else [])])))
