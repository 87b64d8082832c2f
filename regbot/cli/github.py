"""``regbot github``: the commands that regbot's workflows call in GitHub Actions.

They read the event from a file, and everything else from GitHub. They use these variables of Actions: GITHUB_TOKEN,
GITHUB_REPOSITORY, GITHUB_API_URL, GITHUB_EVENT_NAME, GITHUB_EVENT_PATH, GITHUB_RUN_ID, GITHUB_SERVER_URL and
GITHUB_STEP_SUMMARY.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regbot.cli.job_summary import write_job_summary
from regbot.cli.options import usage_errors
from regbot.errors import INTERNAL_ERROR, UserError
from regbot.records.text.clip import short_commit

if TYPE_CHECKING:
    from regbot.github.approval import GateOutcome
    from regbot.github.client import Forge

UNMEASURED = 4
"""Exit code of a refresh that could not measure a workload. It equals the exit code of the verdict INVALID."""
DEFAULT_URL = "https://api.github.com"
DEFAULT_SERVER = "https://github.com"

app = typer.Typer(help="Commands that the GitHub workflows call.", no_args_is_help=True, rich_markup_mode=None)

Event = Annotated[
    Path, typer.Option("--event", metavar="FILE", envvar="GITHUB_EVENT_PATH", help="The event file of Actions.")
]
Repo = Annotated[Path, typer.Option("--repo", metavar="DIR", help="A checkout of the default branch.")]


@app.command()
def gate(event: Event, repo: Repo = Path()) -> None:
    """React to a push, a label, a changed base or a merge group.

    Runs no code of a pull request.
    """
    with usage_errors(say=_complain):
        from regbot.github.base_branch import load_github_settings
        from regbot.github.events import JobEvent, PullEvent, read_event
        from regbot.github.gate import handle_pull
        from regbot.github.merge_queue import handle_group
        from regbot.github.metadata import read_request

        settings, repository = load_github_settings(repo), _variable("GITHUB_REPOSITORY")
        event_name = os.environ.get("GITHUB_EVENT_NAME")
        if event_name == "workflow_run":  # a run of regbot-static for a merge group
            read_event(event, repository, JobEvent)
            run_id = read_request(event).run_id or 0
            _report(handle_group(_forge(), run_id, settings))
            return
        _expect_event("pull_request_target", "gate")
        _report(handle_pull(_forge(), read_event(event, repository, PullEvent), settings))


@app.command()
def command(event: Event, repo: Repo = Path()) -> None:
    """React to a comment: execute the command in its first line, or reply why not. Runs no code of a pull request."""
    with usage_errors(say=_complain):
        from regbot.github.base_branch import load_github_settings
        from regbot.github.events import CommentEvent, read_event
        from regbot.github.gate import handle_comment

        _expect_event("issue_comment", "command")
        settings = load_github_settings(repo)
        comment_event = read_event(event, _variable("GITHUB_REPOSITORY"), CommentEvent)
        _report(handle_comment(_forge(), comment_event, settings))


@app.command()
def post(event: Event, repo: Repo = Path()) -> None:
    """Judge the artifact of a run, and update the comment, the check run, the labels and this job's summary."""
    with usage_errors(say=_complain):
        from regbot.github.metadata import IgnoredRun, read_request
        from regbot.github.post import PostedResult
        from regbot.github.post import post as post_change

        faults = []  # tracebacks of bugs in regbot
        results = post_change(_forge(), read_request(event, _run_id()), repo)
        if not results:
            print_safely("nothing: there is no finished run to judge")
        for result in results:
            if isinstance(result, IgnoredRun):
                print_safely(f"nothing: {result.reason}")
                continue
            if isinstance(result, PostedResult):
                # A result is not published if the pull request already shows a stronger one.
                suffix = "" if result.is_published else "; a stronger result stands"
                print_safely(f"posted: #{result.number} {short_commit(result.sha)}: {result.title}{suffix}")
            else:  # the reply to a command in a comment
                print_safely(f"answered: #{result.number}")
            write_job_summary(result.text)
            faults += [result.fault] if result.fault else []
    for fault in faults:
        print_safely("".join(f"| {line}" for line in fault.splitlines(keepends=True)), err=True)
    if faults:
        raise typer.Exit(INTERNAL_ERROR)


@app.command()
def refresh(event: Event, repo: Repo = Path()) -> None:
    """Open or update the refresh pull request with the proposals of this run's nodes."""
    with usage_errors(say=_complain):
        from datetime import UTC, datetime

        from regbot.github.events import JobEvent, read_event
        from regbot.github.git_remote import Remote
        from regbot.github.refresh import fetch_proposals, post_refresh

        repository, run_id = _variable("GITHUB_REPOSITORY"), _run_id()
        read_event(event, repository, JobEvent)
        forge = _forge()
        server = os.environ.get("GITHUB_SERVER_URL") or DEFAULT_SERVER
        repository_url = f"{server}/{repository}"
        run_url = f"{repository_url}/actions/runs/{run_id}"
        remote = Remote(repo, f"{repository_url}.git", _variable("GITHUB_TOKEN"))
        result = post_refresh(forge, remote, fetch_proposals(forge, run_id), datetime.now(UTC), run_url)
        print_safely(result.message)
        write_job_summary(result.summary)
    for workload in result.unmeasured:
        print_safely(f"regbot: nothing is stored for {workload}", err=True)
    if result.unmeasured:
        raise typer.Exit(UNMEASURED)


def _forge() -> "Forge":
    """Return the client for this repository's API of GitHub. Raises UserError if a variable of Actions is missing."""
    from regbot.github.client import Forge

    url = os.environ.get("GITHUB_API_URL") or DEFAULT_URL
    return Forge(_variable("GITHUB_TOKEN"), _variable("GITHUB_REPOSITORY"), url)


def _variable(name: str) -> str:
    """Return the environment variable ``name``. Raises UserError if it is not set or empty."""
    value = os.environ.get(name, "").strip()
    if not value:
        raise UserError(
            f"{name} is not set", "Actions sets all variables but GITHUB_TOKEN, which the workflow must pass in env:"
        )
    return value


def _run_id() -> int:
    """Return the id of this workflow run. Raises UserError outside of GitHub Actions."""
    value = _variable("GITHUB_RUN_ID")
    if not (value.isascii() and value.isdigit()):
        raise UserError("GITHUB_RUN_ID is not a number", "run this command in GitHub Actions, which sets it")
    return int(value)


def _expect_event(name: str, command_name: str) -> None:
    """Raise UserError if another event than ``name`` started this job. Outside of Actions there is no event."""
    actual = os.environ.get("GITHUB_EVENT_NAME", "")
    if actual not in ("", name):
        raise UserError(f"'regbot github {command_name}' is for the event {name}, not for {actual!r}")


def _report(outcome: "GateOutcome") -> None:
    """Print the outcome to the job's log. If something was done, add it to the job's summary too."""
    from regbot.report.markdown import prose

    print_safely(f"{outcome.effect}: {outcome.message}")
    if outcome.effect != "nothing":
        write_job_summary(prose(outcome.message))


def print_safely(text: str, err: bool = False) -> None:
    """Print the lines of ``text``, changed so that the Actions runner takes none of them as a command.

    A command is a line that begins with "::" or contains "##[".
    """
    from regbot.records.text.printable import printable

    for line in text.splitlines():
        safe_line = printable(line).replace("##[", "## [")
        if safe_line.lstrip().startswith("::"):
            safe_line = f"| {safe_line}"
        typer.echo(safe_line, err=err)


def _complain(text: str) -> None:
    print_safely(text, err=True)
