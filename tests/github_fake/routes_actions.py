"""Workflows: their runs, what these leave, and starting one."""

from typing import Any

from ruamel.yaml import YAML

from . import shapes
from .call import Answer, Call, Refused, route
from .records import Artifact, Dispatch, Run

_ACTIONS = "/repos/{owner}/{repo}/actions"
_INPUTS_LIMIT = 65_535  # characters of all inputs together


@route("GET", f"{_ACTIONS}/runs/{{run_id}}", "actions:read")
def get_run(call: Call) -> Any:
    return shapes.run(call.found("run_id", call.repo.runs))


@route("GET", f"{_ACTIONS}/runs/{{run_id}}/artifacts", "actions:read")
def list_artifacts(call: Call) -> Answer:
    run: Run = call.found("run_id", call.repo.runs)
    found = [one for one in run.artifacts if call.query.get("name", one.name) == one.name]
    return call.page(found, shapes.artifact, "artifacts")


@route("GET", f"{_ACTIONS}/runs/{{run_id}}/jobs", "actions:read")
def list_jobs(call: Call) -> Answer:
    """``filter=latest``, the default, shows the jobs of the last attempt, ``all`` those of all attempts."""
    run: Run = call.found("run_id", call.repo.runs)
    found = [job for job in run.jobs if call.query.get("filter") == "all" or job.attempt == run.attempt]
    return call.page(found, lambda job: shapes.job(run, job), "jobs")


@route("GET", f"{_ACTIONS}/artifacts/{{artifact_id}}/{{archive_format}}", "actions:read")
def download(call: Call) -> Answer:
    """Sends to the storage, which is another host: the token must not go there."""
    one: Artifact = call.found("artifact_id", {one.id: one for run in call.repo.runs.values() for one in run.artifacts})
    if one.expired:
        raise Refused(410, "Artifact has expired")
    return Answer(302, None, {"Location": f"{call.hub.storage_url}/artifacts/{one.id}.zip?sig=signed"})


def _workflow(call: Call) -> str:
    """The path of a workflow of the default branch: only these can be started."""
    path = f".github/workflows/{call.path['workflow_id']}"
    if call.repo.git.text(call.repo.default_branch, path) is None:
        raise Refused(404, "Not Found")
    return path


@route("GET", f"{_ACTIONS}/workflows/{{workflow_id}}/runs", "actions:read")
def list_workflow_runs(call: Call) -> Answer:
    """Newest first."""
    path, wanted = _workflow(call), {key: call.query[key] for key in ("event", "head_sha") if key in call.query}
    runs = [run for run in call.repo.runs.values() if run.path == path and wanted.items() <= vars(run).items()]
    return call.page(runs[::-1], shapes.run, "workflow_runs")


@route("POST", f"{_ACTIONS}/workflows/{{workflow_id}}/dispatches", "actions:write")
def dispatch(call: Call) -> Answer:
    """The inputs are held against those that the workflow declares on the branch it is to run from."""
    path, ref, given = _workflow(call), call.body["ref"], call.body.get("inputs", {})
    text = call.repo.git.text(ref.removeprefix("refs/heads/"), path)
    triggers = YAML(typ="safe").load(text or "on: []")["on"]
    if "workflow_dispatch" not in triggers:
        raise Refused(422, "Workflow does not have 'workflow_dispatch' trigger")
    declared = (triggers["workflow_dispatch"] or {}).get("inputs", {}) if isinstance(triggers, dict) else {}
    if unexpected := set(given) - set(declared):
        raise Refused(422, f"Unexpected inputs provided: {sorted(unexpected)}")
    required = {name for name, about in declared.items() if about.get("required") and "default" not in about}
    if missing := {name for name in required if not given.get(name)}:
        raise Refused(422, f"Required input '{min(missing)}' not provided")
    if sum(len(value) for value in given.values()) > _INPUTS_LIMIT:
        raise Refused(422, f"inputs are too large (maximum is {_INPUTS_LIMIT} characters)")
    call.repo.dispatched.append(Dispatch(path, ref, given, call.login))
    return Answer(204)
