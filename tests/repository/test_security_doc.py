"""docs/security.md names nothing that is not there: files, what is in them, commands, settings, workflows, rights."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main
from pydantic import BaseModel
from ruamel.yaml import YAML

from regbot.cli.app import app
from regbot.github import checks
from regbot.github.commands import VERBS, Command, build_run_command, get_required_role
from regbot.github.refresh import BRANCH
from regbot.github.types import ROLES, Conclusion
from regbot.records.config import Config, GitHub
from regbot.records.session import SessionHeader
from regbot.records.verdict import Status

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "security.md"
PAGE = FILE.read_text(encoding="utf-8")
HEADER_FIELDS = {field.alias or name for name, field in SessionHeader.model_fields.items()}
WORKFLOWS = {
    path.stem: YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "workflows").glob("*.yml"))
}
CONCLUSIONS = {*get_args(Conclusion), "stale", "in_progress"}
"""What a check run may have; the last two are GitHub's."""
GITHUBS = {"runs-on", ".git", "::add-mask::", ".github/CODEOWNERS", ".github/", checks.NAME, "-I", "pip.py", "json.py"}
"""Names of GitHub, of git, of Python, and of files that users or attackers write: nothing of regbot's renames them."""
SHA = "a" * 40


def spans() -> list[str]:
    """All code of the page that stands in a line."""
    prose = re.sub(r"^```.*?^```$", "", PAGE, flags=re.DOTALL | re.MULTILINE)
    return sorted(set(re.findall(r"`([^`\n]+)`", prose)))


def table(*head: str) -> list[list[str]]:
    """The cells of the rows below a table's head."""
    line = f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in head)}|\n"
    assert PAGE.count(line) == 1, f"there is no one table {head}"
    below = PAGE.split(line)[1].split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in below]


