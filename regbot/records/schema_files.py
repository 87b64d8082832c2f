"""Print the JSON Schema of a record, or the names of all: ``python -m regbot.records.schema_files [NAME]``.

A wheel has the schemas as files in ``regbot/records/schemas`` (``hatch_build.py``).
"""

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from regbot.records.base import Record


def _list_records(parent: type[Record]) -> Iterator[type[Record]]:
    """Yield the records below ``parent`` that can be a file of their own."""
    for model in parent.__subclasses__():
        if "schema_id" in model.model_fields:
            yield model
        yield from _list_records(model)


for _module in iter_modules([str(Path(__file__).parent)]):
    import_module(f"regbot.records.{_module.name}")
_IDS = {model: str(model.model_fields["schema_id"].default) for model in _list_records(Record)}
RECORDS = {schema_id.removeprefix("regbot/"): model for model, schema_id in _IDS.items()}


def schema_text(name: str) -> str:
    """Return the schema of the record called ``name``, such as "run@1", as JSON."""
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"regbot/{name}"}
    return json.dumps({**document, **RECORDS[name].model_json_schema()}, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write("".join(map(schema_text, sys.argv[1:])) or "\n".join([*sorted(RECORDS), ""]))
