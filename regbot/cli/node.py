"""``regbot node``: probe the speed of this machine, take nodes out of service, and put them back."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regbot.cli.console import show
from regbot.cli.options import Json, Who, cache_folder, progress, usage_errors
from regbot.errors import UserError
from regbot.text.clip import clip_message
from regbot.text.words import count

if TYPE_CHECKING:
    from regbot.engines import Engine
    from regbot.records.node import ProbeReport
    from regbot.text.progress import Watcher

app = typer.Typer(help="Nodes: the reference probe and the quarantine.", no_args_is_help=True, rich_markup_mode=None)

Nodes = Annotated[
    Path | None,
    typer.Option(
        "--nodes", metavar="DIR", help="Folder of the node history. Default: REGBOT_NODES, else in the cache folder."
    ),
]
HostName = Annotated[str, typer.Argument(metavar="HOST", help="A node's name, as in 'regbot node list'.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why. The text is stored permanently.")]

MAX_CPU_RANKS = 8
"""Default limit on the ranks of a probe on a machine without GPUs."""
SLOW = 1
"""Exit code of a probe that is slow."""


@app.command("probe")
def node_probe(
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", metavar="N", min=1, help="Default: one per GPU, else one per core, at most 8."),
    ] = None,
    take_out: Annotated[bool, typer.Option("--quarantine", help="Take a slow node out of service.")] = False,
    nodes: Nodes = None,
    json: Json = False,
) -> None:
    """Probe this machine for some seconds. Exit code 1: it is slow; 4: the probe failed."""
    with usage_errors(), progress(quiet=json) as watch:
        from regbot.engines import LocalEngine
        from regbot.nodes.page import probe_page

        engine = LocalEngine(cache_folder() / "timing.lock")
        report = run_probe(engine, ranks, folder_of(nodes), take_out, watch)
        text = report.to_json() if json else probe_page(report)
    show(text, json)
    raise typer.Exit(SLOW if any(node.status == "slow" for node in report.judgement.nodes) else 0)


@app.command("list")
def node_list(nodes: Nodes = None, json: Json = False) -> None:
    """List the known nodes: last probe, comparison with history and peers, and whether the node is in service."""
    with usage_errors():
        from regbot.nodes import list_nodes
        from regbot.nodes.page import list_page

        nodes_listing = list_nodes(folder_of(nodes))
        text = nodes_listing.to_json() if json else list_page(nodes_listing)
    show(text, json)


@app.command("show")
def node_show(host: HostName, nodes: Nodes = None, json: Json = False) -> None:
    """Show everything that is known about one node."""
    with usage_errors():
        from regbot.nodes import report_node
        from regbot.nodes.page import report_page

        node_report = report_node(folder_of(nodes), host)
        text = node_report.to_json() if json else report_page(node_report)
    show(text, json)


@app.command("quarantine")
def node_quarantine(host: HostName, reason: Reason, who: Who = None, nodes: Nodes = None, json: Json = False) -> None:
    """Take a node out of service: nothing is timed on it until it is released."""
    with usage_errors():
        from regbot.baselines.commands import default_who
        from regbot.nodes import quarantine, read_history
        from regbot.nodes.page import change_page
        from regbot.nodes.quarantine import read_last_events
        from regbot.records.baseline import format_time
        from regbot.records.node import Evidence, NodeChange
        from regbot.text.printable import printable

        folder = folder_of(nodes)
        if not reason.strip():
            raise UserError("--reason is empty: give the reason for the quarantine")
        evidence = Evidence(
            host=host_name(host),
            when=format_time(datetime.now(UTC)),
            who=who or default_who(),
            automatic=False,
            reason=clip_message(printable(reason)),
            probes=read_history(folder, host)[-1:],  # the last one, if there is any
        )
        warnings = quarantine(folder, host, evidence)
        change = NodeChange(event=read_last_events(folder)[host], state="quarantined", warnings=warnings)
        text = change.to_json() if json else change_page(change)
    show(text, json)


@app.command("release")
def node_release(host: HostName, reason: Reason, who: Who = None, nodes: Nodes = None, json: Json = False) -> None:
    """Put a node back into service, on trial: its next probe must pass."""
    with usage_errors():
        from regbot.baselines.commands import default_who
        from regbot.nodes import release
        from regbot.nodes.page import change_page
        from regbot.records.node import NodeChange

        event = release(folder_of(nodes), host, who or default_who(), reason, datetime.now(UTC))
        change = NodeChange(event=event, state="on trial")
        text = change.to_json() if json else change_page(change)
    show(text, json)


def run_probe(engine: "Engine", ranks: int | None, folder: Path, take_out: bool, watch: "Watcher") -> "ProbeReport":
    """Probe the nodes of one seat of ``engine``, and judge and store the result. Raises EngineError, RecordError.

    A seat is a reservation of nodes. ``ranks`` None takes one rank per GPU, or else one per core, at most
    MAX_CPU_RANKS. ``folder`` has the node history. With ``take_out``, slow nodes are put into quarantine.
    """
    import tempfile

    from regbot.engines import EngineError, Needs
    from regbot.nodes import examine, probe
    from regbot.text.progress import Progress

    probes_folder = cache_folder() / "probes"
    probes_folder.mkdir(parents=True, exist_ok=True)
    # The number of ranks depends on the node, so the node is described before. ``ranks=0`` shows it with all its GPUs.
    node = engine.describe(Needs(ranks=0))
    if node is None:
        raise EngineError(f"--engine {engine.name} does not describe its nodes before it reserves them")
    rank_count = ranks or len(node.gpus) or min(node.cores, MAX_CPU_RANKS)
    use_gpus = len(node.gpus) >= rank_count
    watch(Progress(0, 1, f"probing with {count(rank_count, 'rank')}"))
    with (
        engine.seat(Needs(ranks=rank_count, gpus=rank_count if use_gpus else 0, name="regbot-probe")) as seat,
        tempfile.TemporaryDirectory(dir=probes_folder) as scratch,
    ):
        node_probes = probe(seat, rank_count, Path(scratch) / "run", datetime.now(UTC), gpus=use_gpus)
    watch(Progress(done=1, total=1, text="probed"))
    return examine(
        folder,
        node_probes,
        datetime.now(UTC),
        # Of these hosts, the slow ones are put into quarantine.
        quarantine_slow=[node_probe.host for node_probe in node_probes] if take_out else (),
    )


def folder_of(requested: Path | None) -> Path:
    """Return the folder of the node history: ``requested``, or else the default folder."""
    from regbot.nodes import nodes_folder

    return requested.resolve() if requested is not None else nodes_folder(cache_folder())


def host_name(text: str) -> str:
    """Return ``text`` if it is a valid name of a host. Raises UserError otherwise."""
    from regbot.nodes.history import check_host

    return check_host(text)
