"""What every shipped workflow keeps to and no linter asks for. Each rule takes a workflow and returns its breaches."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "workflows").glob("*.yml"))

HOSTILE = {"pull_request", "pull_request_target", "issue_comment", "workflow_run", "merge_group"}
"""Events that somebody without rights can cause."""
SECRETS = {("regbot-refresh", "propose"): {"REGBOT_PRIVATE_KEY"}}
"""The only secret there is, and the job that has it."""
TOKENS = {
    ("regbot-gate", "gate"),
    ("regbot-gate", "command"),
    ("regbot-post", "post"),
    ("regbot-bisect", "answer"),
    ("regbot-measure", "hand-over"),
}
"""Jobs of which a step is given GitHub's token."""
HANDING_OVER = {("regbot-measure", "hand-over")}
"""Jobs that start regbot-post on the run that they are of, and do nothing else."""
CANCELLED = {"regbot-static"}
"""Workflows whose runs a newer one may end."""
SUPPRESSED = re.compile(r"# zizmor: ignore\[[a-z-]+\] \S+ \S+ \S+ \S+")
SECRET = re.compile(r"secrets\s*(?:\.\s*(\w+)|\[)")
TOKEN = re.compile(r"github\s*(?:\.\s*token|\[\s*'token)|secrets\s*\.\s*GITHUB_TOKEN", re.IGNORECASE)
UNISOLATED = re.compile(r"(?<![\w.-])python[\d.]*[ \t]+(?!-I )\S+|(?<!-m )(?<![\w.-])pip[\d.]*[ \t]+[a-z]+")
"""A call of Python without -I, or of pip by its own name."""
OTHERS_TEXT = re.compile(
    r"github\.(?:head_ref|event\.(?!workflow_run\.id\b|pull_request\.(?:(?:head|base)\.sha|number)\b|merge_group\.(?:head|base)_sha\b"
    r"|issue\.pull_request\b|repository\.(?:default_branch|private)\b|comment\.body\b|action\b|changes\.base(?![\w.])))"
)
"""Expressions whose value others write. A comment's text is compared in an ``if``, and nothing else is done with it."""


