"""``regbot shadow``: list shadow checks, and record whether their verdicts were right. Shadow checks block nothing."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from regbot.cli.console import show
from regbot.cli.options import Json, Who, usage_errors
from regbot.errors import UserError

app = typer.Typer(help="Checks that block nothing, and their score.", no_args_is_help=True, rich_markup_mode=None)

Folder = Annotated[Path, typer.Option("--scoreboard", metavar="DIR", help="Folder of the shadow checks.")]


@app.command("list")
def shadow_list(scoreboard: Folder = Path("shadow"), json: Json = False) -> None:
    """List all shadow checks, oldest first."""
    with usage_errors():
        from regbot.records.shadow import ShadowListing
        from regbot.shadow import load_checks
        from regbot.shadow.page import write_list

        listing = ShadowListing(checks=load_checks(scoreboard))
        text = listing.to_json() if json else write_list(listing)
    show(text, json)


@app.command("show")
def shadow_show(
    commit: Annotated[str | None, typer.Argument(metavar="COMMIT", help="Only the checks of this commit.")] = None,
    since: Annotated[
        datetime | None, typer.Option("--since", metavar="DAY", formats=["%Y-%m-%d"], help="Leave out older checks.")
    ] = None,
    scoreboard: Folder = Path("shadow"),
    json: Json = False,
) -> None:
    """Show the scoreboard, or with COMMIT the shadow checks of one commit."""
    with usage_errors():
        from regbot.records.shadow import Scoreboard, ShadowListing
        from regbot.shadow import compute_scoreboard as score
        from regbot.shadow import load_checks_of_commit
        from regbot.shadow.page import write_checks, write_scoreboard

        if commit is not None and since is not None:
            raise UserError("--since is for the scoreboard, not for one commit", "leave out --since or the commit")
        result: Scoreboard | ShadowListing
        if commit is not None:
            result = ShadowListing(checks=load_checks_of_commit(scoreboard, commit))
            page = write_checks(result.checks)
        else:
            result = score(scoreboard, since.date() if since else None)
            page = write_scoreboard(result)
        text = result.to_json() if json else page
    show(text, json)


@app.command("settle")
def shadow_settle(
    commit: Annotated[str, typer.Argument(metavar="COMMIT", help="Head's commit, or the start of its id.")],
    outcome: Annotated[Literal["confirmed", "refuted", "missed", "unknown"], typer.Argument(metavar="OUTCOME")],
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="How you know the outcome.")],
    who: Who = None,
    scoreboard: Folder = Path("shadow"),
) -> None:
    """Record the truth about a commit: finding confirmed or refuted, regression missed, or unknown."""
    with usage_errors():
        from regbot.baselines.commands import default_who
        from regbot.shadow import settle_commit

        if not why.strip():
            raise UserError("--why is empty: say how the outcome was found out")
        path = settle_commit(scoreboard, commit, outcome, who or default_who(), why, datetime.now(UTC))
    typer.echo(f"settled in {path}")
