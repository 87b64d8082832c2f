"""Base class of all records: strict types, no unknown keys, no NaN, and a named and versioned schema.

Records are frozen. A decision is computed from records, and is never written into the records that it used.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict


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

    def to_json(self) -> str:
        """Return the record as an indented JSON document. The keys are in the order of the fields."""
        return self.model_dump_json(indent=1) + "\n"

    def to_line(self) -> str:
        """Return the record as one line of JSON, for files that are appended to."""
        return self.model_dump_json() + "\n"

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of this class, as shipped in the folder ``schemas``."""
        return cls.model_json_schema(by_alias=True, mode="validation")
