"""Base class of all records: strict types, no unknown keys, no NaN, and a named and versioned schema. Every text and
integer has a limit: that of its type, or one of this module. Lists and dictionaries have the limits of
``regbot.records.files.parse_json``."""

from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema

MAX_CHARACTERS = 100_000
"""Largest length of a text, for example of a value in a configuration."""
MAX_INTEGER = 2**63 - 1

_LIMITS: dict[Any, dict[str, Any]] = {
    # Validation of a list ends at its first invalid item, so that a million of them are one error.
    "list": {"fail_fast": True},
    "dict": {"fail_fast": True},
    "str": {"max_length": MAX_CHARACTERS},
    "int": {"ge": -MAX_INTEGER, "le": MAX_INTEGER},
}
"""Limits of pydantic's core schemas, by type."""


def _set_limits(schema: Any) -> None:
    """Add ``_LIMITS`` to every part of a core schema that has no limit of its own."""
    if isinstance(schema, dict):
        kind = schema.get("type")
        if isinstance(kind, str):  # not a field that is called "type"
            for name, limit in _LIMITS.get(kind, {}).items():
                schema.setdefault(name, limit)
        for key, part in schema.items():
            if key not in ("default", "metadata"):
                _set_limits(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            _set_limits(part)


class Record(BaseModel):
    """Base class of all records. A record with a ``schema`` key can be a file of its own."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        frozen=True,
        serialize_by_alias=True,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _set_limits(schema)
        return schema

    def to_json(self) -> str:
        """Return the record as an indented JSON document. The keys are in the order of the fields."""
        return self.model_dump_json(indent=1) + "\n"

    def to_line(self) -> str:
        """Return the record as one line of JSON, for files that are appended to."""
        return self.model_dump_json() + "\n"
