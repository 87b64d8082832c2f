"""Comment commands: valid ones, text about commands, and arbitrary text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regbot.github.commands import (
    DEFAULT_PAIRS,
    FORMS,
    MAX_BODY_CHARACTERS,
    MAX_LINE_CHARACTERS,
    MAX_PAIRS,
    MAX_REASON_CHARACTERS,
    AcceptCommand,
    BisectCommand,
    Command,
    ExpectCommand,
    InvalidCommand,
    MoreCommand,
    RunCommand,
    format_command,
    parse_command,
)

A, B = "a" * 40, "0123456789abcdef0123456789abcdef01234567"
RULE = "recompute re-dispatches@ep@qwen3-30b-a3b@1/ep: saves memory, see #12"
COMMANDS: dict[str, Command] = {
    f"/regbot run {B}": RunCommand(B),
    f"/regbot run {B} with-protected-files": RunCommand(B, True),
    f"/regbot more {B}": MoreCommand(B, DEFAULT_PAIRS),
    f"/regbot more {B} 12": MoreCommand(B, 12),
    f"/regbot bisect {A}..{B}": BisectCommand(A, B),
    f"/regbot bisect {A}..{B} qwen3-30b-a3b@1/ep": BisectCommand(A, B, "qwen3-30b-a3b@1/ep"),
    f"/regbot bisect {A}..{B} moe:mixtral-8x7b/ep": BisectCommand(A, B, "moe:mixtral-8x7b/ep"),
    f"/regbot expect {RULE}": ExpectCommand(RULE),
    f"/regbot accept {B}: the router computes in fp32 now: see the RFC": AcceptCommand(
        B, "the router computes in fp32 now: see the RFC"
    ),
}


def problem(body: str) -> str:
    command = parse_command(body)
    assert isinstance(command, InvalidCommand), command
    return command.problem


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_read(line: str) -> None:
    assert parse_command(line) == COMMANDS[line]


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize("end", ["\n", "\r\n", "  ", "\t\r\n", "\r\n\r\nIt touches the dispatcher.\r\n", "\n> a\n"])
def test_text_below_and_trailing_blanks_change_nothing(line: str, end: str) -> None:
    assert parse_command(line + end) == COMMANDS[line]


@pytest.mark.parametrize("command", COMMANDS.values(), ids=str)
def test_a_formatted_command_parses_to_the_same_command(command: Command) -> None:
    assert parse_command(format_command(command)) == command


@pytest.mark.parametrize(
    "body",
    [
        "",
        "Looks good.",
        "please /regbot run it",
        f"> /regbot run {B}",
        f"```\n/regbot run {B}\n```",
        f"    /regbot run {B}",
        f" /regbot run {B}",
        f"\n/regbot run {B}",
        f"\r\n/regbot run {B}",
        f"Type this:\n/regbot run {B}",
        f"`/regbot run {B}`",
        f"<!-- -->/regbot run {B}",
        f"\ufeff/regbot run {B}",
        f"\u200b/regbot run {B}",
        f"\u202e/regbot run {B}",
        f"\x1b[0m/regbot run {B}",
        f"\uff0fregbot run {B}",  # a full-width solidus
        f"/r\u0435gbot run {B}",  # a Cyrillic letter
        f"/reg\u200bbot run {B}",
        f"/regbots run {B}",
        "/regbot.toml is wrong",
        "/regbot/github/gate.py",
        "/regbot-measure fails",
    ],
)
def test_text_about_commands_is_no_command_and_gets_no_reply(body: str) -> None:
    assert parse_command(body) is None


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("/regbot", "the command is missing"),
        ("/regbot ", "the command is missing"),
        ("/regbot\n", "the command is missing"),
        ("/regbot please", "there is no command 'please'"),
        (f"/regbot RUN {B}", "there is no command 'RUN'"),
        (f"/Regbot run {B}", "lower case"),
        (f"/REGBOT run {B}", "lower case"),
        (f"/regbot:run {B}", "lower case and one space"),
        (f"/regbot\u00a0run {B}", "one space"),
        (f"/regbot\trun {B}", "invisible characters"),
        (f"/regbot run{B}", "there is no command"),
        (f"/regbot  run {B}", "one space before it"),
        ("/regbot run", "the commit is missing"),
        (f"/regbot run  {B}", "40 lower-case hexadecimal digits"),
        (f"/regbot run {B.upper()}", "40 lower-case hexadecimal digits"),
        (f"/regbot run {B[:39]}", "40 lower-case hexadecimal digits"),
        (f"/regbot run {B}0", "40 lower-case hexadecimal digits"),
        (f"/regbot run {B[:12]}", "40 lower-case hexadecimal digits"),
        ("/regbot run HEAD", "40 lower-case hexadecimal digits"),
        (f"/regbot run --upload-pack={B}", "40 lower-case hexadecimal digits"),
        ("/regbot run " + "\u0661" * 40, "40 lower-case hexadecimal digits"),  # digits, but not ours
        (f"/regbot run \u0430{B[1:]}", "40 lower-case hexadecimal digits"),  # a Cyrillic a
        (f"/regbot run {B}\u200b", "invisible characters"),
        (f"/regbot run \u202e{B}", "invisible characters"),
        (f"/regbot run {B}\x1b[2K", "invisible characters"),
        (f"/regbot run {B}\r/regbot accept {B}: why", "invisible characters"),
        (f"/regbot run {B}\u2028/regbot accept {B}: why", "invisible characters"),
        (f"/regbot run {B}\x00", "invisible characters"),
        (f"/regbot run {B}\ud800", "invisible characters"),
        (f"/regbot run {B} with-protected-file", "only with-protected-files may follow"),
        (f"/regbot run {B} with-protected-files please", "may follow the commit"),
        (f"/regbot run {B} ; rm -rf /", "may follow the commit"),
        (f"/regbot run {B} $(touch canary)", "may follow the commit"),
        (f"/regbot run {B}; touch canary", "40 lower-case hexadecimal digits"),
        (f"/regbot run {B} {A}", "may follow the commit"),
        ("/regbot more", "the commit is missing"),
        (f"/regbot more {B} 0", "no whole number"),
        (f"/regbot more {B} -4", "no whole number"),
        (f"/regbot more {B} 4.5", "no whole number"),
        (f"/regbot more {B} 1e3", "no whole number"),
        (f"/regbot more {B} \u0664", "no whole number"),
        (f"/regbot more {B} {MAX_PAIRS + 1}", f"above {MAX_PAIRS}"),
        (f"/regbot more {B} {'9' * 500}", "no whole number"),
        ("/regbot bisect", "two commits"),
        (f"/regbot bisect {A}", "two commits"),
        (f"/regbot bisect {A}...{B}", "two dots between them"),
        (f"/regbot bisect {A} .. {B}", "two dots between them"),
        (f"/regbot bisect main..{B}", "Branch names and short hashes"),
        (f"/regbot bisect {A}..{A}", "are the same commit"),
        (f"/regbot bisect {A}..{B} --command=true", "no valid name of a workload"),
        (f"/regbot bisect {A}..{B} a b", "no valid name of a workload"),
        (f"/regbot bisect {A}..{B} $HOME", "no valid name of a workload"),
        (f"/regbot bisect {A}..{B} {'w' * 129}", "no valid name of a workload"),
        ("/regbot expect", "the reason is missing"),
        ("/regbot expect recompute re-dispatches@ep@*", "the reason is missing"),
        ("/regbot expect nonsense@ep@*: why", "unknown pattern 'nonsense'"),
        ("/regbot expect @@: why", "write 'pattern@axis@workload: reason'"),
        (f"/regbot expect recompute re-dispatches@ep@*: {'w' * (MAX_REASON_CHARACTERS + 1)}", "the reason has more"),
        ("/regbot accept", "the commit is missing"),
        (f"/regbot accept {B}", "the reason is missing"),
        (f"/regbot accept {B}:", "the reason is missing"),
        (f"/regbot accept {B} because", "the reason is missing"),
        ("/regbot accept this: why", "40 lower-case hexadecimal digits"),
        (f"/regbot accept {B}: {'w' * (MAX_REASON_CHARACTERS + 1)}", "the reason has more"),
        (f"/regbot accept {B}: \u202ewhy", "invisible characters"),
        (f"/regbot run {B}\n/regbot accept {B}: why", "more than one command"),
        (f"/regbot run {B}\r\n\r\n  /regbot run {A}", "more than one command"),
        (f"/regbot run {B}\nthen\n/Regbot more", "more than one command"),
        (f"/regbot run {B}{' ' * MAX_LINE_CHARACTERS}x", "the line has more"),
        (f"/regbot run {B}\n{'x' * MAX_BODY_CHARACTERS}", "the comment has more"),
        ("/regbot " + "x" * 10_000_000, "the comment has more"),
    ],
)
def test_an_invalid_command_is_reported_with_the_reason(body: str, complaint: str) -> None:
    assert complaint in problem(body)


ALPHABET = st.characters() | st.sampled_from(list("/regbot unmxacpti0123456789abcdef.:@\r\n\t\u200b\u202e\x1b\ud800"))


@given(st.sampled_from(["", *FORMS]), st.text(ALPHABET))
def test_no_text_after_a_command_ever_raises(verb: str, rest: str) -> None:
    command = parse_command(f"/regbot {verb}{rest}")
    if command is not None and not isinstance(command, InvalidCommand):
        assert parse_command(format_command(command)) == command
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e]", format_command(command))


WORDS = st.sampled_from(
    [A, B, A.upper(), "with-protected-files", "..", "...", "@", ":", " ", "12", "ep", "*", "why", "-"]
)
