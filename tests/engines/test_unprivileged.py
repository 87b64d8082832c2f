"""The script of CI that runs a command as another user, for what root must not run."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from support.required import needed

SCRIPT = Path(__file__).parents[2] / ".ci/unprivileged"
NAMED = "id -u; id -un; touch $HOME/x 2>/dev/null; echo $HOME"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    result = subprocess.run([SCRIPT, *command], capture_output=True, text=True, timeout=30)
    if "allows root no user namespaces" in result.stderr:
        pytest.skip(result.stderr.strip())
    return result


def test_the_command_is_not_root_and_has_a_name_and_a_home() -> None:
    before = Path("/etc/passwd").read_bytes()
    uid, name, home = run("sh", "-c", NAMED).stdout.split()
    assert int(uid) != 0
    assert name != "root"
    assert Path("/etc/passwd").read_bytes() == before
    if os.geteuid() == 0:
        assert not (Path(home) / "x").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is given another /etc/passwd")
def test_the_users_of_the_machine_cannot_be_changed() -> None:
    result = run("sh", "-c", "echo x:x:0:0::/:/bin/sh >> /etc/passwd || umount /etc/passwd")
    assert result.returncode != 0


def test_exit_code_and_arguments_are_passed_on() -> None:
    result = run("sh", "-c", 'echo "$1|$2"; exit 7', "sh", "two words", "")
    assert (result.returncode, result.stdout) == (7, "two words|\n")


def test_a_signal_is_sent_to_the_command_itself() -> None:
    run("true")
    with subprocess.Popen([SCRIPT, "sleep", "300"]) as process:
        while b"sleep" not in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[0]:
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM


@needed("SANDBOX", "" if shutil.which("bwrap") else "bubblewrap is not installed")
def test_a_sandbox_works_inside() -> None:
    result = run("bwrap", "--ro-bind", "/", "/", "--unshare-all", "echo", "inside")
    assert result.stdout == "inside\n", result.stderr
