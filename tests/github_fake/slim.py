"""Cut GitHub's description down to the routes of the fake. To repeat it, in an empty folder:

    npm install --ignore-scripts @octokit/openapi @octokit/webhooks-examples
    PYTHONPATH=.../tests python -m github_fake.slim .

Writes openapi.json (the routes, and what they refer to, without texts and examples) and events.json (the paths and
types of the fields in the examples of the events that the fake makes), each with where it is from and its licence.
"""

import json
import sys
from pathlib import Path
from typing import Any

from .call import ROUTES

_HERE = Path(__file__).parent
_EVENTS = ("issue_comment", "pull_request", "workflow_run", "workflow_dispatch", "merge_group")
_TEXTS = {
    "description", "summary", "example", "examples", "externalDocs", "tags", "operationId", "title", "headers",
    "discriminator",  # says again which of several schemas it is
}  # fmt: skip


def main(folder: Path) -> None:
    packages = folder / "node_modules/@octokit"
    whole = json.loads((packages / "openapi/generated/api.github.com.json").read_text())
    routes: dict[str, Any] = {}
    for route in ROUTES:
        operation = whole["paths"][route.path][route.method.lower()]
        routes.setdefault(route.path, {})[route.method.lower()] = _operation(operation)
    _mend(routes, whole["components"]["schemas"])
    parts: dict[str, dict[str, Any]] = {}
    waiting = list(_references(routes))
    while waiting:
        _, kind, name = waiting.pop().lstrip("#/").split("/")
        if name not in parts.setdefault(kind, {}):
            parts[kind][name] = _bare(whole["components"][kind][name])
            waiting += _references(parts[kind][name])
    _write("openapi.json", packages / "openapi", {"paths": routes, "components": parts})
    examples = json.loads((packages / "webhooks-examples/api.github.com/index.json").read_text())
    fields = {event["name"]: _fields(event["examples"]) for event in examples if event["name"] in _EVENTS}
    _write("events.json", packages / "webhooks-examples", fields)


def _mend(routes: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Where the description is narrower than GitHub. (A third is in ``_bare``: a list of values that may be null has
    to hold null.)"""
    for name in ("pull-request", "pull-request-simple"):  # the head's repository is null once the fork was deleted
        schemas[name]["properties"]["head"]["properties"]["repo"] = {"$ref": "#/components/schemas/nullable-repository"}


def _operation(operation: dict[str, Any]) -> dict[str, Any]:
    """Without its refusals: the fake's own are made where they arise."""
    kept = {key: operation[key] for key in ("parameters", "requestBody") if key in operation}
    good = {status: answer for status, answer in operation["responses"].items() if status < "400"}
    return {**_bare(kept), "responses": _bare(good)}


def _bare(node: Any, names: bool = False) -> Any:
    """Without texts; ``names`` says that the keys are names of properties, which are all kept."""
    if isinstance(node, list):
        return [_bare(one) for one in node]
    if not isinstance(node, dict):
        return node
    if not names and node.get("nullable") and "enum" in node:
        node = node | {"enum": [*dict.fromkeys([*node["enum"], None])]}
    return {
        key: _bare(value, names=key == "properties" and not names)
        for key, value in node.items()
        if names or not (key in _TEXTS or key.startswith("x-"))
    }


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [found for one in node for found in _references(one)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
    return own + [found for one in node.values() for found in _references(one)]


def _fields(examples: list[Any]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for example in examples:
        for path, value in leaves(example):
            found.setdefault(path, set()).add(type(value).__name__)
    return {path: sorted(types) for path, types in sorted(found.items())}


def leaves(node: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every value that is no object and no list, with the names on the way to it ("pull_request.labels[].name")."""
    if isinstance(node, dict):
        return [leaf for key, value in node.items() for leaf in leaves(value, f"{path}.{key}".lstrip("."))]
    if isinstance(node, list):
        return [leaf for value in node for leaf in leaves(value, f"{path}[]")]
    return [(path, node)]


def _write(name: str, package: Path, content: dict[str, Any]) -> None:
    about = json.loads((package / "package.json").read_text())
    # The package of the examples names its licence and leaves the text out; both are Octokit's.
    licence = (package.parent / "openapi/LICENSE").read_text()
    notice = {"from": f"npm {about['name']} {about['version']}, cut down by slim.py", "licence": about["license"]}
    lines = [f'"{key}":{json.dumps(value, separators=(",", ":"), sort_keys=True)}' for key, value in content.items()]
    (_HERE / name).write_text(
        "{\n" + ",\n".join([f'"notice":{json.dumps(notice | {"text": licence})}', *lines]) + "\n}\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
