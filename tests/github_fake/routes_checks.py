"""Check runs: made and changed by apps only, found by commit and name."""

from typing import Any

from . import shapes
from .call import Answer, Call, Refused, invalid, route
from .records import CheckRun

_REPO = "/repos/{owner}/{repo}"


@route("GET", f"{_REPO}/commits/{{ref}}/check-runs", "checks:read")
def list_checks(call: Call) -> Answer:
    """``filter=latest``, the default, shows the latest of a name and an app only; ``all`` shows doubled ones too."""
    sha = call.repo.git.branch(call.path["ref"]) or call.repo.git.resolve(call.path["ref"])
    if sha is None:
        raise Refused(422, f"No commit found for SHA: {call.path['ref']}")
    found = [one for one in call.repo.check_runs(sha) if call.query.get("check_name", one.name) == one.name]
    if call.query.get("filter", "latest") == "latest":
        found = list({(one.name, one.app): one for one in found}.values())
    return call.page(found[::-1], lambda one: shapes.check_run(call.repo, one), "check_runs")


@route("POST", f"{_REPO}/check-runs", "checks:write")
def create_check(call: Call) -> Answer:
    repo, sha = call.repo, call.body["head_sha"]
    if call.token and not call.token.bot:
        raise Refused(403, "You must authenticate via a GitHub App.")
    if repo.git.resolve(sha) != sha:
        raise Refused(422, f"No commit found for SHA: {sha}")
    made = CheckRun(call.hub.new_id(), call.login, call.body["name"], sha, started=call.hub.tick())
    _change(call, made)
    repo.all_checks[made.id] = made
    return Answer(201, shapes.check_run(repo, made))


@route("PATCH", f"{_REPO}/check-runs/{{check_run_id}}", "checks:write")
def edit_check(call: Call) -> Any:
    one: CheckRun = call.found("check_run_id", call.repo.all_checks)
    if one.app != call.login:
        raise Refused(403, "Invalid app_id - check run can only be modified by the GitHub App that created it.")
    _change(call, one)
    return shapes.check_run(call.repo, one)


def _change(call: Call, one: CheckRun) -> None:
    given, output = call.body, call.body.get("output", {})
    if given.get("status") == "completed" and not given.get("conclusion"):
        raise invalid("CheckRun", "conclusion", "conclusion is required when status is completed", "missing_field")
    if given.get("conclusion") == "stale":
        raise invalid("CheckRun", "conclusion", "stale can only be set by GitHub", "invalid")
    if one.status != "completed":  # GitHub answers 200 to a later status, and leaves the check run completed
        one.status = given.get("status", one.status)
    for where, names in ((given, ("name", "external_id", "details_url")), (output, ("title", "summary", "text"))):
        vars(one).update({name: where[name] for name in names if name in where})
    one.annotations += output.get("annotations", [])  # GitHub adds them to those that are there
    if "conclusion" in given:
        one.status, one.conclusion, one.completed = "completed", given["conclusion"], call.hub.tick()
