"""The local engine with real processes: what a guest may do, and that no process of it survives."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regbot.engines import EngineError, Launch, LaunchResult, LocalEngine, clean_environment
from regbot.engines.supervisor import LARGE_RECORD
from support import slurm_processes

MARK = "REGBOT_TEST_MARK"
KIB = 1024


@pytest.fixture
def mark() -> Iterator[str]:
    """A word in the environment of every guest process of the test. No such process may survive the test."""
    word = uuid.uuid4().hex
    yield word
    assert survivors(word) == set()


def survivors(word: str, wait_s: float = 2.0) -> set[int]:
    """Return the processes that still carry ``word`` after at most ``wait_s`` seconds."""
    deadline = time.monotonic() + wait_s
    while (pids := carrying(word)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return pids


def carrying(word: str) -> set[int]:
    return slurm_processes.carrying(f"{MARK}={word}".encode())


def launch(tmp_path: Path, mark: str, code: str, **changes: Any) -> Launch:
    """A launch of the Python program ``code``."""
    values: dict[str, Any] = {
        "command": (sys.executable, "-I", "-S", "-c", code),
        "cwd": tmp_path,
        "env": clean_environment({MARK: mark}),
        "log": tmp_path / "run.log",
        "record_dir": tmp_path / "record",
        "timeout_s": 20.0,
        "max_output_bytes": 256 * KIB,
        "max_dir_bytes": 1024 * KIB,
    }
    return Launch(**{**values, **changes})


def run(tmp_path: Path, mark: str, code: str, **changes: Any) -> LaunchResult:
    return LocalEngine().run(launch(tmp_path, mark, code, **changes))


# ---- ends


def test_a_normal_end_gives_exit_code_output_and_wall_time(tmp_path: Path, mark: str) -> None:
    result = run(tmp_path, mark, "import sys; print('out', flush=True); print('err', file=sys.stderr)")
    assert (result.exit_code, result.log_tail) == (0, "out\nerr")
    assert (result.timed_out, result.output_truncated, result.excess) == (False, False, "")
    assert (result.left_behind, result.unkilled) == (0, 0)
    assert 0 < result.wall_s < 10
    assert (tmp_path / "run.log").read_text() == "out\nerr\n"


def test_the_guest_has_its_own_folder_environment_and_session_and_no_input(tmp_path: Path, mark: str) -> None:
    (tmp_path / "work").mkdir()
    code = (
        "import json, os, sys; open('seen.json', 'w').write(json.dumps("
        "[dict(os.environ), sys.stdin.read(), os.getsid(0) == os.getpid(), sorted(os.listdir('/proc/self/fd'))]))"
    )
    environment = {MARK: mark, "ONLY": "this, with an odd \udce9 in it"}
    run(tmp_path, mark, code, cwd=tmp_path / "work", env=environment)
    seen, stdin, leads, descriptors = json.loads((tmp_path / "work" / "seen.json").read_text())
    assert {name: seen[name] for name in environment} == environment
    assert set(seen) <= {*environment, "LC_CTYPE"}  # set by Python itself
    assert (stdin, leads) == ("", True)
    assert len(descriptors) <= 5  # three standard ones, the file, and the listing's own: no pipe of the supervisor


def test_a_missing_executable_is_an_error_that_names_it(tmp_path: Path, mark: str) -> None:
    with pytest.raises(EngineError, match=r"^no-such-python: could not be started in .*No such file.*regbot\.toml"):
        run(tmp_path, mark, "", command=("no-such-python", "-c", ""))


# ---- limits


def test_a_guest_that_ignores_signals_is_ended_with_its_children(tmp_path: Path, mark: str) -> None:
    code = (
        "import os, signal, time\n"
        "for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(s, signal.SIG_IGN)\n"
        "for _ in range(3): os.fork()\n"
        "time.sleep(1000)"
    )
    result = run(tmp_path, mark, code, timeout_s=0.4)
    assert (result.timed_out, result.left_behind, result.unkilled) == (True, 0, 0)
    assert carrying(mark) == set()


def test_the_log_keeps_the_beginning_and_the_end_of_a_million_lines(tmp_path: Path, mark: str) -> None:
    result = run(
        tmp_path, mark, "for i in range(1_000_000): print(i)\nprint(end='', flush=True); raise SystemExit('the reason')"
    )
    text = (tmp_path / "run.log").read_text()
    assert (result.exit_code, result.output_truncated) == (1, True)
    assert text.startswith("0\n1\n2\n")
    assert text.endswith("999999\nthe reason\n")
    assert " bytes left out]\n" in text
    assert len(text) < 257 * KIB
    assert result.log_tail.endswith("999998\n999999\nthe reason")


def test_a_record_folder_that_grows_too_large_ends_the_guest(tmp_path: Path, mark: str) -> None:
    code = (
        "import os, time; os.mkdir('record/deep'); open('record/deep/big', 'wb').write(bytes(2**21)); time.sleep(1000)"
    )
    result = run(tmp_path, mark, code)
    assert (result.excess, result.timed_out, result.exit_code) == (LARGE_RECORD, False, None)


# ---- surviving processes

DAEMON = (
    "import os, sys, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        os.setpgid(0, 0)\n"
    "        null = os.open('/dev/null', os.O_RDWR)\n"
    "        for d in (0, 1, 2): os.dup2(null, d)\n"
    "        open('daemon.pid', 'w').write(str(os.getpid()))\n"
    "        time.sleep(1000)\n"
    "    os._exit(0)\n"
    "while not os.path.exists('daemon.pid'): time.sleep(0.01)\n"
)


def test_a_daemon_that_outlives_the_guest_is_killed_and_counted(tmp_path: Path, mark: str) -> None:
    result = run(tmp_path, mark, DAEMON)
    assert (result.exit_code, result.left_behind) == (0, 1)
    assert carrying(mark) == set()


def test_a_helper_that_ends_soon_after_the_guest_is_not_counted(tmp_path: Path, mark: str) -> None:
    code = "import os, time\nif os.fork() == 0: time.sleep(0.2); print('helper', flush=True); os._exit(0)"
    result = run(tmp_path, mark, code)
    assert (result.left_behind, result.log_tail) == (0, "helper")


def test_a_supervisor_that_gets_sigterm_kills_its_guest(tmp_path: Path, mark: str) -> None:
    code = DAEMON + "os.kill(os.getppid(), 15); time.sleep(1000)"
    with pytest.raises(EngineError, match="supervisor ended without a report"):
        run(tmp_path, mark, code)
    assert carrying(mark) == set()


def test_no_process_survives_when_regbot_is_killed(tmp_path: Path, mark: str) -> None:
    with start_regbot(tmp_path, mark) as regbot:
        regbot.kill()
    assert survivors(mark) == set()


def test_no_process_survives_when_regbot_is_interrupted(tmp_path: Path, mark: str) -> None:
    with start_regbot(tmp_path, mark) as regbot:
        regbot.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in regbot.communicate(timeout=10)[0]
        assert carrying(mark) == set()  # at once: an interrupted run kills its guest before it raises


def start_regbot(tmp_path: Path, mark: str) -> "subprocess.Popen[str]":
    """Start a process that runs a hanging guest with a daemon through LocalEngine; return when both are running."""
    arguments = f"Path({str(tmp_path)!r}), {mark!r}, test_local_engine.DAEMON + 'time.sleep(1000)'"
    code = f"from pathlib import Path; from engines import test_local_engine; test_local_engine.run({arguments})"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", code]
    regbot = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for _ in range(500):
        if (tmp_path / "daemon.pid").exists() and len(carrying(mark)) == 2:
            return regbot
        time.sleep(0.02)
    regbot.kill()
    raise AssertionError(f"the guest did not come up: {regbot.communicate()[0]}")


# ---- log tail and environment


def test_the_tail_is_bounded_and_has_no_terminal_escapes(tmp_path: Path, mark: str) -> None:
    code = (
        "print('\\n'.join(f'line {i}' for i in range(100)))\n"
        "print('\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07\\x08plain\\u202e')\n"
        "print('10%\\r50%\\r100%')\n"
        "import sys; sys.stdout.flush(); sys.stdout.buffer.write(b'\\xff latin\\n')"
    )
    lines = run(tmp_path, mark, code).log_tail.split("\n")
    assert len(lines) == 40
    assert lines[-4:] == ["line 99", "red plain", "100%", "\ufffd latin"]
    assert len(run(tmp_path, mark, "for _ in range(39): print('x' * 500)").log_tail) == 4000


def test_a_clean_environment_has_what_training_needs_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = {"NCCL_DEBUG", "LC_ALL", "TORCH_LOGS", "HF_HOME", "EP_DISABLE_GIN", "HYBRID_EP_MULTINODE"}
    passed |= {"NVSHMEM_REMOTE_TRANSPORT", "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API", "NVLINK_DOMAIN_SIZE"}
    blocked = {"GITHUB_TOKEN", "AWS_ACCESS_KEY_ID", "HF_TOKEN", "TORCH_API_KEY", "NCCL_SECRETS", "EP_TOKEN"}
    blocked |= {"NUM_OF_SECRETS_API", "NUM_OF_KEY_API", "PYTHONPATH", "RANK", "UNKNOWN"}
    for name in passed | blocked:
        monkeypatch.setenv(name, "value")
    clean = clean_environment({"MY_TOKEN": "meant"})
    assert passed <= set(clean)
    assert not blocked & set(clean)
    assert clean["MY_TOKEN"] == "meant"
    assert clean["PATH"] == os.environ["PATH"]
