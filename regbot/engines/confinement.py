"""What a confined guest is given on its node: rooms in memory, its share of devices, groups that bound it.

A part of the supervisor, loaded by path beside it and like it standard library only. What bubblewrap is told comes with
the launch (``regbot.engines.sandbox``); here is only what has to be looked up or made where the guest runs, and what
bubblewrap cannot do: file systems with a limit of bytes and of files, of which one is kept when the sandbox is gone.

The rooms stand where the record folder is, in a mount namespace of the supervisor's own, so that they end with it:

    record   what the guest sees as its record folder; copied to the real one at the end
    tmp, shm what it sees as /tmp and /dev/shm
    files    small files that stand in for the system's own
"""

import contextlib
import ctypes
import errno
import os
import platform
import re
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

DEVICES = "@devices"
"""Stands among bubblewrap's words where those for the devices of this node go."""
PLAIN_DEVICES = (
    "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps", "nvidia-caps-imex-channels",
    "kfd", "dri",
)  # fmt: skip
"""In /dev, beside the GPUs of NVIDIA themselves, of which only the visible ones are shown."""
NETWORK_DEVICES = ("infiniband",)
"""RDMA goes past network namespaces, so it is there only where the network is."""
VISIBLE = "CUDA_VISIBLE_DEVICES"

DEPTH = 32
"""Folders in folders of a record that are kept."""
LEAST_FREE = 0.02
"""Of a file system that a guest may write to; less, after it lost the guest's limit, and the guest is ended."""
GROUP = "regbot-"
GROUP_S = 2.0
"""How long the kernel may take to let go of a group whose processes are dead."""

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_SLAVE = 2, 4, 16384, 1 << 19
_KEYCTL = {"x86_64": 250, "aarch64": 219, "ppc64le": 271, "s390x": 280, "riscv64": 219}
_JOIN_SESSION_KEYRING = 1


