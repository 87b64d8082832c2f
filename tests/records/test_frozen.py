"""What other people's scripts, checks and stores rely on is still there. The lists in ``frozen/`` were taken on
2026-11-23, from version 0.1.0: they may be added to by later versions, never shortened to make a test pass.

The intervals of pairs have become wider since (``regbot.stats.paired.WIDENINGS``). A PASS at 4 pairs can therefore take
8, or be INCONCLUSIVE if the old session has no more; ``verdicts.json`` has these verdicts. They also contain a luck of
the arms where no calibration knows it (``regbot.stats.arm_luck.ASSUMED_LUCK``), and old sessions have one draw of it.
Eight pairs of one workload of ``pass_no_change`` are therefore undecided.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import typer

from regbot.cli.app import app
from regbot.config import Config
from regbot.judge import judge
from regbot.records.files import RecordError
from regbot.records.schema_files import FOLDER
from regbot.records.session import parse_session
from regbot.records.verdict import EXIT_CODES, Verdict, WorkloadVerdict

FROZEN = Path(__file__).parents[1] / "frozen"
GOLDEN = Path(__file__).parents[1] / "golden"


def read(name: str) -> Any:
    return json.loads((FROZEN / name).read_text(encoding="utf-8"))


def options_of(command: Any, path: str = "regbot") -> dict[str, set[str]]:
    """Names of options, and of arguments in capitals, by command."""
    options: set[str] = set()
    for parameter in command.params:
        is_option = parameter.param_type_name == "option"
        options |= {*parameter.opts, *parameter.secondary_opts} if is_option else {parameter.name.upper()}
    by_command = {path: options}
    for name, child in getattr(command, "commands", {}).items():
        by_command |= options_of(child, f"{path} {name}")
    return by_command


def keys_of(schema: Any, node: Any, path: str = "", seen: tuple[str, ...] = ()) -> set[str]:
    """Dotted paths of all keys that a JSON Schema describes; ``[]`` for the items of a list or mapping."""
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[-1]
        return set() if name in seen else keys_of(schema, schema["$defs"][name], path, (*seen, name))
    keys: set[str] = set()
    for part in ("anyOf", "oneOf", "allOf"):
        for option in node.get(part, ()):
            keys |= keys_of(schema, option, path, seen)
    for key, child in node.get("properties", {}).items():
        keys |= {f"{path}.{key}".lstrip(".")} | keys_of(schema, child, f"{path}.{key}", seen)
    for part in ("items", "additionalProperties"):
        if isinstance(node.get(part), dict):
            keys |= keys_of(schema, node[part], f"{path}[]", seen)
    for child in node.get("prefixItems", ()):
        keys |= keys_of(schema, child, f"{path}[]", seen)
    return keys


def test_every_command_and_option_is_still_there() -> None:
    now = options_of(typer.main.get_command(app))
    frozen = read("commands.json")["commands"]
    missing = {command: set(options) - now.get(command, set()) for command, options in frozen.items()}
    assert {command: options for command, options in missing.items() if options or command not in now} == {}


def test_every_exit_code_means_what_it_meant() -> None:
    assert read("commands.json")["exit_codes"] == EXIT_CODES


@pytest.mark.parametrize("name", read("json_keys.json"))
def test_every_json_key_is_still_there(name: str) -> None:
    schema = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    assert set(read("json_keys.json")[name]) - keys_of(schema, schema) == set()


def test_every_golden_state_still_exists() -> None:
    now = {str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*") if path.is_file()}
    assert set(read("golden_states.json")) - now == set()


def summary(verdict: Verdict) -> dict[str, Any]:
    return {"verdict": verdict.verdict, "workloads": {entry.name: entry_summary(entry) for entry in verdict.workloads}}


def entry_summary(entry: WorkloadVerdict) -> dict[str, Any]:
    sharding, throughput = entry.sharding, entry.throughput
    return {
        "sharding": [sharding.status, sorted([f.pattern, f.status] for f in sharding.findings)] if sharding else None,
        "throughput": [throughput.status, throughput.decision, throughput.by, throughput.pairs] if throughput else None,
        "validity": entry.validity.status,
    }


@pytest.mark.parametrize("name", read("verdicts.json"))
def test_a_session_of_that_version_is_read_and_judged_as_it_was(name: str) -> None:
    lines = gzip.decompress((FROZEN / "sessions" / f"{name}.jsonl.gz").read_bytes()).splitlines()
    session = parse_session(enumerate(lines, 1), name)
    assert summary(judge(session, Config())) == read("verdicts.json")[name]


def test_a_frozen_session_with_an_unknown_key_is_refused() -> None:
    """The test above would not see a reader that takes everything."""
    lines = gzip.decompress((FROZEN / "sessions" / "pass.jsonl.gz").read_bytes()).splitlines()
    changed = lines[1].replace(b'"commit"', b'"comit"', 1)
    assert changed != lines[1]
    with pytest.raises(RecordError):
        parse_session(enumerate([lines[0], changed], 1), "changed")
