"""Requests and answers held against GitHub's own description of its API: openapi.json, which is that of npm
@octokit/openapi without texts, examples, refusals and other routes. The head of a pull request may have no repository
there, once the fork was deleted, and a list of values that may be null holds null.

Requests strictly: a parameter or a property that the description does not know is a violation too, although GitHub
would ignore it: it is a misspelling.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonschema.exceptions import best_match
from openapi_schema_validator import OAS30Validator
from referencing import Registry, Specification

_NAME = "urn:github"  # under this name the validator finds the document that references point into
_EPOCH = "1970-01-01T00:00:00Z"
Schema = dict[str, Any]


class Description:
    def __init__(self, folder: Path = Path(__file__).parent) -> None:
        text = (folder / "openapi.json").read_text()
        self._document = json.loads(text.replace('"$ref":"#/', f'"$ref":"{_NAME}#/'))
        resource = Specification.OPAQUE.create_resource(self._document)
        self._registry: Registry[Any] = Registry().with_resource(_NAME, resource)
        self._validators: dict[int, OAS30Validator] = {}

    def violations(
        self, method: str, path: str, given: dict[str, str], query: dict[str, str], body: Any, has_body: bool
    ) -> list[str]:
        """What is wrong with a request to the route ``path`` (as the description writes it)."""
        operation = self._document["paths"][path][method.lower()]
        parameters = [self._resolved(one) for one in operation.get("parameters", [])]
        known = {one["name"] for one in parameters if one["in"] == "query"}
        found = [f"{name}: GitHub knows no such parameter" for name in query if name not in known]
        for parameter in parameters:
            value = {"path": given, "query": query}[parameter["in"]].get(parameter["name"])
            if value is not None:
                found += self._errors(parameter["schema"], _typed(value, parameter["schema"]), parameter["name"])
            elif parameter.get("required"):
                found.append(f"{parameter['name']}: is required")
        wanted = operation.get("requestBody")
        if wanted is None:
            return found + ["body: the route takes none"] * (has_body and bool(body))
        if not has_body:
            return found + ["body: is required"] * wanted.get("required", False)
        schema = wanted["content"]["application/json"]["schema"]
        names = set(self._properties(schema))
        if isinstance(body, dict) and names:
            found += [f"body: GitHub knows no property {name}" for name in body if name not in names]
        return found + self._errors(schema, body, "body")

    def least_body(self, method: str, path: str) -> Any:
        """The least body that a route takes, None where it takes none: for tests of the routes themselves."""
        wanted = self._document["paths"][path][method.lower()].get("requestBody")
        return self._least(wanted["content"]["application/json"]["schema"], "http://example.org") if wanted else None

    def answer_schema(self, method: str, path: str, status: int) -> tuple[bool, Schema | None]:
        """Whether the description knows such an answer, and what is in it; None where that is nothing."""
        answer = self._document["paths"][path][method.lower()]["responses"].get(str(status))
        content = self._resolved(answer).get("content", {}) if answer else {}
        return answer is not None, content.get("application/json", {}).get("schema")

    def answer_errors(self, schema: Schema, body: Any) -> list[str]:
        return self._errors(schema, body, "answer")

    def fill(self, schema: Schema, value: Any, url: str) -> Any:
        """``value`` with every required property that it lacks, as the least value of its type: null, "", 0, or a URL
        that leads nowhere. So a body is complete without meaning more than the fake knows."""
        schema = self._resolved(schema)
        for part in schema.get("allOf", []):
            value = self.fill(part, value, url)
        choices = schema.get("oneOf") or schema.get("anyOf") or []
        fitting = [one for one in choices if self._is_of(one, value)]
        if fitting and all(self._errors(one, value, "") for one in fitting):
            value = self.fill(fitting[0], value, url)
        if isinstance(value, list):
            return [self.fill(schema.get("items", {}), one, url) for one in value]
        if not isinstance(value, dict):
            return value
        properties = schema.get("properties", {})
        filled = {name: self.fill(properties.get(name, {}), one, url) for name, one in value.items()}
        missing = [name for name in schema.get("required", []) if name not in filled]
        return filled | {name: self._least(properties.get(name, {}), url) for name in missing}

    def _least(self, schema: Schema, url: str) -> Any:
        schema = self._resolved(schema)
        if schema.get("nullable"):
            return None
        if "enum" in schema:
            return schema["enum"][0]
        if "properties" in schema or schema.get("type") == "object":
            return self.fill(schema, {}, url)
        for part in (*schema.get("allOf", []), *schema.get("oneOf", []), *schema.get("anyOf", [])):
            return self._least(part, url)
        if schema.get("type") == "string":
            return {"uri": f"{url}/not-modelled", "date-time": _EPOCH}.get(schema.get("format", ""), "")
        return {"integer": 0, "number": 0, "boolean": False, "array": []}.get(schema.get("type", ""), {})

    def _is_of(self, schema: Schema, value: Any) -> bool:
        kind = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer"}.get(type(value))
        wanted: str = self._resolved(schema).get("type", "object")
        return wanted == kind

    def _properties(self, schema: Schema) -> Iterator[str]:
        schema = self._resolved(schema)
        yield from schema.get("properties", {})
        for part in (*schema.get("allOf", []), *schema.get("oneOf", []), *schema.get("anyOf", [])):
            yield from self._properties(part)

    def _resolved(self, schema: Schema) -> Schema:
        while "$ref" in schema:
            schema = self._registry.resolver().lookup(schema["$ref"]).contents
        return schema

    def _errors(self, schema: Schema, value: Any, where: str) -> list[str]:
        validator = self._validators.get(id(schema))
        if validator is None:
            validator = self._validators[id(schema)] = OAS30Validator(schema, registry=self._registry)
        error = best_match(validator.iter_errors(value))
        if error is None:
            return []
        short = error.message if len(error.message) < 300 else f"is against {error.validator}: {error.validator_value}"
        return [f"{'.'.join([where, *map(str, error.absolute_path)])}: {short[:300]}"]


def _typed(value: str, schema: Schema) -> Any:
    """A parameter's text as the type that it is to have; left as it is where it cannot be that."""
    if schema.get("type") == "integer" and value.lstrip("-").isdigit():
        return int(value)
    return {"true": True, "false": False}.get(value, value) if schema.get("type") == "boolean" else value
