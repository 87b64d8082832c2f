"""The local engine's supervisor: a script that runs one guest, enforces its limits and kills all of its processes. It
is a process between regbot and the guest, so that it can rely on the kernel. A process of the guest that loses its
parent becomes a child of the supervisor (child subreaper). If regbot dies, standard input closes. If the supervisor
dies, the kernel kills the guest's main process. It uses only the standard library, and is started by path, in Python's
isolated mode. The first line of standard input is the launch as JSON. When the launch has ended, it writes one JSON
document to standard output, or nothing if regbot is gone or has sent a signal. The guest runs in a sandbox only if the
launch contains one; the script ``confinement`` sets it up on this node."""

import atexit
import contextlib
import ctypes
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import threading
import time
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# In isolated mode the folder of a script is not on the import path.
confinement = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("confinement.py"))))

STDIN, STDOUT = 0, 1
GRACE_S = 1.0
"""Seconds that helper processes (resource trackers, pipe readers) get to exit after the main process."""
KILL_S = 10.0
"""Seconds that SIGKILL may take. A process that takes longer is stuck in the kernel."""
CHECK_S, SANDBOX_CHECK_S = 1.0, 0.1
"""Seconds between checks of what a guest has written, without and in a sandbox."""
LARGE_RECORD = "wrote more into its record folder than any record needs"
DRAIN_S = 5.0
"""Seconds to wait for the rest of the output, because a process that cannot be killed may keep the pipe open."""
TAIL_BYTES = 64 * 1024
MAX_ENTRIES = 100_000
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36


class StopError(Exception):
    """regbot is gone or asked the supervisor to stop."""


class NotStartedError(Exception):
    """The guest could not be started. The message says why and what to do."""


