"""The local engine's supervisor: a script that runs one guest, bounds it, and leaves nothing of it behind.

It stands between regbot and the guest so that the kernel does the work that a thread of regbot could not: orphans of
the guest become its children (child subreaper), regbot's death closes its standard input, and its own death ends the
guest's main process. Standard library only, started by path in isolated mode.

Protocol: the first line of standard input is the launch as JSON; end of file there means that regbot is gone. At the
end one JSON document goes to standard output. Nothing is written there when regbot is gone or asked for the end.

It confines a guest only where the launch brings a sandbox with it; what that needs on this node is made by
``confinement``, the script beside this one. Without, the guest has the rights of the user that regbot runs as.
"""

import contextlib
import ctypes
import importlib.util
import json
import os
import resource
import selectors
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

LINUX = sys.platform == "linux"
GRACE_S = 1.0
"""What helper processes (resource trackers, pipe readers) get to end by themselves after the main one has ended."""
KILL_S = 10.0
"""How long SIGKILL may take. Longer means a process stuck in the kernel, for which nobody should wait."""
POLL_S = 1.0
GROWTH_S = 0.1
"""How often it is asked whether a confined guest fills a disk that it may write to."""
TAIL_BYTES = 64 * 1024
MAX_ENTRIES = 100_000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36


class StopError(Exception):
    """Regbot is gone or wants the end."""


class NotStartedError(Exception):
    """There is no guest. The message says why and what to do."""


