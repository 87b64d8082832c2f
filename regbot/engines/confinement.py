"""Set up the sandbox of a guest on its node: memory file systems, devices and control groups. A part of the supervisor:
it is loaded by path and uses only the standard library. ``regbot.engines.sandbox`` computes bubblewrap's options. This
module looks up and creates what exists only on the guest's node, and mounts file systems with a limit on bytes and
files below the record folder, in the supervisor's own mount namespace: ``record``, which is copied to the real folder
at the end, ``tmp`` and ``shm``, the guest's /tmp and /dev/shm, and ``files``, which replace files of the system."""

import contextlib
import ctypes
import errno
import os
import platform
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
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

MAX_FILES_BEFORE = 1_000_000
"""Maximum number of files in a folder of a guest when it starts. Counting as many takes a few seconds."""
MAX_DEPTH = 32
RESERVE_BYTES, RESERVE_FILES, RESERVE_SHARE = 2**30, 100_000, 0.1
"""Free bytes and free files that a guest must leave on a disk, so that regbot can write its own: at most this share of
the disk. They are many, because the guest goes on writing until it is looked at and ended."""
FILES_PER_LOOK = 4096
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
"""Error numbers of a folder that was removed or replaced after it was listed."""
GROUP_S = 2.0

# Constants of Linux: flags of unshare and mount, and the number of the system call keyctl by architecture.
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_SLAVE = 2, 4, 16384, 1 << 19
_KEYCTL = {"x86_64": 250, "aarch64": 219, "ppc64le": 271, "s390x": 280, "riscv64": 219}
_JOIN_SESSION_KEYRING = 1


class MemoryFileSystems:
    """The memory file systems of one launch. They exist until the supervisor process ends."""

    def __init__(self, settings: Mapping[str, Any], folder: str) -> None:
        """Mount the file systems over ``folder``, the record folder. ``settings`` has the bytes and the number of files
        of each, and the texts of the files that replace files of the system. Raises OSError if mounting is forbidden.
        """
        self.folder = folder
        # Opened before the mount, which hides it.
        self.real_folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.record = Path(folder, "record")
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
        """Whether the record's file system is full. Deleted files that are still open take space too."""
        state = os.statvfs(self.record)
        return state.f_bfree == 0 or state.f_ffree == 0

    def copy_record(self) -> bool:
        """Copy the record's files and folders to the real folder, without links and pipes. Return False if they are
        nested too deep. The modification time of a copy is the change time of the original, which the guest cannot
        set. Nodes of one run may copy to the same folder."""
        target = Path(f"/proc/self/fd/{self.real_folder}")
        waiting = [Path()]
        while waiting:
            folder = waiting.pop()
            if len(folder.parts) > MAX_DEPTH:
                return False
            with os.scandir(self.record / folder) as listing:
                for entry in listing:
                    copy = target / folder / entry.name
                    changed_ns = entry.stat(follow_symlinks=False).st_ctime_ns
                    if entry.is_dir(follow_symlinks=False):
                        Path(entry).chmod(0o700)  # so that it can be opened
                        copy.mkdir(exist_ok=True)
                        waiting.append(folder / entry.name)
                    elif entry.is_file(follow_symlinks=False):
                        Path(entry).chmod(0o600)
                        copy.unlink(missing_ok=True)
                        shutil.copyfile(entry.path, copy)
                        os.utime(copy, ns=(changed_ns, changed_ns))
        return True


def _unshare_mounts(libc: ctypes.CDLL) -> None:
    """Create a mount namespace for this process. A user other than root also needs a new user namespace, which maps the
    user and the group to themselves. Raises OSError."""
    if libc.unshare(_CLONE_NEWNS) != 0:
        user, group = os.getuid(), os.getgid()
        _require_success(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "no user namespace is allowed here")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _require_success(libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "cannot detach from the system's mounts")


