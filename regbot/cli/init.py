"""``regbot init``: set up a user's repository."""

from pathlib import Path
from typing import Annotated

import typer

from regbot.cli.console import show
from regbot.cli.options import Json, usage_errors

WAITING = 1
"""Exit code if a file has a newer version that was not written."""


def init(
    *,
    repo: Annotated[Path, typer.Option("--repo", metavar="DIR", help="The git repository.")] = Path(),
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="L",
            help="Label of the runners to time on. Repeatable. Default: labels in your workflows.",
        ),
    ] = None,
    branch: Annotated[
        str | None,
        typer.Option(
            "--branch", metavar="NAME", help="Target branch of pull requests. Default: origin's default branch."
        ),
    ] = None,
    only_static: Annotated[
        bool | None,
        typer.Option(
            "--only-static/--with-nodes",
            help="Only workflows for hosted runners, or also those that need a node. Default: as installed, else both.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="WHAT",
            help="What the workflows install: 'regbot-moe @ git+https://HOST/OWNER/NAME@COMMIT', or a path in the "
            "repository. Default: the source of this regbot, else as installed.",
        ),
    ] = None,
    enterprise: Annotated[
        bool | None,
        typer.Option(
            "--enterprise-server/--no-enterprise-server",
            help="Whether the repository is on a GitHub Enterprise Server, which needs artifact actions v3 or older. "
            "Default: as installed, else no.",
            show_default=False,
        ),
    ] = None,
    shadow: Annotated[bool, typer.Option("--shadow", help="Block nothing at first: [github] shadow = true.")] = False,
    upgrade: Annotated[bool, typer.Option("--upgrade", help="Replace outdated workflows that nobody edited.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace edited workflows too. The edits are lost.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing; print what would be written.")] = False,
    json: Json = False,
) -> None:
    """Install regbot.toml and the workflows in a repository.

    A second run changes nothing, but lists files that have a newer version. Exit code 1: one was not written.
    """
    with usage_errors():
        from regbot.init import InitOptions, initialise, page

        result = initialise(
            InitOptions(
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
        text = result.to_json() if json else page(result)
    show(text, json)
    raise typer.Exit(WAITING if result.waiting else 0)  # waiting: a newer version of a file was not written
