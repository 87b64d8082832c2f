"""``regbot init``: set up a repository."""

from pathlib import Path
from typing import Annotated

import typer

from regbot.commands.options import Json, usage_errors

WAITING = 1
"""Something newer is there and was not written."""


def init(
    repo: Annotated[Path, typer.Option("--repo", metavar="DIR", help="The git repository.")] = Path(),
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="L", help="Of the runners to time on. Repeatable. Default: what is found."),
    ] = None,
    branch: Annotated[
        str | None, typer.Option("--branch", metavar="NAME", help="That pull requests go to. Default: origin's.")
    ] = None,
    only_static: Annotated[
        bool | None,
        typer.Option(
            "--only-static/--with-nodes",
            help="Only what runs on hosted runners, or also what needs a node. Default: as installed, else both.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="WHAT",
            help="What the workflows install: 'regbot @ git+https://HOST/OWNER/NAME@COMMIT', or a path inside. "
            "Default: what this regbot is from, else as installed.",
        ),
    ] = None,
    enterprise: Annotated[
        bool | None,
        typer.Option(
            "--enterprise-server/--no-enterprise-server",
            help="Is it on a GitHub Enterprise Server, which takes no newer artifact actions than v3? "
            "Default: as installed, else no.",
            show_default=False,
        ),
    ] = None,
    shadow: Annotated[bool, typer.Option("--shadow", help="Block nothing at first: [github] shadow = true.")] = False,
    upgrade: Annotated[bool, typer.Option("--upgrade", help="Replace workflows that nobody edited.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace edited workflows too. The edits are lost.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing; say what would be written.")] = False,
    json: Json = False,
) -> None:
    """Install regbot.toml and the workflows in a repository. Run again, it changes nothing, or shows what is newer.

    Exit code 1: something is newer and was not written.
    """
    with usage_errors():
        from regbot.init import Options, initialise, page

        found = initialise(
            Options(
                folder=repo,
                branch=branch,
                labels=label or [],
                only_static=only_static,
                shadow=shadow,
                upgrade=upgrade,
                force=force,
                dry_run=dry_run,
                source=source,
                enterprise=enterprise,
            )
        )
        text = found.to_json() if json else page(found)
    typer.echo(text.rstrip("\n"))
    raise typer.Exit(WAITING if found.waiting else 0)
