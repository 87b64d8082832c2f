"""Asks the kernel for what only the machine's owner has: its settings, mounts, devices, another user namespace."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from attempt import TARGETS, attempt

SETTINGS = (
    "/proc/sys/kernel/core_pattern", "/proc/sys/vm/swappiness", "/proc/sysrq-trigger", "/proc/irq/default_smp_affinity",
    "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/power/state", "/sys/fs/cgroup/cgroup.procs",
)  # fmt: skip
NEW_USER = 0x10000000
LIBC = ctypes.CDLL(None, use_errno=True)


def open_to_write(path: str) -> Callable[[], str | None]:
    def change() -> str | None:
        os.close(os.open(path, os.O_WRONLY))  # opened is enough; nothing is changed where this succeeds
        return path

    change.__name__ = f"open_{Path(path).name}"
    return change


def open_any_setting() -> str | None:
    for top in ("/proc/sys", "/sys/kernel", "/sys/fs/cgroup"):
        for folder, _, names in os.walk(top):
            for name in names:
                try:
                    os.close(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_NONBLOCK))
                except OSError:
                    continue
                return f"{folder}/{name}"
    return None


def make_a_user_namespace() -> str | None:
    child = os.fork()
    if child == 0:
        os._exit(0 if LIBC.unshare(NEW_USER) == 0 else 1)
    return "made" if os.waitpid(child, 0)[1] == 0 else None


def mount_something() -> str | None:
    child = os.fork()
    if child == 0:  # a namespace of its own, so that nothing is left where this succeeds
        os._exit(0 if LIBC.unshare(0x20000) == 0 and LIBC.mount(b"x", b"/tmp", b"tmpfs", 0, None) == 0 else 1)
    return "mounted" if os.waitpid(child, 0)[1] == 0 else None


def make_a_device() -> str | None:
    path = Path("/tmp/made-device")
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))
        return "made"
    finally:
        path.unlink(missing_ok=True)


def open_a_disk() -> str | None:
    for path in (*Path("/dev").glob("[sv]d*"), *Path("/dev").glob("loop*"), *Path("/dev").glob("nvme*")):
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            continue
        return str(path)
    return None


harmless = [open_to_write(SETTINGS[0]), make_a_user_namespace, mount_something, make_a_device]
attempt(*harmless)
if not TARGETS["careful"]:
    attempt(*(open_to_write(path) for path in SETTINGS), open_any_setting, open_a_disk)