def _mount(libc: ctypes.CDLL, folder: str, max_bytes: int, max_files: int, mode: int) -> None:
    """Mount a memory file system. A limit of 0 would mean no limit, so small limits are raised."""
    options = f"size={max(max_bytes, 4096)},nr_inodes={max(max_files, 16)},mode={mode:o}".encode()
    result = libc.mount(b"regbot", os.fsencode(folder), b"tmpfs", _MS_NOSUID | _MS_NODEV, options)
    _require_success(result, f"{folder}: a file system in memory cannot be mounted")


def _require_success(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


# ---- devices


def device_options(folder: Path, visible: str | None, network: bool) -> list[str]:
    """Return bubblewrap's options for the devices in ``folder``. If ``visible``, the guest's CUDA_VISIBLE_DEVICES,
    lists GPUs by number, only these are made visible. They get new numbers from 0, because CUDA numbers the GPUs that
    it can open: "3,1" becomes "1,0". With other names (UUIDs) or None, all GPUs are made visible. ``network`` adds the
    RDMA devices."""
    names = [*PLAIN_DEVICES, *(NETWORK_DEVICES if network else ())]
    devices = [folder / name for name in names if (folder / name).exists()]
    suffixes = [path.name.removeprefix("nvidia") for path in folder.glob("nvidia*")]
    gpu_numbers = sorted(int(suffix) for suffix in suffixes if suffix.isdecimal())
    gpus = [path for number in gpu_numbers if _can_open(path := folder / f"nvidia{number}")]
    if visible is not None:
        words = [word.strip() for word in visible.split(",") if word.strip()]
        if gpus and all(word.isdecimal() and int(word) < len(gpus) for word in words):
            selected = sorted({int(word) for word in words})
            visible = ",".join(str(selected.index(int(word))) for word in words)
            gpus = [gpus[number] for number in selected]
    options = [] if visible is None else ["--setenv", VISIBLE_VARIABLE, visible]
    for path in (*devices, *gpus):
        options += ["--dev-bind", str(path), str(path)]
    return options


def _can_open(path: Path) -> bool:
    """Only an attempt shows whether a scheduler's control group forbids the device."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


# ---- control groups

PIDS = "pids"
MEMORY_FILES = {1: ("memory.limit_in_bytes",), 2: ("memory.max", "memory.swap.max")}
"""Files of a control group, by version. The limit is written to the first, and 0 to the others."""


class ControlGroups:
    def __init__(self, pids: int, memory_gb: float | None) -> None:
        """Create the groups. Controllers that cannot be used on this node are skipped."""
        self.groups: list[Path] = []
        limits = {PIDS: pids} | ({} if memory_gb is None else {"memory": int(memory_gb * 2**30)})
        for controller, limit in limits.items():
            with contextlib.suppress(OSError):
                version, parent = find_parent(controller)
                group = parent / f"regbot-{os.getpid()}"
                limit_file, *zero_files = ("pids.max",) if controller == PIDS else MEMORY_FILES[version]
                group.mkdir(exist_ok=True)
                if group not in self.groups:  # in version 2, one group can have both limits
                    self.groups.append(group)
                (group / limit_file).write_text(str(limit))
                for zero_file in zero_files:
                    if (group / zero_file).exists():
                        (group / zero_file).write_text("0")

    def join(self) -> None:
        for group in self.groups:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self) -> None:
        deadline = time.monotonic() + GROUP_S
        for group in reversed(self.groups):
            while group.exists() and time.monotonic() < deadline:
                with contextlib.suppress(OSError):  # its processes are still ending
                    group.rmdir()
                time.sleep(0.01)


def why_unbounded(controller: str) -> str:
    """Return why no group with this controller can be created here; '' if one can."""
    try:
        find_parent(controller)
    except OSError as error:
        return str(error)
    return ""


def find_parent(controller: str) -> tuple[int, Path]:
    """Return version and folder of a group below which this user may create groups that use ``controller``: one that is
    delegated to the user, or the topmost visible one. Raises OSError with the reason if there is none."""
    # Fields of a line: number of the hierarchy, its controllers (none in version 2), path of this process's group.
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    # Fields of a mount: device, folder, type of the file system, options, and two numbers.
    mounts = [line.split()[:4] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for _, controllers, path in sorted(lines, key=lambda line: not line[1]):  # version 1 first
        version = 1 if controller in controllers.split(",") else 2
        if version == 2 and controllers:  # a hierarchy of version 1 without this controller
            continue
        for _, mount_folder, kind, options in mounts:
            group = Path(mount_folder) / path.lstrip("/")
            if version == 1 and kind == "cgroup" and controller in options.split(","):
                return find_delegated_group([group], path, version, controller)
            if version == 2 and kind == "cgroup2":
                # A group that itself has processes cannot contain limited groups. Its parent group can.
                folders = [group] if path == "/" else [group.parent, group]
                return find_delegated_group(folders, path, version, controller)
    raise OSError("there are no control groups on this machine")


def find_delegated_group(folders: Sequence[Path], path: str, version: int, controller: str) -> tuple[int, Path]:
    """Return the first of ``folders`` below which this user may create groups, as ``find_parent`` does. In version 2,
    ``controller`` is switched on for the groups below."""
    why = f"the group {path} was not delegated to this user"
    for folder in folders:
        if not _is_delegated(folder, path) or not os.access(folder, os.W_OK):
            continue
        switch = folder / "cgroup.subtree_control"  # lists the controllers that the groups below may use
        try:
            if version == 2 and controller not in switch.read_text().split():
                switch.write_text(f"+{controller}")
            return version, folder
        except OSError as error:
            why = f"{path} cannot be divided ({error.strerror}); start regbot with Delegate=yes and a subgroup"
    raise OSError(why)


def _is_delegated(folder: Path, path: str) -> bool:
    """systemd marks a delegated group by an extended attribute. root owns every group, so that is no sign for root."""
    if path == "/":  # the topmost visible group
        return True
    try:
        is_owner = 0 != os.getuid() == folder.stat().st_uid
        return is_owner or any(os.getxattr(folder, f"{space}.delegate") == b"1" for space in ("trusted", "user"))
    except OSError:
        return False


# ---- growth on disk, keyring


class DiskGrowth:
    """Limits on the bytes and files that a guest adds to folders on disk. Counting is slow, so the folders are counted
    only after the use of a file system has grown by as much as the guest may write."""

    def __init__(self, folders: Sequence[str], max_bytes: int, max_files: int) -> None:
        """Count the folders before the guest starts. What an earlier guest left there must not prevent this one, so
        unreadable folders do not count, nor folders with more than MAX_FILES_BEFORE files, which only a shortage
        bounds."""
        unreadable: list[OSError] = []
        sizes = {folder: list(islice(find_sizes([folder], unreadable), MAX_FILES_BEFORE + 1)) for folder in folders}
        self.folders = [folder for folder in folders if len(sizes[folder]) <= MAX_FILES_BEFORE]
        self.max_bytes, self.max_files = max_bytes, max_files
        self.bytes_before = sum(sum(sizes[folder]) for folder in self.folders)
        self.files_before = sum(len(sizes[folder]) for folder in self.folders)
        self.unreadable_before = len(unreadable)
        # One folder of each file system. A request to a shared file system is slow.
        self.disks = list({Path(folder).stat().st_dev: folder for folder in folders}.values())
        self.last_states = self._query_disks()

    def find_excess(self, has_ended: bool = False) -> str:
        """Return what the guest did too much; '' if nothing. The last call, with ``has_ended``, always counts: a guest
        that still runs can move files out of sight of the count, and several names of one file use no space."""
        states = self._query_disks()
        if not has_ended:
            if shortage := _describe_shortage(states):
                return shortage
            if not self._has_grown(states):
                return ""
        excess = self._count_excess(is_running=not has_ended)
        self.last_states = states  # without excess, another program took the space, or files have no name any more
        return excess

    def _count_excess(self, is_running: bool) -> str:
        """Count the folders until they pass a limit. A running guest may write faster than this counts, so the free
        space is looked at meanwhile."""
        growth_bytes, growth_files = -self.bytes_before, -self.files_before
        unreadable: list[OSError] = []
        for size in find_sizes(self.folders, unreadable):
            growth_bytes += size
            growth_files += 1
            if growth_files > self.max_files:
                return f"wrote more than {self.max_files:,} files (sandbox.disk_files)"
            if growth_bytes > self.max_bytes:
                return f"wrote more than {self.max_bytes >> 20:,} MB to disk (sandbox.disk_mb)"
            is_look_due = is_running and growth_files % FILES_PER_LOOK == 0
            if is_look_due and (shortage := _describe_shortage(self._query_disks())):
                return shortage
        if len(unreadable) > self.unreadable_before:  # for example folders that are nested deeper than a path can be
            return f"made files that cannot be counted ({unreadable[-1].strerror})"
        return ""

    def _query_disks(self) -> list[os.statvfs_result]:
        return [os.statvfs(disk) for disk in self.disks]

    def _has_grown(self, states: Sequence[os.statvfs_result]) -> bool:
        return any(
            (before.f_bavail - now.f_bavail) * now.f_frsize >= self.max_bytes
            or (now.f_files - now.f_ffree) - (before.f_files - before.f_ffree) >= self.max_files
            for before, now in zip(self.last_states, states, strict=True)
        )


def _describe_shortage(states: Sequence[os.statvfs_result]) -> str:
    is_short = any(find_shortage(state) for state in states)
    return "was on a disk with too little free space or too few free files" if is_short else ""


def find_shortage(state: os.statvfs_result, more_bytes: int = 0, more_files: int = 0) -> str:
    """Return why a file system has no room for ``more_bytes`` and ``more_files`` beside the room that regbot keeps for
    its own files; '' if it has."""
    free_bytes, total_bytes = state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize
    needed_bytes = more_bytes + min(RESERVE_BYTES, int(RESERVE_SHARE * total_bytes))
    needed_files = more_files + min(RESERVE_FILES, int(RESERVE_SHARE * state.f_files))
    if free_bytes < needed_bytes:
        return f"{free_bytes >> 20:,} MB are free on its disk, and {needed_bytes >> 20:,} MB are needed"
    if state.f_files and state.f_favail < needed_files:  # a file system without a fixed number of files reports 0
        return f"{state.f_favail:,} more files fit on its disk, and room for {needed_files:,} is needed"
    return ""


def find_sizes(folders: Sequence[str], unreadable: list[OSError] | None = None) -> Iterator[int]:
    """Yield the size of every file, link and folder below ``folders``: its length or its space, whichever is larger.
    What disappears, and unreadable folders of other users, are skipped. The error of each other folder is appended to
    ``unreadable``, or raised without it: a guest may have made the folder unreadable."""
    waiting = [("", folder) for folder in folders]  # parent and name; all subfolders of a folder share one parent
    while waiting:
        folder = os.path.join(*waiting.pop())  # noqa: PTH118 - a Path would be slower
        try:
            with os.scandir(folder) as listing:
                for entry in listing:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    yield max(status.st_size, status.st_blocks * 512)
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append((folder, entry.name))
        except OSError as error:
            try:
                is_of_another_user = isinstance(error, PermissionError) and os.lstat(folder).st_uid != os.geteuid()
            except FileNotFoundError:
                continue
            if error.errno in GONE or is_of_another_user:
                continue
            if unreadable is None:
                raise
            unreadable.append(error)


def leave_keyring() -> None:
    """Join a new, empty session keyring if the kernel supports it. The inherited keyring may contain tickets."""
    number = _KEYCTL.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, _JOIN_SESSION_KEYRING, None)
