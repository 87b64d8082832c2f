"""Comment commands: valid ones, text about commands, and arbitrary text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regbot.github.commands import (
    DEFAULT_PAIRS,
    FORMS,
    MAX_LINE_CHARACTERS,
    MAX_PAIRS,
    MAX_REASON_CHARACTERS,
    Command,
    InvalidCommand,
    build_run_command,
    parse_command,
)

A, B = "a" * 40, "0123456789abcdef0123456789abcdef01234567"
RULE = "recompute re-dispatches@ep@qwen3-30b-a3b@1/ep: saves memory, see #12"
WHY = "the router computes in fp32 now: see the RFC"
COMMANDS: dict[str, dict[str, object]] = {
    f"/regbot run {B}": {"verb": "run", "sha": B, "protected": False},
    f"/regbot run {B} with-protected-files": {"verb": "run", "sha": B, "protected": True},
    f"/regbot more {B}": {"verb": "more", "sha": B, "pairs": DEFAULT_PAIRS, "protected": False},
    f"/regbot more {B} 12": {"verb": "more", "sha": B, "pairs": 12},
    f"/regbot bisect {A}..{B}": {"verb": "bisect", "good": A, "sha": B, "workload": ""},
    f"/regbot bisect {A}..{B} moe:mixtral-8x7b@1/ep": {"good": A, "sha": B, "workload": "moe:mixtral-8x7b@1/ep"},
    f"/regbot expect {RULE}": {"verb": "expect", "sha": "", "reason": "saves memory, see #12"},
    f"/regbot accept {B}: {WHY}": {"verb": "accept", "sha": B, "reason": WHY},
}
FORM = "does not have the form"
BEGINNING = "a command begins with /regbot in lower case, one space and one of the words"


def problem(body: str) -> str:
    command = parse_command(body)
    assert isinstance(command, InvalidCommand), command
    return command.problem


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize("end", ["", "\n", "  ", "\t\r\n", "\r\n\r\nIt touches the dispatcher.\r\n", "\n> a\n"])
def test_every_command_is_read_whatever_text_is_below(line: str, end: str) -> None:
    command = parse_command(line + end)
    assert isinstance(command, Command)
    assert {name: getattr(command, name) for name in COMMANDS[line]} == COMMANDS[line]
    assert command.line == line


@pytest.mark.parametrize("protected", [False, True])
def test_a_built_command_is_the_one_that_its_line_says(protected: bool) -> None:
    command = build_run_command(B, protected=protected)
    assert parse_command(command.line) == command
    assert command.protected == protected


@pytest.mark.parametrize(
    "body",
    [
        "",
        "please /regbot run it",
        f"> /regbot run {B}",
        f"```\n/regbot run {B}\n```",
        f"    /regbot run {B}",
        f" /regbot run {B}",
        f"\n/regbot run {B}",
        f"`/regbot run {B}`",
        f"\ufeff/regbot run {B}",
        f"\u200b/regbot run {B}",
        f"\uff0fregbot run {B}",  # a full-width solidus
        f"/r\u0435gbot run {B}",  # a Cyrillic letter
        f"/regbots run {B}",
        "/regbot.toml is wrong",
    ],
)
def test_text_about_commands_is_no_command_and_gets_no_reply(body: str) -> None:
    assert parse_command(body) is None


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("/regbot", BEGINNING),
        (f"/regbot RUN {B}", BEGINNING),
        (f"/regbot\u00a0run {B}", BEGINNING),
        (f"/regbot\trun {B}", "invisible characters"),
        (f"/regbot run{B}", BEGINNING),
        (f"/regbot  run {B}", BEGINNING),
        ("/regbot run", FORM),
        (f"/regbot run {B.upper()}", FORM),
        (f"/regbot run {B[:39]}", FORM),
        ("/regbot run " + "\u0661" * 40, FORM),  # digits, but not ours
        (f"/regbot run \u0430{B[1:]}", FORM),  # a Cyrillic a
        (f"/regbot run {B}\u200b", "invisible characters"),
        (f"/regbot run {B}\r/regbot accept {B}: why", "invisible characters"),
        (f"/regbot run {B}\u2028/regbot accept {B}: why", "invisible characters"),
        (f"/regbot run {B}\ud800", "invisible characters"),
        (f"/regbot run {B} with-protected-file", FORM),
        (f"/regbot run {B}; touch canary", FORM),
        (f"/regbot more {B} 0", FORM),
        (f"/regbot more {B} {MAX_PAIRS + 1}", f"above {MAX_PAIRS}"),
        (f"/regbot more {B} {'9' * 500}", FORM),
        ("/regbot bisect", FORM),
        (f"/regbot bisect {A}...{B}", FORM),
        (f"/regbot bisect main..{B}", FORM),
        (f"/regbot bisect {A}..{A}", FORM),
        (f"/regbot bisect {A}..{B} --command=true", FORM),
        (f"/regbot bisect {A}..{B} {'w' * 129}", FORM),
        ("/regbot expect recompute re-dispatches@ep@*", "the reason is missing"),
        ("/regbot expect nonsense@ep@*: why", "unknown pattern 'nonsense'"),
        ("/regbot expect @@: why", "write 'pattern@axis@workload: reason'"),
        (f"/regbot expect recompute re-dispatches@ep@*: {'w' * (MAX_REASON_CHARACTERS + 1)}", "the reason has more"),
        ("/regbot accept", FORM),
        (f"/regbot accept {B}: {'w' * (MAX_REASON_CHARACTERS + 1)}", "the reason has more"),
        (f"/regbot accept {B}: \u202ewhy", "invisible characters"),
        (f"/regbot run {B}\n/regbot accept {B}: why", "more than one command"),
        (f"/regbot run {B}\r\n\r\n  /regbot run {A}", "more than one command"),
        (f"/regbot run {B}{' ' * MAX_LINE_CHARACTERS}x", "the line has more"),
    ],
)
def test_an_invalid_command_is_reported_with_the_reason(body: str, complaint: str) -> None:
    assert complaint in problem(body)


ALPHABET = st.characters() | st.sampled_from(list("/regbot unmxacpti0123456789abcdef.:@\r\n\t\u200b\u202e\x1b\ud800"))


@given(st.sampled_from(["", *FORMS]), st.text(ALPHABET))
def test_no_text_after_a_command_ever_raises(verb: str, rest: str) -> None:
    command = parse_command(f"/regbot {verb}{rest}")
    if isinstance(command, Command):
        assert parse_command(command.line) == command
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e]", command.line)