class Room:
    """The rooms of one launch, from when they are made to the end of this process."""

    def __init__(self, order: Mapping[str, Any], folder: str) -> None:
        """Make them over ``folder``. Raises OSError where this process may not."""
        self.folder = folder
        self.limit: int = order["rooms"]["record"][0]
        self.real = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.record = str(Path(folder, "record"))
        libc = ctypes.CDLL(None, use_errno=True)
        _own_mounts(libc)
        _mount(libc, folder, 2**20, 1024, 0o700)
        for name, text in order["files"].items():
            Path(folder, "files").mkdir(exist_ok=True)
            Path(folder, "files", name).write_text(text, encoding="utf-8")
        for name, (size, files) in order["rooms"].items():
            Path(folder, name).mkdir()
            _mount(libc, str(Path(folder, name)), size, files, 0o700 if name == "record" else 0o1777)

    def full(self) -> bool:
        """Is the record room used up, by files that have a name or by such that have none any more?"""
        state = os.statvfs(self.record)
        return not state.f_bfree or not state.f_ffree

    def keep(self) -> bool:
        """Copy the record room to the real folder; False where it is more than its limit, which is not all copied.

        Only files, folders and links; everything that wrote there is dead. A copy's modification time is the time that
        the system gave the original's last change, which the guest could not set.
        """
        source = os.open(self.record, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _copy(source, self.real, self.limit, DEPTH) >= 0
        finally:
            os.close(source)


def _own_mounts(libc: ctypes.CDLL) -> None:
    """A mount namespace of our own, for which who is not root needs a user namespace too."""
    if libc.unshare(_CLONE_NEWNS) == 0:
        _checked(libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "cannot detach from the system's mounts")
        return
    user, group = os.getuid(), os.getgid()
    _checked(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "no user namespace is allowed here")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _checked(libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "a user namespace may mount nothing here")


def _mount(libc: ctypes.CDLL, folder: str, size: int, files: int, mode: int) -> None:
    options = f"size={max(size, 4096)},nr_inodes={max(files, 16)},mode={mode:o}".encode()
    made = libc.mount(b"regbot", os.fsencode(folder), b"tmpfs", _MS_NOSUID | _MS_NODEV, options)
    _checked(made, f"{folder}: a file system in memory cannot be mounted")


def _checked(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _copy(source: int, target: int, room: int, depth: int) -> int:
    """Copy what is in one open folder to another; the bytes of ``room`` that are left, negative for too many."""
    with os.scandir(source) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        status = os.stat(entry.name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            if depth == 0:
                return -1
            os.chmod(entry.name, 0o700, dir_fd=source)
            below = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
            try:
                room = _copy_folder(below, entry.name, target, room, depth)
            finally:
                os.close(below)
        elif stat.S_ISREG(status.st_mode):
            room = _copy_file(source, entry.name, target, room, status)
        elif stat.S_ISLNK(status.st_mode):  # kept as what it is: whoever reads a record refuses it
            _clear(entry.name, target)
            os.symlink(os.readlink(entry.name, dir_fd=source), entry.name, dir_fd=target)
        if room < 0:
            return room
    return room


def _copy_folder(source: int, name: str, target: int, room: int, depth: int) -> int:
    with contextlib.suppress(FileExistsError):  # made by another node of this run
        os.mkdir(name, 0o755, dir_fd=target)
    within = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=target)
    try:
        return _copy(source, within, room, depth - 1)
    finally:
        os.close(within)


def _copy_file(folder: int, name: str, target: int, room: int, status: os.stat_result) -> int:
    if status.st_size > room:
        return -1
    os.chmod(name, 0o600, dir_fd=folder)
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        _clear(name, target)
        kept = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=target)
        with os.fdopen(kept, "wb", buffering=0) as file:
            while room >= 0 and (data := os.read(source, 2**20)):
                room -= len(data)
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
            os.utime(file.fileno(), ns=(status.st_ctime_ns, status.st_ctime_ns))
    finally:
        os.close(source)
    return room


def _clear(name: str, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


# ---- devices


def with_devices(words: Sequence[str], visible: str | None, network: bool) -> list[str]:
    """``words`` with those for the devices of this node, of which a guest is to see ``visible``."""
    at = words.index(DEVICES)
    return [*words[:at], *device_words(Path("/dev"), visible, network), *words[at + 1 :]]


def device_words(folder: Path, visible: str | None, network: bool) -> list[str]:
    """What bubblewrap is told of the devices in ``folder``.

    Where ``visible`` names GPUs by number, only those are shown; as CUDA counts what it can open, they are then numbers
    0 and up. Names of another kind (UUIDs) are left to CUDA, and all GPUs are shown.
    """
    names = [*PLAIN_DEVICES, *(NETWORK_DEVICES if network else ())]
    plain = [folder / name for name in names if (folder / name).exists()]
    numbered = {int(path.name[6:]): path for path in folder.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)}
    usable = [path for _, path in sorted(numbered.items()) if _opens(path)]
    asked = None if visible is None else [word.strip() for word in visible.split(",") if word.strip()]
    words = [] if visible is None else ["--setenv", VISIBLE, visible]
    if usable and asked is not None and all(word.isdecimal() and int(word) < len(usable) for word in asked):
        chosen = sorted({int(word) for word in asked})
        words = ["--setenv", VISIBLE, ",".join(str(chosen.index(int(word))) for word in asked)]
        usable = [usable[index] for index in chosen]
    return [*words, *(word for path in (*plain, *usable) for word in ("--dev-bind", str(path), str(path)))]


def _opens(path: Path) -> bool:
    """A scheduler may forbid a device by a group, which only opening it shows."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


# ---- groups

LIMITS = {
    (1, "pids"): ("pids.max",),
    (1, "memory"): ("memory.limit_in_bytes",),
    (2, "pids"): ("pids.max",),
    (2, "memory"): ("memory.max", "memory.swap.max"),
}
"""By version and controller: the file that takes the limit, and such as take 0."""


class Groups:
    """Control groups that bound one guest: processes, and memory where that is asked for."""

    def __init__(self, pids: int, memory_bytes: int | None) -> None:
        """Make what can be made; what cannot is not bounded, see ``unbounded``."""
        self.made: list[Path] = []
        wanted = {"pids": pids} | ({} if memory_bytes is None else {"memory": memory_bytes})
        for controller, limit in wanted.items():
            found = parent_of(controller)
            if isinstance(found, str):
                continue
            version, parent = found
            _sweep(parent)
            group = parent / f"{GROUP}{os.getpid()}"
            try:
                group.mkdir(exist_ok=True)
                if group not in self.made:
                    self.made.append(group)
                first, *others = LIMITS[version, controller]
                (group / first).write_text(str(limit))
                for other in others:
                    if (group / other).exists():
                        (group / other).write_text("0")
            except OSError:
                continue

    def join(self) -> None:
        """Put this process, and with it what it becomes and starts, in them."""
        for group in self.made:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self) -> None:
        until = time.monotonic() + GROUP_S
        for group in reversed(self.made):
            while True:
                try:
                    group.rmdir()
                    break
                except OSError as error:
                    if error.errno != errno.EBUSY or time.monotonic() > until:
                        break
                    time.sleep(0.01)


def _sweep(parent: Path) -> None:
    """Remove the groups of supervisors that were killed and could not; one with processes in it withstands that."""
    for group in parent.glob(f"{GROUP}[0-9]*"):
        if not Path("/proc", group.name.removeprefix(GROUP)).exists():
            with contextlib.suppress(OSError):
                group.rmdir()


def unbounded(memory: bool) -> list[str]:
    """Why processes or, where ``memory`` is asked for, memory cannot be bounded by a group here; [] where they can."""
    controllers = ("pids", "memory") if memory else ("pids",)
    return [f"{name}: {why}" for name in controllers if isinstance(why := parent_of(name), str)]


def parent_of(controller: str) -> tuple[int, Path] | str:
    """The version and the folder of the group in which we may make groups with ``controller``, or why there is none.

    A group belongs to who made it: we divide only our own, one that was delegated to us, or the top of what we see.
    """
    try:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError as error:
        return f"control groups cannot be looked up: {error}"
    for _, names, path in lines:
        if controller in names.split(","):
            for mount in mounts:
                if mount[2] == "cgroup" and controller in mount[3].split(","):
                    return _first_ours([Path(mount[1]) / path.lstrip("/")], path, 1, controller)
    for _, names, path in lines:
        if not names:
            for mount in mounts:
                if mount[2] == "cgroup2":
                    own = Path(mount[1]) / path.lstrip("/")
                    # A group with processes of its own can have no bounded groups in it; the one above it can.
                    return _first_ours([own.parent, own] if path != "/" else [own], path, 2, controller)
    return "there are no control groups here"


def _first_ours(folders: Sequence[Path], path: str, version: int, controller: str) -> tuple[int, Path] | str:
    why = f"the group {path} was not delegated to this user"
    for folder in folders:
        if not _ours(folder, path) or not os.access(folder, os.W_OK):
            continue
        if version == 1:
            return 1, folder
        switch = folder / "cgroup.subtree_control"
        try:
            if controller not in switch.read_text().split():
                switch.write_text(f"+{controller}")
        except OSError as error:
            why = (
                f"the group {path} cannot be divided ({error.strerror}); start regbot with Delegate=yes and a subgroup"
            )
            continue
        return version, folder
    return why


def _ours(folder: Path, path: str) -> bool:
    if path == "/":
        return True
    try:
        if folder.stat().st_uid == os.getuid() != 0:
            return True
        return any(os.getxattr(folder, f"{space}.delegate") == b"1" for space in ("trusted", "user"))
    except OSError:
        return False


# ---- growth on disk, keys


class Growth:
    """Folders on disk that a guest may write to: how much they have grown.

    Looked at only when their file system has lost as much, which costs nothing to ask.
    """

    def __init__(self, folders: Sequence[str], limit: int, measure: Callable[[str], int]) -> None:
        self.folders, self.limit, self.measure = folders, limit, measure
        self.before = self._size()
        self.free = self._free()

    def passed(self) -> bool:
        """More than the limit, or, with what has no name any more, so much that others find no room."""
        now = self._free()
        if all(was[0] - is_now[0] < self.limit for was, is_now in zip(self.free, now, strict=True)):
            return False
        if self._size() - self.before > self.limit or any(left < LEAST_FREE * whole for left, whole in now):
            return True
        self.free = now  # it was somebody else
        return False

    def _size(self) -> int:
        return sum(self.measure(folder) for folder in self.folders)

    def _free(self) -> list[tuple[int, int]]:
        states = [os.statvfs(folder) for folder in self.folders]
        return [(state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize) for state in states]


def leave_keyring() -> None:
    """A new and empty session keyring, where the kernel has such; the one that was inherited may hold tickets."""
    number = _KEYCTL.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, _JOIN_SESSION_KEYRING, None)
