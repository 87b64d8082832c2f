"""The tables of docs/security.md are those of the code: rights, roles, suppliers, statuses; and tests of attacks."""

import re
from pathlib import Path

import pytest

from regbot.records.session import SessionHeader
from support.docs_cases import list_options
from support.workflow_rules import SHIPPED, read

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "security.md"
PAGE = FILE.read_text(encoding="utf-8")
HEADER_FIELDS = {field.alias or name for name, field in SessionHeader.model_fields.items()}
WORKFLOWS = {path.stem: read(path).data for path in SHIPPED}


def table(*head: str) -> list[list[str]]:
    """The cells of the rows below a table's head."""
    line = f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in head)}|\n"
    assert PAGE.count(line) == 1, f"there is no one table {head}"
    below = PAGE.split(line)[1].split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in below]


def rights(job: dict[str, object]) -> list[str]:
    given = job["permissions"]
    assert isinstance(given, dict)
    return sorted(f"{name}: {level}" for name, level in given.items())


def test_the_table_of_permissions_is_that_of_the_workflows() -> None:
    told = {
        (workflow.strip("`"), job.strip("`")): sorted(re.findall(r"`([^`]+)`", given))
        for workflow, job, given in table("workflow", "job", "permissions")
    }
    assert told == {
        (name, job): rights(body) for name, workflow in WORKFLOWS.items() for job, body in workflow["jobs"].items()
    }
    assert all(workflow["permissions"] == {} for workflow in WORKFLOWS.values()), "each job names its own"


def test_the_rights_of_the_apps_are_those_that_the_workflows_ask_for() -> None:
    told = re.search(r"^The App has (.*?), no webhook", PAGE, re.DOTALL | re.MULTILINE)
    text = (ROOT / "workflows" / "regbot-refresh.yml").read_text(encoding="utf-8")
    assert told is not None
    assert set(re.findall(r"`([^`]+)`", told[1])) == set(re.findall(r"permission-(\S+: \w+)", text))
    posting = ("gate", "command", "post", "answer")
    jobs = [job for workflow in WORKFLOWS.values() for name, job in workflow["jobs"].items() if name in posting]
    needs = {right for job in jobs for right in rights(job)} - {"actions: read"}  # to write is to read
    told = re.search(r"The App needs\s(.*?)\. Give its\stoken", PAGE, re.DOTALL)
    assert told is not None
    assert set(re.findall(r"`([^`]+)`", told[1])) == needs


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_give_no_option_that_regbot_does_not_have(name: str) -> None:
    """An option that is refused ends a job before it has done anything."""
    for job in WORKFLOWS[name]["jobs"].values():
        for step in job["steps"]:
            script = step.get("run", "").replace("\\\n", " ")
            for line in re.findall(r"^\s*regbot (.+)$", script, re.MULTILINE):
                verbs = re.match(r"[a-z ]+", line)
                options = re.findall(r"(?<!\S)--[a-z-]+", line)
                assert verbs is not None, line
                assert set(options) <= list_options()[f"regbot {verbs[0].strip()}"], f"{name}: regbot {line}"


def test_the_group_of_runners_names_every_workflow_that_asks_for_a_node() -> None:
    asking = {
        name
        for name, workflow in WORKFLOWS.items()
        if any("self-hosted" in job["runs-on"] for job in workflow["jobs"].values())
    }
    assert set(re.findall(r"^OWNER/REPOSITORY/\.github/workflows/([\w-]+)\.yml@refs/heads/main$", PAGE, re.M)) == asking


def test_the_table_of_suppliers_has_every_field_of_the_header() -> None:
    told = [name for _, names in table("who supplies it", "fields of the header") for name in names.split(", ")]
    assert sorted(told) == sorted(f"`{name}`" for name in HEADER_FIELDS)


def test_every_attack_that_regbot_stops_has_a_test() -> None:
    """What only GitHub stops, or a person, has none."""
    assert PAGE.count("| who | attack | defence | test | what remains |") == 6
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| ") and line.count("|") == 6]
    untested = [attack.split(",")[0].strip() for _, attack, _, test, _ in rows if not test.strip()]
    assert untested == ["get a node", "register the attacker's own node", "push to the branch `regbot/refresh`"]
