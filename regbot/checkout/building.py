"""Runs the build commands of an arm in its worktree. A pull request's code runs there."""

import os
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from regbot.checkout.git import kill_group
from regbot.checkout.places import Place
from regbot.text import printable

Builder = Callable[[str, Path, Path, Mapping[str, str], float], tuple[int | None, bytes]]
"""Runs one build command: it, the checkout, the checkout's private folder, the environment, and how many seconds it may
take. Gives back its exit code, None where the time ran out, and the end of its output."""


class BuildError(Exception):
    """An arm's build command failed or timed out. The message has the command, its exit code and its last lines."""


def minimal_environment() -> dict[str, str]:
    """What a build inherits where nothing else is said: where programs are, and a home."""
    return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


def build_in(
    place: Place, commit: str, build: Sequence[str], env: Mapping[str, str], timeout_s: float, run: Builder
) -> None:
    """Run the commands in turn, ``timeout_s`` seconds in all. Raises BuildError; the worktree is gone then."""
    place.private.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_s
    for command in build:
        code, output = run(command, place.path, place.private, env, max(0.0, deadline - time.monotonic()))
        if code == 0:
            continue
        place.clear()
        late = f"did not end within {timeout_s:g} s and was ended"
        how = late if code is None else f"failed with exit code {code}"
        lines = [printable(line) for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
        last = "\n".join(f"  {line[:300]}" for line in lines[-20:]) or "  (it printed nothing)"
        raise BuildError(f"the build command of commit {commit[:10]} {how}: {command}\n{last}")


def in_a_shell(
    command: str, at: Path, private: Path, env: Mapping[str, str], seconds: float
) -> tuple[int | None, bytes]:
    """Exit code, None where the time ran out, and the end of the output of a bash command. Nothing of it is left.

    The end is that of bash, not of its output: a server that a build left behind would keep that open.
    """
    del private  # what is not confined writes where it likes
    deadline = time.monotonic() + seconds
    try:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=at,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise BuildError(f"bash could not be started for the build command {command}: {error.strerror}") from error
    assert process.stdout is not None
    tail, late = bytearray(), 0
    with process, selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        try:
            while time.monotonic() < deadline and late < 64:
                ended = process.poll() is not None  # before the look at the output: its last words count
                if selector.select(0 if ended else 0.1):
                    data = os.read(process.stdout.fileno(), 65536)
                    tail = (tail + data)[-65536:]
                    late += ended
                    if not data:
                        process.wait(max(0.0, deadline - time.monotonic()))
                        break
                elif ended:
                    break
        except subprocess.TimeoutExpired:
            pass
        finally:
            code = process.poll()
            kill_group(process.pid)
    return code, bytes(tail)
