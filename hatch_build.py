"""Add the JSON Schemas of all records to the wheel, as ``regbot/records/schemas/NAME.json``."""

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SchemaHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from regbot.records.schema_files import RECORDS, schema_text

        self.folder = tempfile.TemporaryDirectory()  # removed after the build, with this object
        for name in RECORDS:
            path = Path(self.folder.name, f"{name}.json")
            path.write_text(schema_text(name), encoding="utf-8")
            build_data["force_include"][str(path)] = f"regbot/records/schemas/{name}.json"
