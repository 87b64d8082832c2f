"""What every stored record shares: strict types, no unknown keys, no NaN, a named and versioned schema.

Records are what regbot stores or lets cross a trust boundary. They are frozen: a decision is computed from them,
never written into them.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of all records. A record with a ``schema`` key can stand in a file of its own."""

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
        """The record as one JSON document, indented, keys in the order of the fields."""
        return self.model_dump_json(indent=1) + "\n"

    def to_line(self) -> str:
        """The record as one line of JSON, for files that are appended to."""
        return self.model_dump_json() + "\n"

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON Schema (draft 2020-12) that is shipped beside the code."""
        return cls.model_json_schema(by_alias=True, mode="validation")
