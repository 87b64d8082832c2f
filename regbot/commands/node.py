"""``regbot node``: is this machine slow, whatever runs on it; nodes out of service, and back."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regbot.commands.options import Json, Who, cache_folder, exit_code, progress, usage_errors

if TYPE_CHECKING:
    from regbot.engines import Engine
    from regbot.progress import Watcher
    from regbot.records.node import NodesProbed

app = typer.Typer(help="Nodes: the reference probe and the quarantine.", no_args_is_help=True, rich_markup_mode=None)

Nodes = Annotated[
    Path | None, typer.Option("--nodes", metavar="DIR", help="Default: REGBOT_NODES, else in the cache folder.")
]
HostName = Annotated[str, typer.Argument(metavar="HOST", help="A node's name, as the list has it.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept for ever.")]

MOST_CPU_RANKS = 8
SLOW = 1


@app.command("probe")
def node_probe(
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", metavar="N", min=1, help="Default: one for each GPU, else for each core, 8 at most."),
    ] = None,
    take_out: Annotated[bool, typer.Option("--quarantine", help="Take a slow node out of service.")] = False,
    nodes: Nodes = None,
    json: Json = False,
) -> None:
    """Probe this machine for some seconds. Exit code 1: it is slow; 4: it could not be probed."""
    with usage_errors(), progress(quiet=json) as watch:
        from regbot.engines import LocalEngine
        from regbot.nodes import ProbeError
        from regbot.nodes.page import probed_page

        engine = LocalEngine(cache_folder() / "timing.lock")
        try:
            found = probed(engine, ranks, folder_of(nodes), take_out, watch)
        except ProbeError as error:
            typer.echo(f"regbot: {error}", err=True)
            raise typer.Exit(exit_code("INVALID")) from error
        text = found.to_json() if json else probed_page(found)
    typer.echo(text.rstrip("\n"))
    raise typer.Exit(SLOW if any(node.status == "slow" for node in found.judgement.nodes) else 0)


@app.command("list")
def node_list(nodes: Nodes = None, json: Json = False) -> None:
    """Each node that is known: its last probe, that against its history and its peers, and whether it is in service."""
    with usage_errors():
        from regbot.nodes import listing
        from regbot.nodes.page import list_page

        found = listing(folder_of(nodes))
        text = found.to_json() if json else list_page(found)
    typer.echo(text.rstrip("\n"))


@app.command("show")
def node_show(host: HostName, nodes: Nodes = None, json: Json = False) -> None:
    """Everything that is known of one node."""
    with usage_errors():
        from regbot.nodes import report
        from regbot.nodes.page import report_page

        found = report(folder_of(nodes), host)
        text = found.to_json() if json else report_page(found)
    typer.echo(text.rstrip("\n"))


@app.command("quarantine")
def node_quarantine(host: HostName, reason: Reason, who: Who = None, nodes: Nodes = None, json: Json = False) -> None:
    """Take a node out of service: nothing is timed on it until it is released."""
    with usage_errors():
        from regbot.baselines.commands import default_who
        from regbot.nodes import NodeError, history, quarantine
        from regbot.nodes.page import changed_page
        from regbot.nodes.quarantine import last_events
        from regbot.records.baseline import utc
        from regbot.records.node import Evidence, NodeChanged
        from regbot.text import printable

        folder = folder_of(nodes)
        if not reason.strip():
            raise NodeError("--reason is empty: a quarantine says why")
        evidence = Evidence(
            host=host_name(host),
            when=utc(datetime.now(UTC)),
            who=who or default_who(),
            automatic=False,
            reason=printable(reason)[:4000],
            probes=history(folder, host)[-1:],
        )
        warnings = quarantine(folder, host, evidence)
        found = NodeChanged(event=last_events(folder)[host], state="quarantined", warnings=warnings)
        text = found.to_json() if json else changed_page(found)
    typer.echo(text.rstrip("\n"))


@app.command("release")
def node_release(host: HostName, reason: Reason, who: Who = None, nodes: Nodes = None, json: Json = False) -> None:
    """Put a node back into service, on trial: its next probe must pass."""
    with usage_errors():
        from regbot.baselines.commands import default_who
        from regbot.nodes import release
        from regbot.nodes.page import changed_page
        from regbot.records.node import NodeChanged

        event = release(folder_of(nodes), host, who or default_who(), reason, datetime.now(UTC))
        found = NodeChanged(event=event, state="on trial")
        text = found.to_json() if json else changed_page(found)
    typer.echo(text.rstrip("\n"))


def probed(engine: "Engine", ranks: int | None, folder: Path, take_out: bool, watch: "Watcher") -> "NodesProbed":
    """Probe the nodes of one seat of ``engine``, and what follows. Raises EngineError, RecordError."""
    import tempfile

    from regbot.engines import EngineError, Needs
    from regbot.nodes import examine, probe
    from regbot.progress import Progress

    scratches = cache_folder() / "probes"
    scratches.mkdir(parents=True, exist_ok=True)
    node = engine.describe(Needs(ranks=ranks or 1))
    if node is None:
        raise EngineError(f"--engine {engine.name} does not tell what its nodes are before it has them")
    asked = ranks or len(node.gpus) or min(node.cores, MOST_CPU_RANKS)
    gpus = len(node.gpus) >= asked
    watch(Progress(0, 1, f"probing with {asked} rank{'s' * (asked > 1)}"))
    with (
        engine.seat(Needs(ranks=asked, gpus=asked if gpus else 0, name="regbot-probe")) as seat,
        tempfile.TemporaryDirectory(dir=scratches) as scratch,
    ):
        found = probe(seat, asked, Path(scratch) / "run", datetime.now(UTC), gpus=gpus)
    watch(Progress(1, 1, "probed"))
    return examine(folder, found, datetime.now(UTC), take_out=take_out)


def folder_of(given: Path | None) -> Path:
    from regbot.nodes import nodes_folder

    return given.resolve() if given is not None else nodes_folder(cache_folder())


def host_name(text: str) -> str:
    from regbot.nodes.history import known

    return known(text)