def named(path: Path) -> Iterator[str]:
    """What a module defines at its top."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (each.id for each in targets if isinstance(each, ast.Name))


def commands() -> Iterator[tuple[str, set[str]]]:
    """Every command of regbot, by its words, and its options."""

    def walk(words: str, command: Any) -> Iterator[tuple[str, set[str]]]:
        yield words, {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        for name, below in getattr(command, "commands", {}).items():
            yield from walk(f"{words} {name}", below)

    return walk("regbot", typer.main.get_command(app))


def is_command(text: str) -> bool:
    """Whether regbot has this command, with these options."""
    words = text.split()
    options = {word for word in words if word.startswith("--")}
    name = " ".join(word for word in words if word not in options)
    return name != "regbot" and any(name == known and options <= has for known, has in commands())


def is_setting(path: str) -> bool:
    """Whether ``regbot.toml`` has this key: "sandbox.network"."""
    model: type[BaseModel] = Config
    for key in path.split("."):
        field = model.model_fields.get(key) if isinstance(model, type) and issubclass(model, BaseModel) else None
        if field is None:
            return False
        model = field.annotation  # type: ignore[assignment]
    return True


def is_setting_with_value(text: str) -> bool:
    return (found := re.fullmatch(r"([a-z_.]+) = \w+", text)) is not None and is_setting(found[1])


def is_in_a_file(text: str) -> bool:
    """Whether "file:name" is a file, and it defines that name."""
    file, _, name = text.partition(":")
    path = ROOT / file
    return path.suffix == ".py" and path.is_file() and name in set(named(path))


def is_variable(text: str) -> bool:
    if not re.fullmatch(r"REGBOT_[A-Z_]+", text):
        return False
    files = [*(ROOT / "workflows").glob("*.yml"), *(ROOT / "runners").glob("*.sh")]
    return any(text in path.read_text(encoding="utf-8") for path in files)


def is_permission(text: str) -> bool:
    known = {right for workflow in WORKFLOWS.values() for job in workflow["jobs"].values() for right in rights(job)}
    return text in known or is_of_the_apps_token(text)


def is_of_the_apps_token(text: str) -> bool:
    return f"permission-{text}" in (ROOT / "workflows" / "regbot-refresh.yml").read_text(encoding="utf-8")


def rights(job: dict[str, object]) -> list[str]:
    given = job["permissions"]
    assert isinstance(given, dict)
    return sorted(f"{name}: {level}" for name, level in given.items())


def is_of_workflows(text: str) -> bool:
    jobs = {job for workflow in WORKFLOWS.values() for job in workflow["jobs"]}
    return text in WORKFLOWS or text in jobs


def is_known(text: str) -> bool:
    words = text.split()
    return (
        text in GITHUBS
        or text in CONCLUSIONS
        or text == BRANCH
        or is_of_workflows(text)
        or is_in_a_file(text)
        or ("/" in text and " " not in text and (ROOT / text).exists())
        or text == "regbot.toml"
        or (words[0] == "/regbot" and (len(words) == 1 or words[1] in VERBS))
        or is_command(text)
        or (text.startswith("--") and any(text in options for _, options in commands()))
        or is_setting(text)
        or is_setting_with_value(text)
        or (text.startswith("[") and is_setting(text.strip("[]")))
        or text in VERBS
        or text in ROLES
        or is_variable(text)
        or is_permission(text)
        or is_line_of_a_workflow(text)
        or text in HEADER_FIELDS
    )


def is_line_of_a_workflow(text: str) -> bool:
    """A setting of a checkout, the checkout that a workflow names, and how pip is called."""
    files = [path.read_text(encoding="utf-8") for path in (ROOT / "workflows").glob("*.yml")]
    lines = ("persist-credentials: false", "trusted/regbot.toml", "python -I -m pip")
    return text in lines and any(text in file for file in files)


@pytest.mark.parametrize("text", spans())
def test_what_the_page_names_exists(text: str) -> None:
    assert is_known(text), f"docs/security.md names {text!r}, and there is no such thing"


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
                assert is_command(f"regbot {verbs[0].strip()} {' '.join(options)}"), f"{name}: regbot {line}"


def test_the_group_of_runners_names_every_workflow_that_asks_for_a_node() -> None:
    asking = {
        name
        for name, workflow in WORKFLOWS.items()
        if any("self-hosted" in job["runs-on"] for job in workflow["jobs"].values())
    }
    assert set(re.findall(r"^OWNER/REPOSITORY/\.github/workflows/([\w-]+)\.yml@refs/heads/main$", PAGE, re.M)) == asking


def test_the_table_of_roles_is_that_of_the_gate() -> None:
    told = dict(table("", "needs"))
    assert told.pop("the label of `github.run_label`") == get_required_role(build_run_command(SHA))
    protected = told.pop("`/regbot run`, with protected files")
    assert protected == get_required_role(build_run_command(SHA, protected=True))
    assert told == {f"`/regbot {verb}`": get_required_role(Command(verb, "")) for verb in VERBS}


def test_the_table_of_suppliers_has_every_field_of_the_header() -> None:
    told = [name for _, names in table("who supplies it", "fields of the header") for name in names.split(", ")]
    assert sorted(told) == sorted(f"`{name}`" for name in HEADER_FIELDS)


def test_the_table_of_statuses_is_what_check_runs_are_concluded_with() -> None:
    told = {status: (off.strip("`"), on.strip("`")) for status, off, on in table("", "`github.shadow` off", "on")}
    off, on = GitHub(), GitHub(shadow=True)
    assert told == {status: (checks.conclude(status, off), checks.conclude(status, on)) for status in get_args(Status)}


def test_each_named_rule_of_github_has_a_row_with_its_source() -> None:
    tables = {
        2: table("who", "attack", "rule of GitHub", "defence", "test", "what remains"),
        1: table("attack", "rule of GitHub", "what stops it", "test", "what remains"),
    }
    cells = [row[column] for column, rows in tables.items() for row in rows]
    named_rules = {rule for cell in cells for rule in re.findall(r"`tests/github_fake/([^`]+)`", cell)}
    assert all("`" in cell or cell == "none" for cell in cells)
    known = re.findall(r"\| `([^`]+)` \|", (ROOT / "tests" / "github_fake" / "rules.md").read_text(encoding="utf-8"))
    assert named_rules - set(known) == set()


def test_every_attack_that_regbot_stops_has_a_test() -> None:
    """What only GitHub stops, or a person, has none."""
    assert PAGE.count("| who | attack | defence | test | what remains |") == 6
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| ") and line.count("|") == 6]
    untested = [attack.split(",")[0].strip() for _, attack, _, test, _ in rows if not test.strip()]
    assert untested == ["get a node", "register the attacker's own node", "push to the branch `regbot/refresh`"]
