"""What other people's scripts, checks and stores rely on is still there.

The lists in ``frozen/`` were taken on 2026-11-23, from version 0.1.0. That version also judged the sessions of
``frozen/sessions``, wrote the store ``frozen/store.tar.gz``, and judged four of the sessions with it. These files never
change: ``digests.json`` has the hash of each. Later versions add commands and keys to ``added.json``. Where they decide
otherwise, ``differences.json`` has the new decision, with the rule that moved.
"""

import gzip
import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import typer

from regbot.baselines import Store
from regbot.baselines.commands import list_groups
from regbot.check.conclusion import replace_references
from regbot.cli.app import app
from regbot.config import Config
from regbot.judge import judge
from regbot.records.files import RecordError
from regbot.records.schema_files import FOLDER
from regbot.records.session import Session, parse_session
from regbot.records.verdict import EXIT_CODES, RENAMED_PATTERNS, Verdict, WorkloadVerdict

FROZEN = Path(__file__).parents[1] / "frozen"
GOLDEN = Path(__file__).parents[1] / "golden"
OPEN = {"added.json", "differences.json", "digests.json"}
"""Files of the folder that may change."""


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
    added = read("added.json")["commands"]
    listed = {command: {*frozen.get(command, ()), *added.get(command, ())} for command in frozen.keys() | added.keys()}
    assert now == listed, "list what is new in added.json, so that it stays too"


def test_every_exit_code_means_what_it_meant() -> None:
    assert read("commands.json")["exit_codes"] == EXIT_CODES


@pytest.mark.parametrize("name", read("json_keys.json"))
def test_every_json_key_is_still_there(name: str) -> None:
    schema = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    frozen = {*read("json_keys.json")[name], *read("added.json")["json_keys"].get(name, ())}
    assert keys_of(schema, schema) == frozen, "list what is new in added.json, so that it stays too"


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


def frozen_session(name: str) -> Session:
    lines = gzip.decompress((FROZEN / "sessions" / f"{name}.jsonl.gz").read_bytes()).splitlines()
    return parse_session(enumerate(lines, 1), name)


def with_current_names(sharding: Any) -> Any:
    if sharding is None:
        return None
    status, findings = sharding
    return [
        status,
        sorted([RENAMED_PATTERNS.get(pattern, pattern), finding_status] for pattern, finding_status in findings),
    ]


def with_differences(frozen: dict[str, Any], difference: dict[str, Any]) -> dict[str, Any]:
    """Return the decisions of today: those of version 0.1.0, but for the listed differences and renamed patterns."""
    workloads = {
        name: entry | {"sharding": with_current_names(entry["sharding"])}
        for name, entry in (frozen["workloads"] | difference.get("workloads", {})).items()
    }
    return {"verdict": difference.get("verdict", frozen["verdict"]), "workloads": workloads}


@pytest.mark.parametrize("name", read("verdicts.json"))
def test_a_session_of_that_version_is_read_and_judged_as_it_was_but_for_listed_differences(name: str) -> None:
    difference = read("differences.json")["sessions"].get(name, {})
    frozen = read("verdicts.json")[name]
    assert summary(judge(frozen_session(name), Config())) == with_differences(frozen, difference)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("frozen") / "store"
    with tarfile.open(FROZEN / "store.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return Store(folder)


def test_a_store_of_that_version_has_all_its_sessions(store: Store) -> None:
    groups = [
        {
            "workload": group.workload,
            "variant": group.variant,
            "tier": group.tier,
            "node_class": group.node_class,
            "sessions": group.sessions,
        }
        for group in list_groups(store).groups
    ]
    assert groups == read("store.json")["groups"]


@pytest.mark.parametrize("name", read("store.json")["verdicts"])
def test_a_session_is_judged_with_that_store_as_it_was_but_for_listed_differences(name: str, store: Store) -> None:
    difference = read("differences.json")["store"].get(name, {})
    frozen = read("store.json")["verdicts"][name]
    session = replace_references(frozen_session(name), store)
    assert all(plan.references for plan in session.header.timed)
    header = session.header
    verdict = judge(session, Config(sharding=header.sharding, wire=header.wire))
    assert summary(verdict) == with_differences(frozen, difference)


def test_what_was_frozen_is_never_rewritten() -> None:
    """Restore a file that differs. An addition belongs into ``added.json``, a difference into ``differences.json``."""
    files = sorted(path for path in FROZEN.rglob("*") if path.is_file() and path.parent.name != "workflows")
    digests = {str(path.relative_to(FROZEN)): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in files}
    assert {name: digest for name, digest in digests.items() if name not in OPEN} == read("digests.json")


def test_every_listed_difference_is_one_and_names_its_rule() -> None:
    frozen = {"sessions": read("verdicts.json"), "store": read("store.json")["verdicts"]}
    for kind, differences in read("differences.json").items():
        for name, difference in differences.items():
            assert difference["rule"]
            for workload, decision in difference["workloads"].items():
                assert decision != frozen[kind][name]["workloads"][workload]
            assert difference.get("verdict") != frozen[kind][name]["verdict"]


def test_a_frozen_session_with_an_unknown_key_is_refused() -> None:
    """The test above would not see a reader that takes everything."""
    lines = gzip.decompress((FROZEN / "sessions" / "pass.jsonl.gz").read_bytes()).splitlines()
    changed = lines[1].replace(b'"commit"', b'"comit"', 1)
    assert changed != lines[1]
    with pytest.raises(RecordError):
        parse_session(enumerate([lines[0], changed], 1), "changed")
