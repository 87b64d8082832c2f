"""The protocol between regbot and a supervisor. regbot writes the request as the first line of standard input. If
standard input closes, regbot is gone, and the supervisor kills every process that it started."""

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from regbot.engines.launch import EngineError

BACKSTOP_S = 60.0
"""Time that a supervisor gets in addition to the launch's limit, to kill stuck processes and to read a folder of many
files."""
TICK_S = 1.0


def run_supervisor(
    arguments: Sequence[str],
    env: Mapping[str, str],
    request: bytes,
    name: str,
    limit_s: float,
    on_tick: Callable[[], None],
) -> tuple[bytes, int]:
    """Start the supervisor, send it ``request`` and wait for its report. Return its output and its exit code. The
    process has ended when this function returns or raises. ``on_tick`` is called about once a second. If it raises, the
    launch is aborted. Raises EngineError if there is no report within ``limit_s`` + BACKSTOP_S seconds."""
    process = subprocess.Popen(
        arguments,
        cwd="/",
        env=dict(env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        close_fds=True,  # a process that inherits this standard input would keep it open after regbot is gone
        start_new_session=True,  # regbot itself handles an interrupt from the terminal
    )
    assert process.stdin is not None
    assert process.stdout is not None
    output = b""
    deadline = time.monotonic() + limit_s + BACKSTOP_S
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    with process:
        try:
            write_all(process.stdin.fileno(), request + b"\n")
            while True:
                if poll.poll(TICK_S * 1000):
                    data = os.read(process.stdout.fileno(), 65536)
                    if not data:
                        break
                    output += data
                elif time.monotonic() > deadline:
                    raise EngineError(
                        f"{name}: its supervisor did not report within {limit_s + BACKSTOP_S:.0f} s",
                        "look for processes stuck in a driver on this machine ('ps' shows them in state D)",
                    )
                else:
                    on_tick()
        finally:
            process.stdin.close()  # the supervisor then kills all processes
            try:
                process.wait(timeout=BACKSTOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
    return output, process.returncode


def write_all(pipe: int, data: bytes) -> None:
    """Write all ``data``. If nobody reads it any more, do nothing: the reader's output says why."""
    unwritten = memoryview(data)
    with contextlib.suppress(BrokenPipeError):
        while unwritten:  # one call may write only a part
            unwritten = unwritten[os.write(pipe, unwritten) :]
