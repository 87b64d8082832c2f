"""docs/operator.md is true: commands are executed in order and print what the pages show, messages
are the engine's own, tables name every key of the configuration with its default."""

import json
import os
import re
from pathlib import Path

import pytest

from regbot.engines.availability import unavailable_reason
from regbot.records.base import Record
from regbot.records.config import SandboxSettings, SlurmSettings
from support.operator_docs_cases import (
    EXAMPLE,
    MACHINE,
    PAGE,
    REPOSITORY,
    ROOT,
    SANDBOX,
    SLURM,
    blocks,
    follow,
    steady,
    wrong,
)

NOTED = re.compile(r"^\*Not executed by a test: needs root.*\*\n\n```sh$", re.MULTILINE)


@pytest.mark.long
def test_the_commands_of_one_machine_print_what_the_page_shows(tmp_path: Path) -> None:
    kinds = {MACHINE, REPOSITORY, EXAMPLE} | ({SANDBOX} if not unavailable_reason() else set())
    done = follow(kinds, tmp_path, os.environ)
    assert len(done) >= 7


def test_the_commands_in_a_sandbox_are_executed_here() -> None:
    if why := unavailable_reason():
        pytest.skip(why)
    assert [kind for kind, _, _ in blocks()].count(SANDBOX) == 2


def test_every_command_is_executed_or_says_that_it_is_not() -> None:
    every = blocks()
    assert {kind for kind, _, _ in every} == {MACHINE, SANDBOX, REPOSITORY, EXAMPLE, SLURM}
    assert len(every) + len(NOTED.findall(PAGE)) == PAGE.count("```sh\n")


def test_what_may_differ_is_taken_out_and_nothing_else() -> None:
    shown = "FAIL  81b422093c1d -> 04f780c4c071\nmedian +98.2% (+97.1% to +99.0%) of qwen3-30b at mixtral-8x7b@1/ep\n"
    assert steady(shown) == "FAIL  COMMIT -> COMMIT\nmedian # (# to #) of qwen3-30b at mixtral-8x7b@1/ep\n"
    assert wrong("FAIL\nexit code 1\n", "PASS\nexit code 1\n") == "FAIL"


# ---- messages


def spoken() -> str:
    """All of regbot's source, with strings that go on in the next line as one, and an error's advice behind it."""
    every = (path.read_text(encoding="utf-8") for path in sorted((ROOT / "regbot").rglob("*.py")))
    return re.sub(r'",\s*f?"', "; ", re.sub(r'"\s*\n\s*f?"', "", "\n".join(every)))


def quoted(row: str) -> list[str]:
    """The fixed parts of the message in the first cell of a row: what stands between ``...``."""
    (message, *_) = re.findall(r"`([^`]+)`", row)
    return [part.strip(" ;:") for part in message.split("...") if len(part.strip(" ;:().")) >= 4]


def test_every_message_of_the_table_is_one_that_regbot_prints() -> None:
    source = re.sub(r"\{[^{}\n]*\}", "...", spoken())
    table = PAGE.partition("## What you see")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) >= 15
    unknown = [part for row in rows for part in quoted(row) if part not in source and part not in LIVE]
    assert not unknown, unknown


LIVE = {"Resources", "a node failed (NODE_FAIL", "did not begin: it was cancelled (CANCELLED)"}
"""Put together when they are printed: seen in tests/cluster, the first one Slurm's own word."""


# ---- keys


def table(page: str, heading: str) -> dict[str, str]:
    """Keys of a table under ``heading`` and their default cells."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert heading in text, f"{page} has no {heading}"
    part = text.partition(heading)[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \| ([^|]*?) ?\|", part, re.MULTILINE)
    return {key: default for keys, default in rows for key in re.findall(r"`(\w+)`", keys)}


@pytest.mark.parametrize(
    ("page", "heading", "model"),
    [
        ("configuration.md", "## [slurm]", SlurmSettings),
        ("configuration.md", "## [sandbox]", SandboxSettings),
    ],
)
def test_every_key_is_in_the_table_with_its_default(page: str, heading: str, model: type[Record]) -> None:
    found = table(page, heading)
    assert list(found) == list(model.model_fields)
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        said = found[name]
        if default is None:
            assert said, f"{name}: the table says nothing of what holds without it"
        elif default != "" or said.startswith("`"):
            assert json.loads(said.strip("`")) == default, f"{page}: {name}"
