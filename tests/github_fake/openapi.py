"""Requests held against GitHub's own description of its API: openapi.json, which is that of npm @octokit/openapi
without texts, examples, answers and other routes. A list of values that may be null holds null.

A parameter or a property that the description does not know is a violation too, although GitHub would ignore it: it is
a misspelling.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonschema.exceptions import best_match
from openapi_schema_validator import OAS30Validator
from referencing import Registry, Specification

_NAME = "urn:github"  # under this name the validator finds the document that references point into
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