class Log:
    """The log file. It keeps the beginning and the end of the output, and counts the bytes between them."""

    def __init__(self, path: str, limit: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self.file = os.fdopen(os.open(path, flags, 0o644), "wb", buffering=0)
        self.tail_limit = min(TAIL_BYTES, limit // 2)
        self.beginning_bytes_left = limit - self.tail_limit
        self.tail = bytearray()
        self.dropped = 0  # bytes
        self.fault: OSError | ValueError | None = None  # the last error of writing the file

    def copy(self, output: int) -> None:
        """Write all output. An error, such as a full disk, is raised by ``close``, after the guest has been killed."""
        try:
            while data := os.read(output, 65536):
                beginning, rest = data[: self.beginning_bytes_left], data[self.beginning_bytes_left :]
                self.beginning_bytes_left -= len(beginning)
                self.file.write(beginning)
                self.tail += rest
                excess = max(0, len(self.tail) - self.tail_limit)
                del self.tail[:excess]
                self.dropped += excess
        except (OSError, ValueError) as error:  # a ValueError if the file is closed
            self.fault = error

    def close(self) -> None:
        """Raises OSError if any part could not be written."""
        with self.file:
            if self.dropped:
                self.file.write(b"\n[%d bytes left out]\n" % self.dropped)
            self.file.write(self.tail)
        if self.fault:
            raise self.fault


class Confinement:
    """The sandbox of one guest on this node. Without an entry ``confine`` in the launch there is none."""

    def __init__(self, launch: dict[str, Any]) -> None:
        """Set the sandbox up. Raises OSError if this node cannot do it."""
        self.settings: dict[str, Any] | None = launch.get("confine")
        # The record folder, the command to start, the maximum bytes of the record, and the log.
        self.record, self.command, self.limit = launch["record_dir"], launch["command"], launch["max_dir_bytes"]
        self.log = launch["log"]
        # The file systems in memory, the control groups, and the growth of folders on disk. None without a sandbox.
        self.file_systems = self.groups = self.growth = None
        if self.settings is None:
            return
        # bubblewrap reports on this pipe that the guest has ended.
        self.status_reader, self.status_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.groups = confinement.ControlGroups(self.settings["pids"], self.settings["memory_gb"])
        atexit.register(self.groups.remove)
        self.file_systems = confinement.MemoryFileSystems(self.settings, self.record)
        max_bytes, max_files = self.settings["disk_mb"] * 2**20, self.settings["disk_files"]
        self.growth = confinement.DiskGrowth(self.settings["writable"], max_bytes, max_files)
        self.record = str(self.file_systems.record)
        options = ["--json-status-fd", str(self.status_writer)]
        options += confinement.device_options(Path("/dev"), self.settings["visible"], self.settings["network"])
        position = self.command.index(confinement.DEVICES)
        self.command = [*self.command[:position], *options, *self.command[position + 1 :]]

    def find_excess(self, has_ended: bool = False) -> str:
        """Return what the guest wrote too much; '' if nothing. In a sandbox, the files of a record are counted only if
        the guest ``has_ended``: until then, the size of their file system bounds them."""
        if self.growth is not None and (excess := self.growth.find_excess(has_ended)):
            return str(excess)
        is_large = self.file_systems is not None and self.file_systems.is_full()
        if has_ended or self.file_systems is None:
            is_large = is_large or is_over_limit(self.record, self.limit)
        return LARGE_RECORD if is_large else ""

    def save_record(self) -> str:
        """Copy the record from memory to the real folder after the guest has ended. Return what the guest wrote too
        much; the record is then not copied."""
        excess = self.find_excess(has_ended=True)
        if not excess and self.file_systems is not None and not self.file_systems.copy_record():
            return LARGE_RECORD
        return excess

    def exit_code_of_guest(self, code: int | None) -> int | None:
        """Return the guest's exit code, negative for a signal. bubblewrap reports a signal as 128 plus its number.
        Raises NotStartedError if bubblewrap itself failed, so that the guest never ran."""
        if self.settings is None or code is None:
            return code
        status = b""
        with contextlib.suppress(BlockingIOError):
            status = os.read(self.status_reader, 65536)
        if b'"exit-code"' not in status:  # bubblewrap writes this after the guest has ended
            output = Path(self.log).read_bytes()[:2000].decode("utf-8", "replace").strip()
            raise NotStartedError(f"the sandbox could not be set up: {output}; 'regbot doctor' tests it")
        return 128 - code if 128 < code <= 128 + signal.NSIG else code


class Supervisor:
    """One guest and all its descendants, from start to end."""

    def __init__(self, launch: dict[str, Any]) -> None:
        self.launch = launch
        self.log = Log(launch["log"], launch["max_output_bytes"])
        self.libc = ctypes.CDLL(None)
        self.sandbox = Confinement(launch)
        self.libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # the guest may not open our pipe to regbot through /proc
        self.pid = os.getpid()
        self.check_s = CHECK_S if self.sandbox.settings is None else SANDBOX_CHECK_S
        self.status: int | None = None  # wait status of the guest's main process; None while it runs
        self.killed = 0  # number of processes killed after the main process had ended
        signal.pthread_sigmask(signal.SIG_BLOCK, (*STOPS, signal.SIGCHLD))  # they are waited for instead

    def run(self) -> dict[str, Any]:
        """Run the guest until it ends or passes a limit, kill what is left, and return the fields of ``LaunchResult``.

        Raises NotStartedError, StopError, and OSError for the log.
        """
        started = time.monotonic()
        guest = self._start()
        assert guest.stdout is not None
        self.guest = guest.pid
        reader = threading.Thread(target=self.log.copy, args=(guest.stdout.fileno(),), daemon=True)
        for thread in (reader, threading.Thread(target=_watch_regbot, daemon=True)):
            thread.start()
        timed_out, excess = False, ""
        try:
            deadline = started + self.launch["timeout_s"]
            check_at = started + self.check_s
            while self.status is None and not (timed_out or excess or self.log.fault):
                self._handle_events(min(deadline, check_at) - time.monotonic())
                timed_out = time.monotonic() >= deadline and self.status is None
                if time.monotonic() >= check_at:
                    excess = self.sandbox.find_excess()
                    check_at = time.monotonic() + self.check_s
            wall_s = time.monotonic() - started
            wait_status = self.status  # None if the guest must be killed
            if wait_status is not None:  # from here on, only processes that the supervisor kills are counted
                grace_end = time.monotonic() + GRACE_S
                while self._has_descendants() and time.monotonic() < grace_end:
                    self._handle_events(0.02)
                self.killed = 0
        finally:
            unkilled = self._kill_all()
            reader.join(DRAIN_S)
            self.log.close()
        # The guest is already reaped. Popen must not wait for its process id, which the system may have reused.
        guest.returncode = 0
        main_exit_code = None if wait_status is None else os.waitstatus_to_exitcode(wait_status)
        return {
            "exit_code": self.sandbox.exit_code_of_guest(main_exit_code),
            "timed_out": timed_out,
            "excess": excess or self.sandbox.save_record(),
            "output_truncated": self.log.dropped > 0,
            "left_behind": 0 if wait_status is None else self.killed + unkilled,
            "unkilled": unkilled,
            "wall_s": wall_s,
        }

    def _start(self) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen(
                self.sandbox.command,
                cwd=self.launch["cwd"],
                env=self.launch["env"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(self.sandbox.status_writer,) if self.sandbox.settings else (),
                preexec_fn=self._prepare_child,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise NotStartedError(
                f"could not be started in {self.launch['cwd']}: {error}; "
                "check the interpreter and the build commands of this workload in regbot.toml"
            ) from error

    def _prepare_child(self) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self.libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self.pid:  # the supervisor died before the call above
            os._exit(127)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if self.sandbox.groups is not None:
            self.sandbox.groups.join()
            confinement.leave_keyring()

    def _handle_events(self, seconds: float) -> None:
        """Wait at most ``seconds`` for the end of a child. Raises StopError."""
        info = signal.sigtimedwait((*STOPS, signal.SIGCHLD), max(0.0, seconds))
        if info is not None and info.si_signo != signal.SIGCHLD:
            raise StopError
        self._reap()

    def _reap(self) -> None:
        """Read the status of all children that have ended, and count those that SIGKILL has ended."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                pid, status = ended
                if pid == self.guest:
                    self.status = status
                elif os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                    self.killed += 1

    def _has_descendants(self) -> bool:
        self._reap()
        return bool(children())

    def _kill_all(self) -> int:
        """Kill the guest and all its descendants. Return how many could not be killed. The kernel kills a process group
        atomically. A process that forks and exits all the time would escape from a kill by process id. Orphans become
        children of the supervisor, so the loop ends when it has none."""
        if self.status is None:  # the guest's main process still runs
            _kill_group(self.guest)
        deadline = time.monotonic() + KILL_S
        while self._has_descendants():
            if time.monotonic() > deadline:
                return len(children())
            groups = {os.getpgid(child) for child in children()}  # only this thread removes a child that has ended
            for group in groups - {0, os.getpgrp()}:  # 0 is a group of another process namespace
                _kill_group(group)
            for child in children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.002)
        return 0


def is_over_limit(folder: str, max_bytes: int) -> bool:
    """Whether the record folder exceeds ``max_bytes`` or MAX_ENTRIES, or was made unreadable."""
    try:
        sizes = list(islice(confinement.find_sizes([folder]), MAX_ENTRIES + 1))
    except OSError:
        return True
    return len(sizes) > MAX_ENTRIES or sum(sizes) > max_bytes


def _watch_regbot() -> None:
    """Stop this process when standard input closes, because regbot is then gone."""
    while os.read(STDIN, 65536):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def children() -> list[int]:
    """Return the ids of this process's children. They include orphans of the guest."""
    return [int(pid) for pid in Path("/proc/thread-self/children").read_text().split()]


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def main() -> None:
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):  # regbot is gone
        return
    try:
        result: dict[str, Any] = Supervisor(json.loads(line)).run()
    except StopError:
        return
    except NotStartedError as error:
        result = {"error": str(error)}
    except OSError as error:
        result = {"error": f"the run could not be confined, or its output not be written: {error}"}
    os.write(STDOUT, json.dumps(result).encode())


if __name__ == "__main__":
    main()
