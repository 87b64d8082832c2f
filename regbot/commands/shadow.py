"""``regbot shadow``: what checks that block nothing would have said, and whether they were right."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from regbot.commands.options import Json, Who, usage_errors

app = typer.Typer(help="Checks that block nothing, and their score.", no_args_is_help=True, rich_markup_mode=None)

Folder = Annotated[Path, typer.Option("--scoreboard", metavar="DIR", help="Folder of the shadow checks.")]


@app.command("list")
def shadow_list(scoreboard: Folder = Path("shadow"), json: Json = False) -> None:
    """Every shadow check, oldest first."""
    with usage_errors():
        from regbot.records.shadow import ShadowListing
        from regbot.shadow import checks
        from regbot.shadow.page import list_page

        found = ShadowListing(checks=checks(scoreboard))
        text = found.to_json() if json else list_page(found)
    typer.echo(text.rstrip("\n"))


@app.command("show")
def shadow_show(
    commit: Annotated[str | None, typer.Argument(metavar="COMMIT", help="Only the checks of this commit.")] = None,
    since: Annotated[
        datetime | None, typer.Option("--since", metavar="DAY", formats=["%Y-%m-%d"], help="Leave out older checks.")
    ] = None,
    scoreboard: Folder = Path("shadow"),
    json: Json = False,
) -> None:
    """The scoreboard; with COMMIT, what was said of one commit."""
    with usage_errors():
        from regbot.config import ConfigError
        from regbot.records.shadow import Scoreboard, ShadowListing
        from regbot.shadow import of_commit
        from regbot.shadow import scoreboard as score
        from regbot.shadow.page import entry_page, scoreboard_page

        if commit is not None and since is not None:
            raise ConfigError("--since is of the scoreboard; leave it out, or the commit")
        found: Scoreboard | ShadowListing
        if commit is not None:
            found = ShadowListing(checks=of_commit(scoreboard, commit))
            page = entry_page(found.checks)
        else:
            found = score(scoreboard, since.date() if since else None)
            page = scoreboard_page(found)
        text = found.to_json() if json else page
    typer.echo(text.rstrip("\n"))


@app.command("settle")
def shadow_settle(
    commit: Annotated[str, typer.Argument(metavar="COMMIT", help="Head's commit, or its beginning.")],
    outcome: Annotated[Literal["confirmed", "refuted", "missed", "unknown"], typer.Argument(metavar="OUTCOME")],
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="How it was found out.")],
    who: Who = None,
    scoreboard: Folder = Path("shadow"),
) -> None:
    """Say what was true of a commit: the finding confirmed or refuted, a regression missed, or unknown for ever."""
    with usage_errors():
        from regbot.baselines.commands import default_who
        from regbot.config import ConfigError
        from regbot.shadow import settle

        if not why.strip():
            raise ConfigError("--why is empty: an outcome says how it was found out")
        path = settle(scoreboard, commit, outcome, who or default_who(), why, datetime.now(UTC))
    typer.echo(f"settled in {path}")
