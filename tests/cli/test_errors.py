"""The command line catches the errors that the user can fix, and no others."""

import ast
from pathlib import Path

import pytest
import typer

import regbot
from regbot.cli.options import usage_errors
from regbot.errors import UserError
from regbot.github.transport import AwayError

PACKAGE = Path(regbot.__file__).parent


def test_the_command_line_catches_no_other_error_classes() -> None:
    caught = {
        ast.unparse(node.type)
        for path in (PACKAGE / "cli").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ExceptHandler) and node.type is not None
    }
    assert caught == {"KeyboardInterrupt", "OSError", "UserError"}


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (UserError("a.toml: is empty", "write a workload"), 2, ["regbot: a.toml: is empty; write a workload"]),
        (UserError("one\ntwo"), 2, ["regbot: one", "regbot: two"]),
        (AwayError("GitHub did not answer"), 75, ["regbot: GitHub did not answer"]),
    ],
)
def test_an_error_ends_a_command_with_its_message_and_code(error: UserError, code: int, lines: list[str]) -> None:
    messages: list[str] = []
    with pytest.raises(typer.Exit) as ended, usage_errors(say=messages.append):
        raise error
    assert (ended.value.exit_code, messages) == (code, lines)
