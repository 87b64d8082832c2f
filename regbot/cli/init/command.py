"""``regbot init``: set up a user's repository."""

from pathlib import Path
from typing import Annotated

import typer

from regbot.cli.console import show
from regbot.cli.options import Json, usage_errors

WAITING = 1
"""Exit code if an edited workflow differs from what regbot would write."""


def init(
    *,
    repo: Annotated[Path, typer.Option("--repo", metavar="DIR", help="The git repository.")] = Path(),
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label", metavar="L", help="Label of the runners to time on. Repeatable. Default: as installed."
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
    force: Annotated[bool, typer.Option("--force", help="Replace edited workflows too. The edits are lost.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing; print what would be written.")] = False,
    json: Json = False,
) -> None:
    """Install regbot.toml and the workflows in a repository.

    A second run with a newer regbot replaces the workflows that nobody edited. Exit code 1: an edited one differs.
    """
    with usage_errors():
        from regbot.cli.init.flow import InitOptions, initialise, page

        result = initialise(
            InitOptions(
                folder=repo, labels=label or [], only_static=only_static, force=force, dry_run=dry_run, source=source
            )
        )
        text = result.to_json() if json else page(result)
    show(text, json)
    raise typer.Exit(WAITING if result.waiting else 0)
