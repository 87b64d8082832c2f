"""``regbot explain``: what a step spends, where, and what it does not need."""

from pathlib import Path
from typing import Annotated

import typer

from regbot.cli.console import show
from regbot.cli.ledger import Dispatcher, ExpertParallel, ImitatedGpu, TraceDevice, TraceVariant, World, end_untraced
from regbot.cli.options import Json, cache_folder, progress, usage_errors
from regbot.errors import UserError


def explain(
    *,
    target: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD|A",
            help="A shape, a workload of ./regbot.toml, or a ledger file; with B, a commit or file.",
        ),
    ],
    other: Annotated[str, typer.Argument(metavar="[B]", help="A second commit or ledger file, to compare.")] = "",
    workload: Annotated[
        list[str] | None, typer.Option("--workload", metavar="W", help="With two commits: only these. Repeatable.")
    ] = None,
    world: World = None,
    ep: ExpertParallel = None,
    variant: TraceVariant = None,
    dispatcher: Dispatcher = "",
    device: TraceDevice = "",
    gpu: ImitatedGpu = "",
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write the page as HTML.")] = None,
    json: Json = False,
) -> None:
    """Show where one step's FLOPs, bytes, memory, kernels, waits and collectives go, and what its shape does not need.

    With two commits or ledgers A and B: both side by side, without a verdict. Needs no GPU."""
    with usage_errors(), progress(quiet=json) as watch:
        from regbot.check.explain import explain_change, explain_workload
        from regbot.check.static_trace import TraceOptions
        from regbot.records.files import write_text
        from regbot.report.explanation import change_page, explanation_html, explanation_page

        if other and html is not None:
            raise UserError("--html shows one step, not two", "leave out B, or leave out --html")
        if other:
            change = explain_change(target, other, workload or [], cache_folder(), watch)
            pages = [change_page(pair) for pair in change.pairs]
            text = change.to_json() if json else "\n\n".join([*pages, *change.untraced])
        else:
            options = TraceOptions(
                target, world=world, ep=ep, variant=variant, dispatcher=dispatcher, device=device, gpu=gpu
            )
            run, explanation = explain_workload(options, cache_folder(), watch)
            if explanation is None:
                assert run is not None
                end_untraced(run, json)
            if html is not None:
                write_text(html, explanation_html(explanation))
            text = explanation.to_json() if json else explanation_page(explanation)
    show(text, json)