class Log:
    """Output on disk: the beginning as it comes, and at the end the last part; the middle is counted and dropped."""

    def __init__(self, path: str, limit: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self.file = os.fdopen(os.open(path, flags, 0o644), "wb", buffering=0)
        self.tail_limit = min(TAIL_BYTES, limit // 2)
        self.room = limit - self.tail_limit
        self.tail = bytearray()
        self.dropped = 0
        self.fault: OSError | None = None

    def write(self, data: bytes) -> None:
        """Take output in. A full disk is remembered, not raised: what kills the guest reads its output too."""
        head, rest = data[: self.room], data[self.room :]
        self.room -= len(head)
        self._put(head)
        self.tail += rest
        excess = len(self.tail) - self.tail_limit
        if excess > 0:
            del self.tail[:excess]
            self.dropped += excess

    def close(self) -> None:
        """Complete the file. Raises OSError where some of it could not be written."""
        if self.dropped:
            self._put(b"\n[%d bytes left out]\n" % self.dropped)
        self._put(bytes(self.tail))
        self.file.close()
        if self.fault:
            raise self.fault

    def _put(self, data: bytes) -> None:
        try:
            self.file.write(data)
        except OSError as error:
            self.fault = error


class Enclosure:
    """What confines one guest on this node; with an order of None nothing does."""

    def __init__(self, launch: dict[str, Any]) -> None:
        self.order: dict[str, Any] | None = launch.get("confine")
        self.record, self.words, self.limit = launch["record_dir"], launch["command"], launch["max_dir_bytes"]
        self.stamps = launch.get("stamp", True)
        self.exit_code: int | None = None
        self.overflow = False
        self.room = self.groups = self.growth = None
        if self.order is None:
            return
        self.kit = _confinement()
        self.status, self.told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.groups = self.kit.Groups(self.order["pids"], self.order["memory_bytes"])
        try:
            self.room = self.kit.Room(self.order, self.record)
            self.growth = self.kit.Growth(self.order["writable"], self.order["growth_bytes"], size_of)
        except OSError as error:
            self.groups.remove()
            raise NotStartedError(
                f"the sandbox cannot be made: {error}; 'regbot doctor' tries it step by step"
            ) from error
        self.record = self.room.record
        visible = self.order["visible"]
        program, *words = self.kit.with_devices(self.words, visible, self.order["network"])
        self.words = [program, "--json-status-fd", str(self.told), *words]

    def enter(self) -> None:
        """In the process that becomes the sandbox."""
        if self.groups is not None:
            self.groups.join()
            self.kit.leave_keyring()

    def passed(self, now_full: bool) -> bool:
        """Has the guest passed a limit of what it may write? ``now_full``: the time has come to look at its record."""
        if self.growth is not None and self.growth.passed():
            self.overflow = True
        elif now_full:
            self.overflow = overflown(self.record, self.limit) or (self.room is not None and self.room.full())
        return self.overflow

    def finish(self) -> bool:
        """Keep the record of a guest that is dead, and tell whether it passed its limit at any time."""
        if not self.passed(now_full=True):
            if self.room is None:
                if self.stamps:
                    stamp(self.record)
            else:
                self.overflow = not self.room.keep()
        return self.overflow

    def close(self) -> None:
        if self.groups is not None:
            self.groups.remove()

    def ended(self, code: int | None) -> int | None:
        """The guest's exit code, of which bubblewrap tells a death by a signal as 128 and its number.

        Raises NotStartedError where bubblewrap ended, and not the guest.
        """
        if self.order is None or code is None:
            return code
        try:
            told = os.read(self.status, 65536)
        except BlockingIOError:
            told = b""
        if b'"exit-code"' not in told:
            raise NotStartedError
        return 128 - code if 128 < code <= 128 + signal.NSIG else code


def _confinement() -> ModuleType:
    """The script beside this one; the import path of a script in isolated mode does not have it."""
    spec = importlib.util.spec_from_file_location("confinement", Path(__file__).with_name("confinement.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Supervisor:
    """One guest, from start to the last of its descendants."""

    def __init__(self, launch: dict[str, Any]) -> None:
        self.launch = launch
        self.log = Log(launch["log"], launch["max_output_bytes"])
        self.libc = ctypes.CDLL(None) if LINUX else None
        self.sandbox = Enclosure(launch)
        if self.libc:
            self.libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            self.libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # the guest may not open our pipe to regbot through /proc
        self.pid = os.getpid()
        self.status: int | None = None
        self.killed = 0
        self.selector = selectors.DefaultSelector()
        self.wake, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK) if LINUX else os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        self.selector.register(self.wake, selectors.EVENT_READ)
        self.selector.register(0, selectors.EVENT_READ)

    def run(self) -> dict[str, Any]:
        """Start the guest, wait for its end or end it. Raises NotStartedError, StopError, and OSError of the log."""
        begun = time.monotonic()
        try:
            return self._whole(begun)
        finally:
            self.sandbox.close()

    def _whole(self, begun: float) -> dict[str, Any]:
        guest = self._start()
        assert guest.stdout is not None
        self.guest, self.output = guest.pid, guest.stdout.fileno()
        os.set_blocking(self.output, False)
        self.selector.register(self.output, selectors.EVENT_READ)
        timed_out = overflow = False
        try:
            deadline, poll_at = begun + self.launch["timeout_s"], begun + POLL_S
            while self.status is None and not (timed_out or overflow or self.log.fault):
                glance_at = time.monotonic() + GROWTH_S if self.sandbox.growth else poll_at
                self._tick(min(deadline, poll_at, glance_at) - time.monotonic())
                now = time.monotonic()
                timed_out = now >= deadline and self.status is None
                if now >= min(poll_at, glance_at):
                    overflow = self.sandbox.passed(now_full=now >= poll_at)
                    poll_at = time.monotonic() + POLL_S if now >= poll_at else poll_at
            wall_s = time.monotonic() - begun
            own_end = self.status
            if own_end is not None:
                self._settle()
        finally:
            unkilled = self._end_all()
            self._drain()
            self.log.close()
        guest.returncode = 0  # reaped here: Popen must not wait for a process id that may be another's by now
        try:
            exit_code = self.sandbox.ended(None if own_end is None else os.waitstatus_to_exitcode(own_end))
        except NotStartedError:
            said = Path(self.launch["log"]).read_bytes()[:2000].decode("utf-8", "replace").strip()
            raise NotStartedError(f"the sandbox could not be set up: {said}; 'regbot doctor' tries it") from None
        return {
            "exit_code": exit_code,
            "timed_out": timed_out,
            "dir_overflow": overflow or self.sandbox.finish(),
            "output_truncated": self.log.dropped > 0,
            "left_behind": 0 if own_end is None else self.killed + unkilled,
            "unkilled": unkilled,
            "wall_s": wall_s,
        }

    def _start(self) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen(
                self.sandbox.words,
                cwd=self.launch["cwd"],
                env=self.launch["env"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(self.sandbox.told,) if self.sandbox.order else (),
                preexec_fn=self._in_guest,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise NotStartedError(
                f"could not be started in {self.launch['cwd']}: {error}; "
                "check the interpreter and the build commands of this workload in regbot.toml"
            ) from error

    def _in_guest(self) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if self.libc:
            self.libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != self.pid:  # died before the call above
                os._exit(127)
        self.sandbox.enter()

    def _tick(self, seconds: float) -> None:
        """Wait for something to happen, at most ``seconds``, and take it in."""
        for key, _ in self.selector.select(max(0.0, seconds)):
            if key.fd == 0 and not os.read(0, 65536):
                raise StopError
            if key.fd == self.wake:
                if set(os.read(self.wake, 4096)) & {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
                    raise StopError
                self._reap()
            elif key.fd == self.output:
                self._read()

    def _read(self) -> bool:
        """Take one piece of output; False where there is none now."""
        try:
            data = os.read(self.output, 65536)
        except BlockingIOError:
            return False
        if data:
            self.log.write(data)
        elif self.output in self.selector.get_map():
            self.selector.unregister(self.output)
        return bool(data)

    def _drain(self) -> None:
        """What is left in the pipe. Bounded, since a process that could not be killed may go on writing."""
        for _ in range(64):
            if not self._read():
                return

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self.guest:
                    self.status = status
                elif os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                    self.killed += 1

    def _settle(self) -> None:
        """Give helper processes their moment, then count from zero what has to be killed."""
        until = time.monotonic() + GRACE_S
        while self._anything_left() and time.monotonic() < until:
            self._tick(min(0.02, until - time.monotonic()))
        self.killed = 0

    def _anything_left(self) -> bool:
        self._reap()
        if LINUX:
            return bool(children())
        try:
            os.killpg(self.guest, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _end_all(self) -> int:
        """Kill the guest and every descendant; how many could not be killed.

        Whole process groups at a time, because the kernel does that at one stroke: a process that forks and exits all
        the time is never seen alive by a list. An orphan becomes our child, so the loop ends when no child is left.
        A child's process group is the guest's own: we are alone in ours, and groups do not cross sessions.
        """
        if self.status is None:
            _kill_group(self.guest)
        until = time.monotonic() + KILL_S
        while self._anything_left():
            if time.monotonic() > until:
                return len(children()) if LINUX else 1
            for group in {_group(child) for child in children()} if LINUX else {self.guest}:
                if group and group != os.getpgrp():
                    _kill_group(group)
                    self.killed += 0 if LINUX else 1
            for child in children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
            self._drain()
            time.sleep(0.002)
        return 0


def overflown(folder: str, max_bytes: int) -> bool:
    """Has the record folder passed its limit, or been made unreadable? Stops looking as soon as that is known."""
    total = 0
    try:
        for entries, size in enumerate(_sizes(folder)):
            total += size
            if total > max_bytes or entries >= MAX_ENTRIES:
                return True
    except OSError:
        return True
    return False


def stamp(folder: str) -> None:
    """Give the files of a record, as their modification time, the time of their last change.

    The system gave that, and a guest cannot set it; but it cannot be kept when a file is copied. So it is kept in the
    other one, in which the guest may have written what it likes, now that all of it is dead. Only once, because it is a
    change itself: of nodes that share the folder, the first does it.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as listing:
        for entry in listing:
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    os.utime(entry.path, ns=(status.st_ctime_ns, status.st_ctime_ns), follow_symlinks=False)


def size_of(folder: str) -> int:
    """Bytes of everything below ``folder``, as far as it can be read."""
    with contextlib.suppress(OSError):
        return sum(_sizes(folder))
    return 0


def _sizes(folder: str) -> Iterator[int]:
    """Bytes of every entry below ``folder``; what vanishes meanwhile is passed over."""
    folders = [folder]
    while folders:
        with contextlib.suppress(FileNotFoundError), os.scandir(folders.pop()) as listing:
            for entry in listing:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        folders.append(entry.path)
                    yield 0 if stat.S_ISDIR(status.st_mode) else max(status.st_size, status.st_blocks * 512)


def children() -> list[int]:
    """Our children, among them the orphans of the guest."""
    try:
        return [int(pid) for pid in Path("/proc/thread-self/children").read_text().split()]
    except OSError:  # a kernel without that list
        return [pid for pid in _process_ids() if _parent(pid) == os.getpid()]


def _process_ids() -> list[int]:
    try:
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    except OSError:
        return []


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def main() -> None:
    """Read the launch, run it, write how it ended."""
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(0, 65536)
        if not data:
            return
        line += data
    result: dict[str, Any]
    try:
        result = Supervisor(json.loads(line)).run()
    except StopError:
        return
    except NotStartedError as error:
        result = {"error": str(error)}
    except OSError as error:
        result = {"error": f"the run was ended, because its output could not be kept: {error}"}
    os.write(1, json.dumps(result).encode())


if __name__ == "__main__":
    main()
