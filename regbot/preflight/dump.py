"""A file with a resolved configuration -> flat keys: a Run or Ledger record, or any JSON dump of a configuration.

A nested dump becomes dotted keys (``model.moe_token_dispatcher_type``), a list one word for each member. What is
neither, such as ``_target_`` blocks that hold functions, is kept as text: no rule asks for it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regbot.preflight.facts import Facts, facts_of
from regbot.records.files import RecordError, parse_json, parse_record, read_capped
from regbot.records.ledger import Ledger, Scalar
from regbot.records.run import Run

MAX_KEYS = 100_000


@dataclass(frozen=True)
class Dump:
    """What a file tells."""

    config: Mapping[str, Scalar]
    facts: Facts
    workload: str = ""
    """Entry of the verdict, where the file is a record of one."""


def read_dump(path: Path) -> Dump:
    """The configuration in ``path``. Raises RecordError."""
    data = read_capped(path.resolve() if path.is_symlink() else path)
    document = parse_json(data, str(path))
    if not isinstance(document, dict):
        raise RecordError(f"{path}: is JSON and no object; give a Run or Ledger record, or a dump of a configuration")
    schema = document.get("schema")
    if schema == "regbot/run@1":
        run = parse_record(data, Run, str(path))
        if run.ledger is None or not run.ledger.config:
            why = f" ({run.outcome}: {run.reason})" if run.reason else ""
            raise RecordError(f"{path}: the run holds no resolved configuration{why}")
        return Dump(run.ledger.config, facts_of(run), run.workload)
    if schema == "regbot/ledger@1":
        ledger = parse_record(data, Ledger, str(path))
        facts = Facts(world_size=ledger.world_size, versions=ledger.software)
        return Dump(ledger.config, facts, ledger.workload or "")
    if isinstance(schema, str) and schema.startswith("regbot/"):
        raise RecordError(f"{path}: is a {schema[:80]!r}; give a Run or Ledger record, or a dump of a configuration")
    return Dump(flat(document, str(path)), Facts())


def flat(document: Mapping[str, Any], origin: str) -> dict[str, Scalar]:
    """A nested configuration with dotted keys. Raises RecordError where it is absurdly large."""
    found: dict[str, Scalar] = {}
    for key, value in _leaves("", document):
        found[key] = value
        if len(found) > MAX_KEYS:
            raise RecordError(f"{origin}: has more than {MAX_KEYS:,} keys; give the resolved configuration of one job")
    return found


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, Scalar]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(f"{prefix}.{key}" if prefix else str(key), inner)
    elif isinstance(value, list):
        yield prefix, " ".join(str(each) for each in value)
    else:
        yield prefix, value
