"""Read a resolved configuration from a file as flat keys. The file is a Run record, a Ledger record, or a JSON dump.

A nested dump is flattened to dotted keys (``model.moe_token_dispatcher_type``). A list becomes a text with its members,
separated by blanks. Other values are kept unchanged.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regbot.judge.preflight.facts import Facts, facts_of_run
from regbot.records.files import RecordError, parse_json, parse_record, read_capped
from regbot.records.ledger import Ledger, Scalar
from regbot.records.run import Run
from regbot.records.text.clip import clip


@dataclass(frozen=True)
class Dump:
    """The configuration and the facts that were read from one file."""

    config: Mapping[str, Scalar]
    facts: Facts
    workload: str = ""
    """Name of the workload if the file is a record; '' for other files."""


def read_dump(path: Path) -> Dump:
    """Read the configuration in the file ``path``. Raises RecordError if the file has no configuration."""
    data = read_capped(path.resolve() if path.is_symlink() else path)
    document = parse_json(data, str(path))
    schema = document.get("schema", "") if isinstance(document, dict) else None
    what = f"{path}: is not a JSON object" if schema is None else f"{path}: is a {clip(str(schema), 80)!r}"
    if schema == "regbot/run@1":
        run = parse_record(data, Run, str(path))
        if run.ledger is None or not run.ledger.config:
            why = f" ({run.outcome}: {run.reason})" if run.reason else ""
            raise RecordError(f"{path}: the run has no resolved configuration{why}")
        return Dump(run.ledger.config, facts_of_run(run), run.workload)
    if schema == "regbot/ledger@1":
        ledger = parse_record(data, Ledger, str(path))
        return Dump(ledger.config, Facts(versions=ledger.software), ledger.workload or "")
    if not isinstance(document, dict) or str(schema).startswith("regbot/"):
        raise RecordError(what, "give a Run or Ledger record, or a dump of a configuration")
    return Dump(dict(_leaves("", document)), Facts())


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, Scalar]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(f"{prefix}.{key}" if prefix else str(key), inner)
    elif isinstance(value, list):
        yield prefix, " ".join(str(member) for member in value)
    else:
        yield prefix, value
