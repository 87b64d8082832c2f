"""``regbot github``: what the workflows call. Who asks comes from the event's file, all else from GitHub.

The environment is that of Actions: GITHUB_TOKEN, GITHUB_REPOSITORY, GITHUB_API_URL, GITHUB_EVENT_NAME,
GITHUB_EVENT_PATH, GITHUB_RUN_ID, GITHUB_SERVER_URL, GITHUB_STEP_SUMMARY.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regbot.commands.options import USAGE_ERROR, usage_errors

if TYPE_CHECKING:
    from regbot.forge.client import Forge
    from regbot.forge.orders import Outcome

AWAY = 75
"""GitHub did not answer for as long as could be waited: the same command may succeed later."""
FAULT = 70
"""A fault of regbot itself. What is known was posted, as INVALID."""
UNMEASURED = 4
"""A refresh that stores nothing of a workload; as INVALID, the status of what could not be measured."""
DEFAULT_URL = "https://api.github.com"
DEFAULT_SERVER = "https://github.com"

app = typer.Typer(help="What the GitHub workflows call.", no_args_is_help=True, rich_markup_mode=None)

Event = Annotated[
    Path, typer.Option("--event", metavar="FILE", envvar="GITHUB_EVENT_PATH", help="The event, as Actions wrote it.")
]
Repo = Annotated[Path, typer.Option("--repo", metavar="DIR", help="A checkout of the default branch.")]


@app.command()
def gate(event: Event, repo: Repo = Path()) -> None:
    """A push, a label or another base: end an approval, obey one, judge again. Runs no code of a pull request."""
    with usage_errors(), _forge_errors():
        from regbot.forge.basis import github_settings
        from regbot.forge.events import read_pull_event
        from regbot.forge.gate import on_pull
        from regbot.forge.orders import Outcome

        if os.environ.get("GITHUB_EVENT_NAME") == "merge_group":
            _tell(Outcome("nothing", "a merge group needs no approval; regbot-static checks it"))
            return
        _expect_event("pull_request_target", "gate")
        settings = github_settings(repo)
        happened = read_pull_event(event, _variable("GITHUB_REPOSITORY"))
        _tell(on_pull(_forge(), happened, settings))


@app.command()
def command(event: Event, repo: Repo = Path()) -> None:
    """A comment: obey the command in its first line, or answer why not. Runs no code of a pull request."""
    with usage_errors(), _forge_errors():
        from regbot.forge.basis import github_settings
        from regbot.forge.events import read_comment_event
        from regbot.forge.gate import on_comment

        _expect_event("issue_comment", "command")
        settings = github_settings(repo)
        happened = read_comment_event(event, _variable("GITHUB_REPOSITORY"))
        _tell(on_comment(_forge(), happened, settings))


@app.command()
def post(event: Event, repo: Repo = Path()) -> None:
    """Judge what a run left, and show it: the comment, the check run, labels, this job's page."""
    with usage_errors(), _forge_errors():
        from regbot.forge.metadata import Ignored, run_of_event
        from regbot.forge.post import post as post_run

        own = _run()
        found = post_run(_forge(), run_of_event(event, own), repo, own)
        if isinstance(found, Ignored):
            _say(f"nothing: {found.why}")
            return
        faults = []
        for each in found if isinstance(found, list) else ():
            more = "" if each.shown else "; a stronger result stands"
            _say(f"posted: #{each.number} {each.sha[:12]}: {each.title}{more}")
            _summarise(each.text)
            faults += [each.fault] if each.fault else []
        if not isinstance(found, list):
            _say(f"answered: #{found.number}")
            _summarise(found.text)
            faults += [found.fault] if found.fault else []
    for fault in faults:
        _say("".join(f"| {line}" for line in fault.splitlines(keepends=True)), err=True)
    if faults:
        raise typer.Exit(FAULT)


@app.command()
def refresh(event: Event, repo: Repo = Path()) -> None:
    """Bring the refresh pull request up to date with the proposals that this run's nodes left, or open it."""
    with usage_errors(), _forge_errors():
        from datetime import UTC, datetime

        from regbot.forge.events import check_event
        from regbot.forge.refresh import fetch_proposals, post_refresh
        from regbot.forge.remote import Remote

        repository, run = _variable("GITHUB_REPOSITORY"), _run()
        check_event(event, repository)
        forge, page = _forge(), f"{os.environ.get('GITHUB_SERVER_URL') or DEFAULT_SERVER}/{repository}"
        remote = Remote(repo, f"{page}.git", _variable("GITHUB_TOKEN"))
        found = post_refresh(
            forge, remote, fetch_proposals(forge, run), datetime.now(UTC), f"{page}/actions/runs/{run}"
        )
        _say(found.said)
        _summarise(found.summary)
    for missing in found.unmeasured:
        _say(f"regbot: nothing is stored of {missing}", err=True)
    if found.unmeasured:
        raise typer.Exit(UNMEASURED)


def _forge() -> "Forge":
    from regbot.forge.client import Forge

    url = os.environ.get("GITHUB_API_URL") or DEFAULT_URL
    return Forge(_variable("GITHUB_TOKEN"), _variable("GITHUB_REPOSITORY"), url)


def _variable(name: str) -> str:
    from regbot.config import ConfigError

    value = os.environ.get(name, "").strip()
    if not value:
        raise ConfigError(f"{name} is not set; Actions sets all but GITHUB_TOKEN, which a workflow passes on in env:")
    return value


def _run() -> int:
    """The id of this workflow run."""
    from regbot.config import ConfigError

    value = _variable("GITHUB_RUN_ID")
    if not (value.isascii() and value.isdigit()):
        raise ConfigError("GITHUB_RUN_ID is no number; it is as Actions sets it")
    return int(value)


def _expect_event(name: str, asked: str) -> None:
    from regbot.config import ConfigError

    given = os.environ.get("GITHUB_EVENT_NAME", "")
    if given not in ("", name):
        raise ConfigError(f"'regbot github {asked}' is for the event {name}, and this one is {given!r}")


def _tell(outcome: "Outcome") -> None:
    """In the log, and on the job's page where something was done."""
    from regbot.report.markdown import prose

    _say(f"{outcome.did}: {outcome.said}")
    if outcome.did != "nothing":
        _summarise(prose(outcome.said))


def _say(text: str, err: bool = False) -> None:
    """No line of it is a command: to the runner a line is one that begins with "::", or has "##[" in it."""
    from regbot.text import printable

    for line in text.splitlines():
        shown = printable(line).replace("##[", "## [")
        typer.echo(f"| {shown}" if shown.lstrip().startswith("::") else shown, err=err)


def _summarise(markdown: str) -> None:
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(f"{markdown}\n")


@contextmanager
def _forge_errors() -> Iterator[None]:
    """What GitHub refused is for whoever set it up; a GitHub that is away is for later."""
    from regbot.forge.client import AwayError, ForgeError
    from regbot.forge.events import EventError
    from regbot.forge.proposal import ProposalError

    try:
        yield
    except (ForgeError, EventError, ProposalError) as error:
        _say(f"regbot: {error}", err=True)
        raise typer.Exit(AWAY if isinstance(error, AwayError) else USAGE_ERROR) from error
