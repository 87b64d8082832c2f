"""Every way out of ``regbot check`` that is not a verdict has an exit code that no verdict has."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from regbot import __main__ as entry
from regbot.records.verdict import EXIT_CODES

CHECK = ["regbot", "check", "--no-timing", "--json"]


def recurse() -> None:
    recurse()


def run_check(monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> object:
    """Return the exit code of a check that ends with ``error``, or with the verdict FAIL if it is None."""

    def check(*_: object) -> object:
        if isinstance(error, RecursionError):
            recurse()
        if error is not None:
            raise error
        return SimpleNamespace(verdict=SimpleNamespace(verdict="FAIL", to_json=lambda: "{}"), out=None)

    monkeypatch.setattr("regbot.check.flow.check", check)
    monkeypatch.setattr(sys, "argv", CHECK)
    with pytest.raises(SystemExit) as end:
        entry.main()
    return end.value.code


def test_a_verdict_has_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_check(monkeypatch, None) == EXIT_CODES["FAIL"] == 1


@pytest.mark.parametrize(
    "error",
    [
        ValueError(), RecursionError(), MemoryError(), EOFError(), AssertionError(), StopIteration(), GeneratorExit(),
        SystemExit(1), SystemExit("a library gave up"), SystemExit(), typer.Abort(),
    ],
    ids=repr,
)  # fmt: skip
def test_a_crash_has_the_exit_code_of_no_verdict(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    assert run_check(monkeypatch, error) == 70


def test_a_crash_whose_message_cannot_be_printed_has_the_exit_code_of_no_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=refuse, flush=refuse, isatty=lambda: False))
    assert run_check(monkeypatch, ValueError()) == 70


@pytest.mark.parametrize("command", [["-m", "regbot"], [str(Path(sys.executable).with_name("regbot"))]])
def test_a_module_that_cannot_be_imported_has_the_exit_code_of_no_verdict(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "typer.py").write_text("raise SystemError\n")
    finished = subprocess.run([sys.executable, *command, "--version"], env={"PYTHONPATH": str(tmp_path)}, check=False)
    assert finished.returncode == 70


@pytest.mark.parametrize(
    ("last", "code"), [("ctypes.CDLL(None).exit(1)", 70), ("os.kill(os.getpid(), 11)", -11), ("raise typer.Exit(1)", 1)]
)
def test_a_library_that_ends_the_process_gives_no_verdict(last: str, code: int) -> None:
    script = f"""
import atexit, ctypes, os, typer
import regbot.cli.app
from regbot.__main__ import command

def app():
    atexit.register(print, "cleaned up")
    try:
        {last}
    except typer.Exit as end:
        raise SystemExit(1) from None

regbot.cli.app.app = app
command()
"""
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert finished.returncode == code, finished.stderr
    assert finished.stdout == ("cleaned up\n" if code == 1 else "")


def test_a_broken_pipe_has_the_exit_code_of_no_verdict() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "regbot", "shapes"]
    assert subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False).returncode == 70
    os.close(writing)


def test_an_interrupt_while_the_verdict_is_printed_has_the_exit_code_of_no_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("regbot.cli.app.show", interrupt)
    assert run_check(monkeypatch, None) == 130
