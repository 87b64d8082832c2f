"""How CI runs what root must not run: as another user of whom nothing is left, and with nothing in between."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from required import needed

SCRIPT = Path(__file__).parents[1] / ".ci/unprivileged"
NAMED = "id -u; id -un; touch $HOME/x 2>/dev/null; echo $HOME"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    answer = subprocess.run([SCRIPT, *command], capture_output=True, text=True, timeout=30)
    if "allows root no user namespaces" in answer.stderr:
        pytest.skip(answer.stderr.strip())
    return answer


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
    answer = run("sh", "-c", "echo x:x:0:0::/:/bin/sh >> /etc/passwd || umount /etc/passwd")
    assert answer.returncode != 0


def test_exit_code_and_arguments_are_passed_on() -> None:
    answer = run("sh", "-c", 'echo "$1|$2"; exit 7', "sh", "two words", "")
    assert (answer.returncode, answer.stdout) == (7, "two words|\n")


def test_a_signal_reaches_the_command_itself() -> None:
    run("true")
    with subprocess.Popen([SCRIPT, "sleep", "300"]) as started:
        while b"sleep" not in Path(f"/proc/{started.pid}/cmdline").read_bytes().split(b"\0")[0]:
            assert started.poll() is None
        started.send_signal(signal.SIGTERM)
        assert started.wait(10) == -signal.SIGTERM


@needed("SANDBOX", "" if shutil.which("bwrap") else "there is no bubblewrap here")
def test_a_sandbox_can_be_made_inside() -> None:
    answer = run("bwrap", "--ro-bind", "/", "/", "--unshare-all", "echo", "inside")
    assert answer.stdout == "inside\n", answer.stderr
