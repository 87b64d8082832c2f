"""docs/operator.md is true: commands are executed in order and print what the pages show, and
tables name every key of the configuration with its default."""

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
)

NOTED = re.compile(r"^\*Not executed by a test: needs root.*\*\n\n```sh$", re.MULTILINE)


@pytest.mark.long
def test_the_commands_of_one_machine_print_what_the_page_shows(tmp_path: Path) -> None:
    kinds = {MACHINE, REPOSITORY, EXAMPLE} | ({SANDBOX} if not unavailable_reason() else set())
    done = follow(kinds, tmp_path, os.environ)
    assert len(done) >= 7


def test_every_command_is_executed_or_says_that_it_is_not() -> None:
    every = blocks()
    assert {kind for kind, _, _ in every} == {MACHINE, SANDBOX, REPOSITORY, EXAMPLE, SLURM}
    assert len(every) + len(NOTED.findall(PAGE)) == PAGE.count("```sh\n")


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