@dataclass(frozen=True)
class Workflow:
    """A workflow as text and as data. An action that is made of steps counts as one, as far as ``scripts`` goes."""

    name: str
    text: str

    @property
    def data(self) -> dict[str, Any]:
        loaded: dict[str, Any] = YAML(typ="safe").load(StringIO(self.text))
        return loaded

    @property
    def events(self) -> set[str]:
        return set(self.data["on"])

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self.data["jobs"]
        return found

    def steps(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Name of the job, the job, the step."""
        for name, job in self.jobs.items():
            for step in job["steps"]:
                yield name, job, step

    def scripts(self) -> Iterator[tuple[str, str]]:
        """Name of the job, or of an action, and the script of each step that has one."""
        steps = [(name, step) for name, _, step in self.steps()] if "jobs" in self.data else []
        steps += [(self.name, step) for step in self.data.get("runs", {}).get("steps", [])]
        yield from ((name, str(step["run"])) for name, step in steps if "run" in step)


def read(path: Path) -> Workflow:
    return Workflow(path.stem, path.read_text(encoding="utf-8"))


def others_text_stays_in_the_event_file(workflow: Workflow) -> Iterator[str]:
    """Nothing that a stranger writes is in an environment, an input of an action or a name."""
    for number, line in enumerate(workflow.text.splitlines(), start=1):
        text = line.strip()
        if text.startswith("group: regbot-post-"):  # GitHub only compares it
            text = text.replace("github.event.workflow_run.display_title", "")
        if not text.startswith(("#", "if:", "&&", "||")) and OTHERS_TEXT.search(text):
            yield f"line {number}: {text}"
        if "comment.body" in text and not text.startswith(("if:", "&&", "||")):
            yield f"line {number}: {text}"


def least_permissions(workflow: Workflow) -> Iterator[str]:
    """None for the workflow, and for each job those that it names."""
    if workflow.data.get("permissions") != {}:
        yield "permissions are not {} at the top"
    for name, job in workflow.jobs.items():
        granted = job.get("permissions")
        if not isinstance(granted, dict):
            yield f"{name}: names no permissions"
        elif "id-token" in granted:
            yield f"{name}: may ask for an identity token"


def time_limits(workflow: Workflow) -> Iterator[str]:
    for name, job in workflow.jobs.items():
        if not isinstance(job.get("timeout-minutes"), int):
            yield f"{name}: has no timeout-minutes"


def python_imports_nothing_of_a_checkout(workflow: Workflow) -> Iterator[str]:
    """Without -I, Python imports modules from the folder that it starts in: a file ``pip.py`` of the checkout runs."""
    for name, script in workflow.scripts():
        for found in UNISOLATED.finditer(script):
            yield f"{name}: {found[0].strip()}: call it as python -I"


def no_cache(workflow: Workflow) -> Iterator[str]:
    """A job of the default branch and one of a pull request would share it."""
    for name, _, step in workflow.steps():
        if "cache" in step.get("uses", "") or "cache" in step.get("with", {}):
            yield f"{name}: uses a cache"


def secrets_where_named(workflow: Workflow) -> Iterator[str]:
    """Secrets and tokens are in the jobs that need them and in no variable of a whole job or workflow."""
    for key in ("env", "defaults"):
        if SECRET.search(str(workflow.data.get(key, ""))) or TOKEN.search(str(workflow.data.get(key, ""))):
            yield f"{key} of the workflow holds a secret"
    for name, job in workflow.jobs.items():
        place = (workflow.name, name)
        found = {match[1] or "any" for match in SECRET.finditer(str(job))}
        for secret in sorted(found - SECRETS.get(place, set())):
            yield f"{name}: has the secret {secret}"
        if TOKEN.search(str(job)) and place not in TOKENS:
            yield f"{name}: gives a step the token"
        if any(TOKEN.search(str(job.get(key, ""))) or SECRET.search(str(job.get(key, ""))) for key in ("env", "with")):
            yield f"{name}: gives all steps a secret"
        if job.get("secrets") is not None:
            yield f"{name}: passes secrets on"


def privileged(workflow: Workflow, job: dict[str, Any]) -> bool:
    """Can the job change anything, or does it hold a secret?"""
    granted = job.get("permissions") or {}
    writes = isinstance(granted, str) or "write" in granted.values()
    return writes or bool(SECRET.search(str(job))) or "environment" in job


def privileged_jobs_touch_no_pull_request(workflow: Workflow) -> Iterator[str]:
    """They check out the commit that the workflow itself is from, install regbot, and call ``regbot github``."""
    for name, job, step in workflow.steps():
        if not privileged(workflow, job):
            continue
        inputs = step.get("with", {})
        if "actions/checkout@" in step.get("uses", "") and {"ref", "repository"} & set(inputs):
            yield f"{name}: has rights and checks out {inputs.get('ref') or inputs.get('repository')}"
        if "allow-unsafe-pr-checkout" in inputs:
            yield f"{name}: asks to be allowed an unsafe checkout"
        script = re.sub(r"regbot github", "", step.get("run", ""))
        if (workflow.name, name) in HANDING_OVER:
            script = _HAND_OVER.sub("", script, count=1)
        if re.search(r"\bgit\b(?!hub)|\bgh\b|curl|wget|unzip|eval", script):
            yield f"{name}: has rights and fetches or unpacks something in a script"


_HAND_OVER = re.compile(
    r"curl (?:-[^\n]*\\\n\s*)+"
    r'"\$GITHUB_API_URL/repos/\$GITHUB_REPOSITORY/actions/workflows/regbot-post\.yml/dispatches" \\\n'
)


def handing_over_knows_nothing(workflow: Workflow) -> Iterator[str]:
    """A job that starts regbot-post is on a machine of its own, fetches nothing, and takes nothing from another job.
    Of the inputs it takes only what its script checks."""
    for name, job in workflow.jobs.items():
        if (workflow.name, name) not in HANDING_OVER:
            continue
        if job["permissions"] != {"actions": "write"}:
            yield f"{name}: may do more than start a workflow"
        if job["runs-on"] != "ubuntu-latest":
            yield f"{name}: is on {job['runs-on']}"
        if any("uses" in step for step in job["steps"]):
            yield f"{name}: uses an action"
        script, change = str(job), "${{ inputs.pr == '0' && inputs.sha || inputs.pr }}"
        if "[[ $CHANGE =~ ^" in script:
            script = script.replace(repr(change).strip("'\""), "").replace(change, "")
        if found := re.search(r"\b(?:inputs|needs|steps)\.", script):
            yield f"{name}: takes {found[0]} from elsewhere"
        if job.get("if") != "always()" or job.get("continue-on-error") is not True:
            yield f"{name}: is left out where a measurement fails, or makes it fail"


def code_under_test_meets_no_rights(workflow: Workflow) -> Iterator[str]:
    """A job that checks out what an event or an input names may read, and no step of it has a token."""
    for name, job in workflow.jobs.items():
        refs = [
            str(step["with"]["ref"])
            for step in job["steps"]
            if "actions/checkout@" in step.get("uses", "") and "ref" in step.get("with", {})
        ]
        if refs and job.get("permissions") != {"contents": "read"}:
            yield f"{name}: checks out {refs[0]} and may do more than read"
        if refs and workflow.events & {"pull_request_target", "issue_comment", "workflow_run"}:
            yield f"{name}: checks out {refs[0]} in a workflow of the default branch that strangers start"
        if refs and (TOKEN.search(str(job)) or SECRET.search(str(job))):
            yield f"{name}: checks out {refs[0]} and has a token"


def nodes_are_not_for_strangers(workflow: Workflow) -> Iterator[str]:
    """A self-hosted runner is asked for where a person with rights, or the clock, has started the workflow."""
    for name, job in workflow.jobs.items():
        if "self-hosted" in job["runs-on"] and workflow.events & HOSTILE:
            yield f"{name}: a node takes jobs of {', '.join(sorted(workflow.events & HOSTILE))}"
        if "self-hosted" in job["runs-on"] and privileged(workflow, job):
            yield f"{name}: a node has rights"


def untrusted_code_is_confined(workflow: Workflow) -> Iterator[str]:
    """On a node, what an input names is run with --untrusted, and never with --no-sandbox."""
    for name, job, step in workflow.steps():
        script = step.get("run", "")
        if "--no-sandbox" in script:
            yield f"{name}: runs code without a sandbox"
        runs = "self-hosted" in job["runs-on"] and re.search(r"regbot (check|bisect)\b", script)
        if runs and "--untrusted" not in script:
            yield f"{name}: runs code of others unconfined on a node"


def inputs_are_checked_first(workflow: Workflow) -> Iterator[str]:
    """Where an input is used, the first step of the job has looked at every one."""
    for name, job in workflow.jobs.items():
        used = set(re.findall(r"inputs\.(\w+)", str(job)))
        first = job["steps"][0]
        seen = set(re.findall(r"inputs\.(\w+)", str(first.get("env", ""))))
        if used and not ("run" in first and used <= seen):
            yield f"{name}: uses {', '.join(sorted(used - seen)) or 'inputs'} before looking at it"


def nothing_waits_in_vain(workflow: Workflow) -> Iterator[str]:
    """Only where it is meant does a newer run end an older one."""
    concurrency = workflow.data.get("concurrency")
    if not isinstance(concurrency, dict) or "group" not in concurrency:
        yield "has no concurrency"
    elif concurrency.get("cancel-in-progress") is not (workflow.name in CANCELLED):
        yield "cancels runs in progress, or does not say"


def reasons_beside_suppressions(workflow: Workflow) -> Iterator[str]:
    for line in workflow.text.splitlines():
        if "zizmor: ignore" in line and not SUPPRESSED.search(line):
            yield f"{line.strip()}: no reason beside it"


def bash_that_stops(workflow: Workflow) -> Iterator[str]:
    """Named, bash is started with -e and pipefail; unnamed, without the latter."""
    if workflow.data.get("defaults") != {"run": {"shell": "bash"}}:
        yield "the shell is not bash throughout"
    for name, _, step in workflow.steps():
        if "shell" in step:
            yield f"{name}: a step has a shell of its own"


RULES: list[Callable[[Workflow], Iterator[str]]] = [
    others_text_stays_in_the_event_file,
    least_permissions,
    time_limits,
    python_imports_nothing_of_a_checkout,
    no_cache,
    secrets_where_named,
    privileged_jobs_touch_no_pull_request,
    handing_over_knows_nothing,
    code_under_test_meets_no_rights,
    nodes_are_not_for_strangers,
    untrusted_code_is_confined,
    inputs_are_checked_first,
    nothing_waits_in_vain,
    reasons_beside_suppressions,
    bash_that_stops,
]
