"""Talking to supervisors, on this machine or on the nodes of a seat, over the pipes of one process.

The first line of its standard input is the launch; the end of it says that regbot is gone, however it went, and the
supervisors then end what they started. Their reports come over standard output when all is over.
"""

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from regbot.engines.engine import EngineError

BACKSTOP_S = 60.0
"""How much longer than its launch a supervisor may take: killing what is stuck, reading a folder of many files."""
GLANCE_S = 1.0
MOST_BYTES = 2**24
"""Of what supervisors report; more is not theirs."""


class Answer(NamedTuple):
    """What a process of supervisors said, and how it ended."""

    text: bytes
    code: int


def converse(
    words: Sequence[str],
    env: Mapping[str, str],
    order: bytes,
    name: str,
    limit_s: float,
    glance: Callable[[], None] = lambda: None,
) -> Answer:
    """Run the supervisors ``words`` with ``order`` until they have reported.

    ``glance`` is called about once a second and ends everything by raising. Raises EngineError where there is no report
    within ``limit_s`` seconds and BACKSTOP_S; the process is gone when this returns or raises.
    """
    process = subprocess.Popen(
        words,
        cwd="/",
        env=dict(env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        close_fds=True,  # one that held another's standard input open would keep it from seeing our end
        start_new_session=True,  # an interrupt from the terminal is regbot's to handle
    )
    with process:
        try:
            text = _listen(process, order, name, limit_s, glance)
        finally:
            _end(process)
    return Answer(text, process.returncode)


def _listen(
    process: "subprocess.Popen[bytes]", order: bytes, name: str, limit_s: float, glance: Callable[[], None]
) -> bytes:
    """Hand over the order, wait for the reports. Standard input stays open: its end is the sign to kill everything."""
    assert process.stdin is not None
    assert process.stdout is not None
    answer = b""
    with contextlib.suppress(BrokenPipeError):  # it died at once; what it said is read below
        _write_all(process.stdin.fileno(), order + b"\n")
    deadline = time.monotonic() + limit_s + BACKSTOP_S
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        if poll.poll(max(0.0, min(GLANCE_S, left)) * 1000):  # what is there is read, however late it is
            data = os.read(process.stdout.fileno(), 65536)
            if not data or len(answer) > MOST_BYTES:
                return answer
            answer += data
        elif left <= 0:
            raise EngineError(
                f"{name}: its supervisor did not report within {limit_s + BACKSTOP_S:.0f} s; "
                "look for processes stuck in a driver on this machine ('ps' shows them in state D)"
            )
        else:
            glance()


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Have the supervisors end everything, whatever happened here; the process is gone when this returns."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(timeout=BACKSTOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
