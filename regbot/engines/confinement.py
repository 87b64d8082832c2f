"""Set up the sandbox of a guest on its node: memory file systems, devices and control groups.

This module is a part of the supervisor. Like the supervisor it is loaded by path and uses only the standard library.
``regbot.engines.sandbox`` computes bubblewrap's options and sends them with the launch. This module does two things
that the options cannot do. It looks up and creates what exists only on the guest's node. It also mounts file systems
with a limit on bytes and files, which bubblewrap does not support.

The memory file systems are mounted below the record folder, in the supervisor's own mount namespace. They exist until
the supervisor ends, so the supervisor can still read the record after the sandbox has ended:

    record   the guest's record folder; copied to the real one at the end
    tmp, shm the guest's /tmp and /dev/shm
    files    small files that replace files of the system in the guest
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
"""Placeholder in bubblewrap's options for the devices of this node."""
PLAIN_DEVICES = (
    "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps", "nvidia-caps-imex-channels",
    "kfd", "dri",
)  # fmt: skip
"""Device files in /dev that every guest may use, in addition to the visible NVIDIA GPUs."""
NETWORK_DEVICES = ("infiniband",)
"""Devices for RDMA. They are visible only if the sandbox has a network, because RDMA bypasses network namespaces."""
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"

MAX_DEPTH = 32
"""Maximum depth of nested folders in a record. Deeper folders are not copied."""
MIN_FREE = 0.02
"""Share of a file system that must stay free if a guest may write to it. The guest is killed if a smaller share is free
and the free space has shrunk by at least the guest's limit since the start."""
GROUP_PREFIX = "regbot-"
GROUP_S = 2.0
"""Seconds that the kernel may take to release a control group after its processes have ended."""

# Constants of Linux: flags of unshare and mount, and the number of the system call keyctl by architecture.
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_SLAVE = 2, 4, 16384, 1 << 19
_KEYCTL = {"x86_64": 250, "aarch64": 219, "ppc64le": 271, "s390x": 280, "riscv64": 219}
_JOIN_SESSION_KEYRING = 1
_TOO_LARGE = -1
"""Remaining bytes of a copy that was stopped, because the contents are too large or nested too deep."""


