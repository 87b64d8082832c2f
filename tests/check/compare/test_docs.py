"""docs/compare.md is true: its commands are executed in order, and print what stands below them."""

import re
import shlex
from itertools import chain
from pathlib import Path

import pytest

from support.docs_cases import execute, missing
from support.step_files import regbot

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"<!-- run anywhere -->\s*```sh\n(.*?)```\s*```text\n(.*?)```", re.DOTALL)


def here(command: str) -> tuple[str, int]:
    """What ``regbot compare ...`` prints and its exit code, without a process of its own: starting one takes longer."""
    words = [sorted(map(str, Path().glob(word))) if "*" in word else [word] for word in shlex.split(command)]
    program, name, *arguments = chain.from_iterable(words)
    assert (program, name) == ("regbot", "compare")
    result = regbot(*arguments)
    return result.stdout, result.exit_code


def test_every_command_prints_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(PAGE)
    assert len(blocks) == PAGE.count("```sh") >= 6
    for number, (commands, shown) in enumerate(blocks):
        *before, last = commands.splitlines()
        for command in before:
            made = execute(command, tmp_path)
            assert made.returncode == 0, f"{command}\n{made.stderr}"
        stdout, code = here(last)
        if number == 0:
            process = execute(last, tmp_path)
            assert (process.stdout, process.returncode) == (stdout, code), process.stderr
        assert shown.splitlines()[-1] == f"exit code {code}", f"{last}\n{stdout}"
        assert not missing(shown, f"{stdout}exit code {code}\n"), f"{last}\n{stdout}"
