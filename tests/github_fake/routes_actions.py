"""Workflows: their runs, what these leave, and starting one."""

from typing import Any

from ruamel.yaml import YAML

from . import shapes
from .call import Answer, Call, Refused, route
from .records import Artifact, Dispatch, Run

_ACTIONS = "/repos/{owner}/{repo}/actions"
_INPUTS_LIMIT = 65_535  # characters of all inputs together


def _asked_for(call: Call, runs: list[Run]) -> list[Run]:
    """Newest first."""
    names = {"branch": "head_branch", "event": "event", "head_sha": "head_sha", "actor": "actor"}
    for key, name in names.items():
        runs = [run for run in runs if call.query.get(key, getattr(run, name)) == getattr(run, name)]
    status = call.query.get("status")
    return [run for run in runs if status in (None, run.status, run.conclusion)][::-1]


def _run(call: Call) -> Run:
    found = call.repo.runs.get(int(call.path["run_id"]))
    if found is None:
        raise Refused(404, "Not Found")
    return found


@route("GET", f"{_ACTIONS}/runs/{{run_id}}", "actions:read")
def get_run(call: Call) -> Any:
    return shapes.run(_run(call))


@route("GET", f"{_ACTIONS}/runs/{{run_id}}/artifacts", "actions:read")
def list_artifacts(call: Call) -> Answer:
    found = [one for one in _run(call).artifacts if call.query.get("name", one.name) == one.name]
    return call.page(found, lambda one: shapes.artifact(call.repo, one), "artifacts")


@route("GET", f"{_ACTIONS}/runs/{{run_id}}/jobs", "actions:read")
def list_jobs(call: Call) -> Answer:
    """``filter=latest``, the default, shows the jobs of the last attempt, ``all`` those of all attempts."""
    run = _run(call)
    found = [job for job in run.jobs if call.query.get("filter") == "all" or job.attempt == run.attempt]
    return call.page(found, lambda job: shapes.job(run, job), "jobs")


def _artifact(call: Call) -> Artifact:
    for run in call.repo.runs.values():
        for one in run.artifacts:
            if one.id == int(call.path["artifact_id"]):
                return one
    raise Refused(404, "Not Found")


@route("GET", f"{_ACTIONS}/artifacts/{{artifact_id}}/{{archive_format}}", "actions:read")
def download(call: Call) -> Answer:
    """Sends to the storage, which is another host: the token must not go there."""
    one = _artifact(call)
    if call.token is None:
        raise Refused(401, "Requires authentication")
    if one.expired:
        raise Refused(410, "Artifact has expired")
    if call.path["archive_format"] != "zip":
        raise Refused(404, "Not Found")
    return Answer(302, None, {"Location": call.hub.storage_url(one)})


def _workflows(call: Call) -> list[str]:
    """Paths of the workflows of the default branch: only these can be started."""
    sha = call.repo.git.branch(call.repo.default_branch)
    rows = call.repo.git.listing(sha, ".github/workflows") if sha else []
    return [path for kind, _, path in rows if kind == "blob" and path.endswith((".yml", ".yaml"))]


def _workflow(call: Call) -> str:
    wanted = call.path["workflow_id"]
    for path in _workflows(call):
        if wanted in (path.rpartition("/")[2], str(shapes.workflow_id(path))):
            return path
    raise Refused(404, "Not Found")


@route("GET", f"{_ACTIONS}/workflows/{{workflow_id}}/runs", "actions:read")
def list_workflow_runs(call: Call) -> Answer:
    path = _workflow(call)
    runs = _asked_for(call, [run for run in call.repo.runs.values() if run.path == path])
    return call.page(runs, shapes.run, "workflow_runs")


@route("POST", f"{_ACTIONS}/workflows/{{workflow_id}}/dispatches", "actions:write")
def dispatch(call: Call) -> Answer:
    """The inputs are held against those that the workflow declares on the branch it is to run from."""
    path, ref, given = _workflow(call), call.body["ref"], call.body.get("inputs", {})
    sha = call.repo.git.branch(ref.removeprefix("refs/heads/"))
    if sha is None:
        raise Refused(422, f"No ref found for: {ref}")
    rows = call.repo.git.listing(sha, path)
    declared = _declared(call.repo.git.blob(rows[0][1])) if rows else None
    if declared is None:
        raise Refused(422, "Workflow does not have 'workflow_dispatch' trigger")
    if set(given) - set(declared):
        raise Refused(422, f"Unexpected inputs provided: {sorted(set(given) - set(declared))}")
    if missing := [
        name
        for name, about in declared.items()
        if about.get("required") and not given.get(name) and "default" not in about
    ]:
        raise Refused(422, f"Required input '{missing[0]}' not provided")
    if sum(len(str(value)) for value in given.values()) > _INPUTS_LIMIT:
        raise Refused(422, f"inputs are too large (maximum is {_INPUTS_LIMIT} characters)")
    inputs = {name: str(value) for name, value in given.items()}
    call.repo.dispatched.append(Dispatch(path, ref, inputs, call.login))
    return Answer(204)


def _declared(workflow: bytes) -> dict[str, Any] | None:
    """Inputs of the trigger workflow_dispatch, None where the workflow has no such trigger."""
    triggers = YAML(typ="safe").load(workflow).get("on")
    if isinstance(triggers, dict) and "workflow_dispatch" in triggers:
        return dict((triggers["workflow_dispatch"] or {}).get("inputs") or {})
    return (
        {}
        if triggers == "workflow_dispatch" or (isinstance(triggers, list) and "workflow_dispatch" in triggers)
        else None
    )