class MemoryFileSystems:
    """The memory file systems of one launch. They exist until the supervisor process ends."""

    def __init__(self, settings: Mapping[str, Any], folder: str) -> None:
        """Mount the file systems over ``folder``, the record folder. Raises OSError if mounting is forbidden.

        ``settings["file_systems"]`` has the limits of each file system: bytes and number of files.
        ``settings["files"]`` has the texts of the files that replace files of the system, by name.
        """
        self.folder = folder
        record_bytes, _ = settings["file_systems"]["record"]
        self.limit: int = record_bytes  # of the copied record
        # Opened before the mount, which hides it.
        self.real_folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.record = str(Path(folder, "record"))
        libc = ctypes.CDLL(None, use_errno=True)
        _unshare_mounts(libc)
        # This outer file system has only the small files and the mount points, so small limits suffice.
        _mount(libc, folder, max_bytes=2**20, max_files=1024, mode=0o700)
        for name, text in settings["files"].items():
            Path(folder, "files").mkdir(exist_ok=True)
            Path(folder, "files", name).write_text(text, encoding="utf-8")
        for name, (max_bytes, max_files) in settings["file_systems"].items():
            Path(folder, name).mkdir()
            mode = 0o700 if name == "record" else 0o1777  # /tmp and /dev/shm are open to all users
            _mount(libc, str(Path(folder, name)), max_bytes, max_files, mode)

    def is_full(self) -> bool:
        """Whether the record's file system has no free space or no free file.

        Deleted files that are still open take space too.
        """
        state = os.statvfs(self.record)
        return state.f_bfree == 0 or state.f_ffree == 0

    def copy_record(self) -> bool:
        """Copy the record to the real folder. Return False if the record exceeds its limit and the copy is incomplete.

        Only files, folders and links are copied. All processes that wrote to the record have ended. The modification
        time of a copy is the change time of the original file, which the guest cannot set.
        """
        source = os.open(self.record, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            remaining_bytes = _copy(source, self.real_folder, self.limit, MAX_DEPTH)
            return remaining_bytes >= 0
        finally:
            os.close(source)


def _unshare_mounts(libc: ctypes.CDLL) -> None:
    """Create a mount namespace for this process. A user other than root also needs a new user namespace for this.

    The new user namespace maps the user and the group to themselves. Raises OSError if namespaces are forbidden.
    """
    if libc.unshare(_CLONE_NEWNS) == 0:
        _require_success(
            libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "cannot detach from the system's mounts"
        )
        return
    user, group = os.getuid(), os.getgid()
    _require_success(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "no user namespace is allowed here")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _require_success(libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "a user namespace may mount nothing here")


def _mount(libc: ctypes.CDLL, folder: str, max_bytes: int, max_files: int, mode: int) -> None:
    """Mount a memory file system over ``folder``. A limit of 0 would mean no limit, so small limits are raised."""
    options = f"size={max(max_bytes, 4096)},nr_inodes={max(max_files, 16)},mode={mode:o}".encode()
    result = libc.mount(b"regbot", os.fsencode(folder), b"tmpfs", _MS_NOSUID | _MS_NODEV, options)
    _require_success(result, f"{folder}: a file system in memory cannot be mounted")


def _require_success(result: int, what: str) -> None:
    """Raise OSError if a call of the C library failed. ``what`` says what the caller cannot do then."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _copy(source: int, target: int, remaining_bytes: int, depth: int) -> int:
    """Copy the contents of one folder to another. ``source`` and ``target`` are descriptors of the open folders.

    A file in the target that has the name of a copied file is replaced.

    Copy at most ``remaining_bytes``, and return how many of them are left. Return a negative number if the contents are
    too large, or nested more than ``depth`` folders deep.
    """
    with os.scandir(source) as listing:
        names = sorted(item.name for item in listing)
    for name in names:
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            if depth == 0:
                return _TOO_LARGE
            os.chmod(name, 0o700, dir_fd=source)  # so that it can be opened
            subfolder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
            try:
                remaining_bytes = _copy_folder(subfolder, name, target, remaining_bytes, depth)
            finally:
                os.close(subfolder)
        elif stat.S_ISREG(status.st_mode):
            remaining_bytes = _copy_file(source, name, target, remaining_bytes, status)
        elif stat.S_ISLNK(status.st_mode):  # copied as a link; readers of records reject links
            _clear(name, target)
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        if remaining_bytes < 0:
            return remaining_bytes
    return remaining_bytes


def _copy_folder(source: int, name: str, target: int, remaining_bytes: int, depth: int) -> int:
    """Copy the open folder ``source`` to the folder ``name`` in the open folder ``target``.

    The result is that of ``_copy``.
    """
    with contextlib.suppress(FileExistsError):  # another node of this run has created the folder
        os.mkdir(name, 0o755, dir_fd=target)
    copy = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=target)
    try:
        return _copy(source, copy, remaining_bytes, depth - 1)
    finally:
        os.close(copy)


def _copy_file(folder: int, name: str, target: int, remaining_bytes: int, status: os.stat_result) -> int:
    """Copy the file ``name`` of the open folder ``folder`` to the open folder ``target``.

    ``status`` is the status of the file before the copy. The result is that of ``_copy``.
    """
    if status.st_size > remaining_bytes:
        return _TOO_LARGE
    os.chmod(name, 0o600, dir_fd=folder)  # so that it can be opened
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        _clear(name, target)
        copy = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=target)
        with os.fdopen(copy, "wb", buffering=0) as file:
            while remaining_bytes >= 0 and (data := os.read(source, 2**20)):
                remaining_bytes -= len(data)
                unwritten = memoryview(data)
                while unwritten:
                    written_bytes = file.write(unwritten)
                    unwritten = unwritten[written_bytes:]
            os.utime(file.fileno(), ns=(status.st_ctime_ns, status.st_ctime_ns))
    finally:
        os.close(source)
    return remaining_bytes


def _clear(name: str, folder: int) -> None:
    """Delete the file ``name`` in an open folder if it exists."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


# ---- devices


def with_devices(arguments: Sequence[str], visible: str | None, network: bool) -> list[str]:
    """Return bubblewrap's ``arguments`` with the placeholder DEVICES replaced by the options for this node's devices.

    ``visible`` is the guest's CUDA_VISIBLE_DEVICES, None if it is unset. ``network`` adds the RDMA devices.
    """
    position = arguments.index(DEVICES)
    return [*arguments[:position], *device_options(Path("/dev"), visible, network), *arguments[position + 1 :]]


def device_options(folder: Path, visible: str | None, network: bool) -> list[str]:
    """Return bubblewrap's options for the devices in ``folder``.

    ``visible`` is the guest's CUDA_VISIBLE_DEVICES, None if it is unset. If it lists GPUs by number, only these GPUs
    are made visible. They get new numbers from 0 in the guest, because CUDA numbers the GPUs that it can open. For
    example, "3,1" makes two GPUs visible, and the guest gets "1,0". If ``visible`` has other names (UUIDs), all GPUs
    are made visible and CUDA selects among them.
    """
    names = [*PLAIN_DEVICES, *(NETWORK_DEVICES if network else ())]
    other_devices = [folder / name for name in names if (folder / name).exists()]
    gpu_devices = [path for path in folder.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    gpu_devices.sort(key=lambda path: int(path.name.removeprefix("nvidia")))
    usable_gpus = [path for path in gpu_devices if _can_open(path)]
    options = [] if visible is None else ["--setenv", VISIBLE_VARIABLE, visible]
    requested_numbers = _parse_gpu_numbers(visible, len(usable_gpus))
    if usable_gpus and requested_numbers is not None:
        selected_numbers = sorted(set(requested_numbers))
        guest_numbers = [str(selected_numbers.index(number)) for number in requested_numbers]
        options = ["--setenv", VISIBLE_VARIABLE, ",".join(guest_numbers)]
        usable_gpus = [usable_gpus[number] for number in selected_numbers]
    for path in (*other_devices, *usable_gpus):
        options += ["--dev-bind", str(path), str(path)]
    return options


def _parse_gpu_numbers(visible: str | None, gpu_count: int) -> list[int] | None:
    """Return the GPU numbers in CUDA_VISIBLE_DEVICES; None if it is unset or names anything but existing numbers.

    ``visible`` is the value of the variable. The existing numbers are those below ``gpu_count``.
    """
    if visible is None:
        return None
    words = [word.strip() for word in visible.split(",") if word.strip()]
    if all(word.isdecimal() and int(word) < gpu_count for word in words):
        return [int(word) for word in words]
    return None


def _can_open(path: Path) -> bool:
    """Whether this process can open the device. Only an attempt shows whether a scheduler's control group forbids
    it."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


# ---- control groups

PIDS = "pids"
"""Name of the controller that limits the number of processes."""
LIMITS = {
    (1, PIDS): ("pids.max",),
    (1, "memory"): ("memory.limit_in_bytes",),
    (2, PIDS): ("pids.max",),
    (2, "memory"): ("memory.max", "memory.swap.max"),
}
"""Files of a control group that set its limit, by version of control groups and by controller.

The limit is written to the first file, and 0 to the other files.
"""


class ControlGroups:
    """Control groups that limit the number of a guest's processes and, if requested, their memory."""

    def __init__(self, pids: int, memory_bytes: int | None) -> None:
        """Create the groups. Controllers that cannot be used on this node are skipped; ``unbounded`` lists them.

        ``pids`` is the maximum number of processes. ``memory_bytes`` is None for no limit of the memory.
        """
        self.groups: list[Path] = []
        limits = {PIDS: pids}
        if memory_bytes is not None:
            limits["memory"] = memory_bytes
        for controller, limit in limits.items():
            parent_or_reason = find_parent(controller)
            if isinstance(parent_or_reason, str):  # the reason why the controller cannot be used here
                continue
            version, parent = parent_or_reason
            _remove_stale_groups(parent)
            group = parent / f"{GROUP_PREFIX}{os.getpid()}"
            limit_file, *zero_files = LIMITS[version, controller]
            try:
                group.mkdir(exist_ok=True)
                if group not in self.groups:  # in version 2, one group can have both limits
                    self.groups.append(group)
                (group / limit_file).write_text(str(limit))
                for zero_file in zero_files:
                    if (group / zero_file).exists():
                        (group / zero_file).write_text("0")
            except OSError:
                continue

    def join(self) -> None:
        """Move this process into the groups. Programs and processes that it starts later belong to the groups too."""
        for group in self.groups:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self) -> None:
        """Remove the groups. Wait up to GROUP_S until the kernel has released them."""
        deadline = time.monotonic() + GROUP_S
        for group in reversed(self.groups):
            while True:
                try:
                    group.rmdir()
                    break
                except OSError as error:
                    if error.errno != errno.EBUSY or time.monotonic() > deadline:
                        break
                    time.sleep(0.01)


def _remove_stale_groups(parent: Path) -> None:
    """Remove groups that killed supervisors left behind. The kernel refuses to remove a group that has processes."""
    for group in parent.glob(f"{GROUP_PREFIX}[0-9]*"):
        if not Path("/proc", group.name.removeprefix(GROUP_PREFIX)).exists():
            with contextlib.suppress(OSError):
                group.rmdir()


def unbounded(memory: bool) -> dict[str, str]:
    """Return the limits that this node cannot enforce, by controller ("pids", "memory"), each with the reason.

    ``memory`` says whether the memory needs a limit. The number of processes always needs one.
    """
    reasons = {}
    for controller in (PIDS, "memory") if memory else (PIDS,):
        parent_or_reason = find_parent(controller)
        if isinstance(parent_or_reason, str):
            reasons[controller] = parent_or_reason
    return reasons


def find_parent(controller: str) -> tuple[int, Path] | str:
    """Return a group below which this user may create groups that use ``controller``.

    The result is the version of control groups (1 or 2) and the folder of the group. If there is no such group, the
    result is the reason as text. A user may create groups below a group that the user owns, below a group that is
    delegated to the user, and below the topmost visible group.
    """
    try:
        # Fields of a line: number of the hierarchy, its controllers (none in version 2), path of this process's group.
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        # Fields of a mount: device, folder, type of the file system, options, and two numbers.
        mounts = [line.split()[:4] for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError as error:
        return f"control groups cannot be looked up: {error}"
    for _, controllers, path in lines:  # version 1: the line of a hierarchy names its controllers
        if controller in controllers.split(","):
            for _, mount_folder, kind, options in mounts:
                if kind == "cgroup" and controller in options.split(","):
                    return find_delegated_group([Path(mount_folder) / path.lstrip("/")], path, 1, controller)
    for _, controllers, path in lines:  # version 2
        if not controllers:
            for _, mount_folder, kind, _ in mounts:
                if kind == "cgroup2":
                    group = Path(mount_folder) / path.lstrip("/")
                    # A group that itself has processes cannot contain limited groups. Its parent group can.
                    folders = [group] if path == "/" else [group.parent, group]
                    return find_delegated_group(folders, path, 2, controller)
    return "there are no control groups on this machine"


def find_delegated_group(folders: Sequence[Path], path: str, version: int, controller: str) -> tuple[int, Path] | str:
    """Return the first of ``folders`` below which this user may create groups, as ``find_parent`` does.

    ``path`` is the path of this process's group. In version 2, ``controller`` is switched on for the groups below.
    """
    why = f"the group {path} was not delegated to this user"
    for folder in folders:
        if not _is_delegated(folder, path) or not os.access(folder, os.W_OK):
            continue
        if version == 1:
            return 1, folder
        switch = folder / "cgroup.subtree_control"  # lists the controllers that the groups below may use
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


def _is_delegated(folder: Path, path: str) -> bool:
    """Whether this user may create groups below a group. systemd marks a delegated group by an extended attribute.

    root owns every group, so ownership by root is no sign of delegation.
    """
    if path == "/":  # the topmost visible group
        return True
    try:
        user = os.getuid()
        if user != 0 and folder.stat().st_uid == user:
            return True
        return any(os.getxattr(folder, f"{space}.delegate") == b"1" for space in ("trusted", "user"))
    except OSError:
        return False


# ---- growth on disk, keyring


class DiskGrowth:
    """Total growth of the folders on disk that a guest may write to.

    Measuring the folders is slow, and asking for free space is fast. So the folders are measured only after the free
    space of a file system has shrunk by the limit.
    """

    def __init__(self, folders: Sequence[str], limit: int, measure: Callable[[str], int]) -> None:
        """Measure the folders and their file systems before the guest starts.

        ``limit`` is the largest allowed growth in bytes. ``measure`` returns the bytes of all files below a folder.
        """
        self.folders, self.limit, self.measure = folders, limit, measure
        self.size_before = self._measure_size()
        self.free_before = self._query_free_space()

    def has_passed_limit(self) -> bool:
        """Whether the folders have grown by more than the limit, or the disk is almost full.

        A guest can also fill the disk with deleted files that it keeps open. Such files are in no folder.
        """
        now = self._query_free_space()  # for each folder, like ``free_before``: free bytes and total bytes
        losses = [before - current for (before, _), (current, _) in zip(self.free_before, now, strict=True)]
        if all(loss < self.limit for loss in losses):
            return False
        has_grown = self._measure_size() - self.size_before > self.limit
        if has_grown or any(free < MIN_FREE * total for free, total in now):
            return True
        self.free_before = now  # something other than the guest used the space
        return False

    def _measure_size(self) -> int:
        return sum(self.measure(folder) for folder in self.folders)

    def _query_free_space(self) -> list[tuple[int, int]]:
        """Return free bytes and total bytes of the file system of each folder."""
        states = [os.statvfs(folder) for folder in self.folders]
        return [(state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize) for state in states]


def leave_keyring() -> None:
    """Join a new, empty session keyring if the kernel supports it. The inherited keyring may contain tickets."""
    number = _KEYCTL.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, _JOIN_SESSION_KEYRING, None)
