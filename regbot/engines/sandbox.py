"""The sandbox for code under test: the options for bubblewrap and the limits for the supervisor.

A guest sees only what this module lists. It can read the system's programs, its interpreter and the paths of its
launch. It can write to its record folder and to a private /tmp and /dev/shm, which are file systems in memory with a
size limit. It has a network only if ``Sandbox.network`` is set. It sees no process outside of the sandbox, no
environment variables except those of its launch, and only the guest part of regbot's code. docs/operator.md says what
is not confined.

This module looks up paths on the machine that runs regbot, so all nodes must have the same paths. Devices and control
groups differ between nodes. The supervisor on each node looks them up (``regbot.engines.confinement``).
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from regbot.engines import confinement
from regbot.engines.launch import EngineError, Launch, NoSeatError
from regbot.records.config import schema as config

MEGABYTE = 2**20
HOME = "/tmp/home"
"""The guest's home folder."""
HOST = "sandbox"
"""The guest's host name."""
USER = 1000
"""The guest's user id inside the sandbox. Outside of the sandbox the guest has the id of the user that runs regbot."""
RECORD_FILES = 20_000
FILES_PER_MB = 256
MIN_FILES = 4096
"""Limits on the number of files in file systems in memory: in the record, for each MB of /tmp, and at least in /tmp. A
file takes about 1 kB of kernel memory in addition to its content.
"""

# Folders of the system in /, files in /etc, and files in /etc for a sandbox with a network. A guest may read them.
SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "localtime", "alternatives", "ssl", "pki",
    "ca-certificates", "protocols", "services", "nccl.conf", "OpenCL", "os-release",
)  # fmt: skip
NETWORK_ETC = ("hosts", "resolv.conf", "host.conf", "gai.conf", "libibverbs.d")
CACHES = {
    "XDG_CACHE_HOME": "cache", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda", "EP_JIT_CACHE_DIR": "deepep", "HYBRID_EP_CACHE_DIR": "hybridep",
    "MPLCONFIGDIR": "matplotlib", "HF_HOME": "huggingface",
}  # fmt: skip
"""Variables that name a cache folder, each with the name of a folder below HOME. If the guest may not write to the
cache folder, the variable is set to the folder below HOME."""
READ_ONLY_PROC = (
    "sys", "sysrq-trigger", "irq", "bus", "acpi", "fs", "scsi", "tty", "driver", "mtrr", "dynamic_debug", "asound",
    "pressure", "sysvipc",
)  # fmt: skip
"""Files in /proc that concern the whole machine. They belong to root. If regbot runs as root, a guest could write to
them even without capabilities, so they are mounted read-only."""
HIDDEN_PROC = (
    "kcore", "keys", "kmsg", "key-users", "timer_list", "sched_debug", "latency_stats", "slabinfo", "vmallocinfo",
    "kpagecount", "kpageflags", "kpagecgroup", "iomem", "ioports",
)  # fmt: skip
"""Files in /proc that a guest must not read. They are replaced by /dev/null."""
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Variables that name a network interface. Without a network, they name the loopback interface."""


@dataclass(frozen=True)
class Sandbox:
    """What a guest may use in addition to the paths of its launch. Limits apply to each launch on each node."""

    read: tuple[Path, ...] = ()
    """Folders and files of the operator that guests may read, such as data or a CUDA toolkit in /opt."""
    write: tuple[Path, ...] = ()
    """Folders that guests may write to. Files in them persist, so that later guests see them."""
    network: bool = False
    """Whether the guest uses the host's network, as ranks on several nodes must. Without it, the guest has only its own
    loopback interface."""
    tmp_mb: int = 2048
    """Size of /tmp, and also of /dev/shm, in MB."""
    disk_mb: int = 4096
    """Limit on the growth of all folders on disk that a guest may write to, in MB."""
    disk_files: int = 200_000
    """Limit on the number of files by which these folders may grow. Folders count too."""
    pids: int = 4096
    """Limit on the number of processes and threads at the same time."""
    memory_gb: float | None = None
    """Limit on the memory of all processes together; None for no limit."""
    build_network: bool = True
    """Whether build commands use the host's network."""
    submodule_hosts: tuple[str, ...] = ()
    """Hosts that submodules may be fetched from, in addition to the host of the repository. The fetch itself runs
    outside of the sandbox.
    """

    @property
    def for_builds(self) -> "Sandbox":
        """The sandbox for build commands."""
        return replace(self, network=self.build_network)


def sandbox_from_settings(settings: config.SandboxSettings) -> Sandbox:
    """Return the sandbox for runs, as configured by ``[sandbox]``."""
    return Sandbox(
        read=tuple(Path(folder) for folder in settings.read),
        write=tuple(Path(folder) for folder in settings.write),
        network=settings.network,
        tmp_mb=settings.tmp_mb,
        disk_mb=settings.disk_mb,
        disk_files=settings.disk_files,
        pids=settings.pids,
        memory_gb=settings.memory_gb,
        build_network=settings.build_network,
        submodule_hosts=tuple(settings.submodule_hosts),
    )


def confine(request: Mapping[str, Any], launch: Launch, sandbox: Sandbox) -> dict[str, Any]:
    """Return the supervisor's request for ``launch`` with ``sandbox`` around its command.

    Raises EngineError. It is a NoSeatError if the disk has no room for as much as the guest may write.

    ``request`` is the supervisor's request without a sandbox. Its command starts with the same program as the command
    of ``launch``, but may be torchrun's command, which starts the command of ``launch`` for each rank.

    The entry ``confine`` of the result has what the supervisor needs to set the sandbox up on its node.
    """
    record = launch.record_dir.absolute()
    for path in launch.writable:
        if path.is_symlink():
            raise EngineError(f"{path}: is a link, probably made by code under test", "links are not followed here")
    writable = _existing_paths((*launch.writable, *sandbox.write))
    folders_on_disk = [str(folder) for folder in writable if folder != record]
    for folder in folders_on_disk:
        if shortage := confinement.find_shortage(os.statvfs(folder), sandbox.disk_mb * MEGABYTE, sandbox.disk_files):
            raise NoSeatError(f"{folder}: {shortage}", "free some, or lower sandbox.disk_mb and sandbox.disk_files")
    env = _environment(request["env"], sandbox, writable)
    program = _resolve_program(launch.command[0], launch.cwd, env)
    _, *program_arguments = request["command"]
    command = [str(program), *program_arguments]
    arguments = [_bwrap(), *_namespace_options(sandbox)]
    for name, value in env.items():
        arguments += ["--setenv", name, value]
    binds = _visible_binds(launch, sandbox, program, env, writable)
    for bind in sorted(binds, key=lambda bind: Path(bind.target).parts):  # a folder before the paths in it
        arguments += bind.options
    # bubblewrap creates / and /dev as memory file systems without a size limit, so they are made read-only. The
    # supervisor replaces DEVICES by the options for the devices of its node.
    arguments += [
        confinement.DEVICES,
        "--remount-ro",
        "/dev",
        "--remount-ro",
        "/",
        "--chdir",
        str(launch.cwd.absolute()),
    ]
    # If prlimit is installed, it limits the number of processes even where no control group can.
    limiter = ["/usr/bin/prlimit", f"--nproc={sandbox.pids}", "--"] if Path("/usr/bin/prlimit").exists() else []
    return {
        **request,
        "command": [*arguments, "--", *limiter, *command],
        "cwd": "/",
        "env": {},  # the guest's variables (such as LD_PRELOAD) must not affect bubblewrap
        "confine": {
            "file_systems": {  # maximum bytes and number of files; one page more than the limit shows an overflow
                "record": (launch.max_dir_bytes + 4096, RECORD_FILES),
                "tmp": _tmpfs_limits(sandbox.tmp_mb),
                "shm": _tmpfs_limits(sandbox.tmp_mb),
            },
            "files": _replacement_files(sandbox),
            "writable": folders_on_disk,
            "growth_bytes": sandbox.disk_mb * MEGABYTE,
            "growth_files": sandbox.disk_files,
            "pids": sandbox.pids,
            "memory_bytes": None if sandbox.memory_gb is None else int(sandbox.memory_gb * 2**30),
            "network": sandbox.network,
            "visible": launch.env.get(confinement.VISIBLE_VARIABLE),
        },
    }


def _tmpfs_limits(megabytes: int) -> tuple[int, int]:
    """Return the maximum bytes and the maximum number of files of a file system in memory."""
    return megabytes * MEGABYTE, max(MIN_FILES, megabytes * FILES_PER_MB)


def _namespace_options(sandbox: Sandbox) -> list[str]:
    """Return bubblewrap's options for the guest's namespaces, user and rights."""
    options = [
        "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
        "--uid", str(USER), "--gid", str(USER), "--cap-drop", "ALL", "--die-with-parent", "--new-session",
    ]  # fmt: skip
    if _supports("--disable-userns"):
        options += ["--disable-userns"]
    return options if sandbox.network else [*options, "--unshare-net", "--hostname", HOST]


def _replacement_files(sandbox: Sandbox) -> dict[str, str]:
    """Return the contents of the files that replace system files in /etc, by file name."""
    nobody = "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    files = {
        "passwd": f"guest:x:{USER}:{USER}:guest:{HOME}:/bin/sh\n{nobody}",
        "group": f"guest:x:{USER}:\nnogroup:x:65534:\n",
    }
    if not sandbox.network:
        files["hosts"] = f"127.0.0.1 localhost {HOST}\n::1 localhost {HOST}\n"
    return files


def _environment(env: Mapping[str, str], sandbox: Sandbox, writable: Sequence[Path]) -> dict[str, str]:
    """Return the guest's environment variables.

    They are ``env``, the variables of the launch, with another user, home folder and temporary folder. A cache variable
    that names a folder outside of ``writable`` gets a folder below HOME.
    """
    new_values = {"HOME": HOME, "TMPDIR": "/tmp", "USER": "guest", "LOGNAME": "guest"}
    for name, folder_name in CACHES.items():
        value = env.get(name)
        if value is None:
            continue
        is_writable = any(Path(value).is_relative_to(folder) for folder in writable)
        if not is_writable:
            new_values[name] = f"{HOME}/{folder_name}"
    if not sandbox.network:
        new_values |= dict.fromkeys(INTERFACES, "lo")
    return {**env, **new_values}


# ---- visible paths


@dataclass(frozen=True)
class _Bind:
    """One mount point in the guest's file tree."""

    target: str
    """Path in the guest's file tree."""
    options: tuple[str, ...]
    """bubblewrap's options that create the mount point."""


def _bind(source: Path | str, target: Path | str | None = None, write: bool = False, optional: bool = False) -> _Bind:
    """Return a mount point that shows ``source`` at ``target``; by default at its own path, and read-only.

    An ``optional`` source need not exist.
    """
    option = ("--bind" if write else "--ro-bind") + ("-try" if optional else "")
    target_path = str(source if target is None else target)
    return _Bind(target_path, (option, str(source), target_path))


def _visible_binds(
    launch: Launch, sandbox: Sandbox, program: Path, env: Mapping[str, str], writable: Sequence[Path]
) -> list[_Bind]:
    """Return the mount points of everything that the guest sees.

    ``program`` is the path of the guest's program, ``env`` its environment variables, and ``writable`` the paths that
    it may write to. The order of the additions matters: a later mount point replaces an earlier one with the same path.
    For example, a folder of the checkout that is writable replaces the same folder as readable.
    """
    record = launch.record_dir.absolute()
    launch_paths = _existing_paths((launch.cwd, *launch.readable))
    checkout = [*launch_paths, *writable]  # a pull request may have written files there
    readable = [
        *_interpreter_folders(program, launch.command, env, checkout, sandbox),
        *launch_paths,
        *_existing_paths(sandbox.read),
    ]
    binds = {bind.target: bind for bind in _system_binds(sandbox)}
    # The supervisor mounts the file systems "tmp", "shm", "files" and "record" below the record folder.
    binds["/tmp"] = _bind(record / "tmp", "/tmp", write=True)
    binds["/dev/shm"] = _bind(record / "shm", "/dev/shm", write=True)
    binds[HOME] = _Bind(HOME, ("--dir", HOME))
    for file_name in _replacement_files(sandbox):
        binds[f"/etc/{file_name}"] = _bind(record / "files" / file_name, f"/etc/{file_name}")
    for folder in readable:
        binds |= {str(path): _bind(path) for path in _with_resolved(folder)}
    for folder in writable:
        binds |= {str(path): _bind(path, write=True) for path in _with_resolved(folder)}
    log = launch.log.absolute()
    if any(log.is_relative_to(folder) for folder in writable):  # the guest must not change its log
        binds[str(log.parent)] = _bind(log.parent)
    binds |= {bind.target: bind for bind in _hide_harness([Path("/usr"), *readable, *writable])}
    binds |= {str(path): _bind(record / "record", path, write=True) for path in _with_resolved(record)}
    return list(binds.values())


def _system_binds(sandbox: Sandbox) -> Iterator[_Bind]:
    """Yield the mount points of the system: its programs and libraries, and parts of /etc, /sys, /proc and /dev."""
    yield _bind("/usr")
    for name in SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            yield _Bind(str(path), ("--symlink", str(path.readlink()), str(path)))
        elif path.exists():
            yield _bind(path)
    for name in (*ETC, *(NETWORK_ETC if sandbox.network else ())):
        yield _bind(Path("/etc", name), optional=True)
    for path in Path("/etc").glob("python3*"):
        yield _bind(path)
    yield _bind("/sys")
    yield _Bind("/proc", ("--proc", "/proc"))
    for name in READ_ONLY_PROC:
        yield _bind(Path("/proc", name), optional=True)
    for name in HIDDEN_PROC:
        if Path("/proc", name).exists():
            yield _bind("/dev/null", Path("/proc", name))
    yield _Bind("/dev", ("--dev", "/dev"))


def _with_resolved(path: Path) -> tuple[Path, ...]:
    """Return ``path``, and ``path`` with its links resolved. A program may use either."""
    return tuple(dict.fromkeys((path, path.resolve())))


def _existing_paths(paths: Iterable[Path]) -> list[Path]:
    """Return the absolute paths of all ``paths`` that exist. Raises EngineError if one is the root folder."""
    existing_paths = [path.absolute() for path in paths if path.exists()]
    for path in existing_paths:
        if path.resolve() == Path("/"):
            raise EngineError("a sandbox that shows the root folder (/) confines nothing", "name the folders needed")
    return existing_paths


def _hide_harness(visible: Iterable[Path]) -> list[_Bind]:
    """Return mount points that hide regbot's own code inside visible folders. The guest part stays visible."""
    package = Path(str(resources.files("regbot"))).absolute()
    guest = package / "guest"
    visible_paths = [path for folder in visible if not _is_within(folder, guest) for path in _with_resolved(folder)]
    hidden_paths = [
        path
        for path in _with_resolved(package)
        if any(path.is_relative_to(visible_path) for visible_path in visible_paths)
    ]
    masks = [_Bind(str(path), ("--tmpfs", str(path))) for path in hidden_paths]  # an empty folder over regbot's code
    return [*masks, *(_bind(path) for path in _with_resolved(guest))]


def _is_within(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def leads_through(path: Path, folders: Iterable[Path]) -> bool:
    """Return whether one of ``folders`` is on the way of the absolute ``path``, as written.

    A link in such a folder may lead anywhere, also to itself, so it does not matter where the path ends.
    """
    steps = [Path(os.path.realpath(step)) for step in (path, *path.parents)]
    return any(step.is_relative_to(folder.resolve()) for folder in folders for step in steps)


# ---- interpreters


def _resolve_program(name: str, cwd: Path, env: Mapping[str, str]) -> Path:
    """Return the path of the program ``name``, which the guest starts.

    A name with a slash is a path, which may be relative to ``cwd``. Another name is looked up on the PATH of ``env``.
    Raises EngineError if the program does not exist.
    """
    if "/" in name:
        path = Path(name) if Path(name).is_absolute() else cwd / name
        if path.exists():
            return path.absolute()
    elif (on_path := shutil.which(name, path=env.get("PATH", os.defpath))) is not None:
        return Path(on_path).absolute()
    raise EngineError(
        f"{name}: could not be started in {cwd}: no such file",
        "check the interpreter and the build commands of this workload in regbot.toml",
    )


def _interpreter_folders(
    program: Path, command: Sequence[str], env: Mapping[str, str], checkout: Sequence[Path], sandbox: Sandbox
) -> list[Path]:
    """Return the folders of all interpreters that the command may start: its program, its arguments, and those on PATH.

    ``checkout`` are the paths of the launch, which may contain files of a pull request.

    A virtual environment in the checkout, and a link in it, may point to any folder of the machine, so a pull request
    could expose that folder. Such a folder is shown only if it belongs to regbot's own interpreter. Raises EngineError
    if the program needs another such folder and the operator has not listed it.
    """
    folders: list[Path] = []
    executable_arguments = [Path(word) for word in command[1:] if word.startswith("/") and os.access(word, os.X_OK)]
    pythons_on_path = [shutil.which(name, path=env.get("PATH", os.defpath)) for name in ("python3", "python")]
    executables = [
        program,
        *executable_arguments,
        *(Path(path).absolute() for path in pythons_on_path if path is not None),
    ]
    for executable in executables:
        if executable.is_dir():
            continue
        is_in_checkout = leads_through(executable, checkout)
        try:
            prefixes = python_prefixes(executable)
        except (OSError, RuntimeError, ValueError) as error:  # such as a loop of links, or a null byte in a path
            raise EngineError(f"{executable}: the Python installation behind it cannot be found: {error}") from error
        for prefix in prefixes:
            if any(_is_within(prefix, folder) for folder in (Path("/usr"), *checkout, *sandbox.read)):
                continue
            is_of_regbot = _is_within(prefix, Path(sys.base_prefix)) or _is_within(prefix, Path(sys.prefix))
            if is_of_regbot or not is_in_checkout:
                # In a checkout, the path as written may be a link, over which bubblewrap cannot mount.
                folders.append(prefix.resolve() if is_in_checkout else prefix)
            elif executable == program:
                raise EngineError(
                    f"{executable} uses an interpreter in {prefix}, which the sandbox does not show to an "
                    f"environment inside the checkout",
                    f"name it in regbot.toml: [sandbox] read = ['{prefix}']",
                )
    if not _is_visible(program, [Path("/usr"), *SYSTEM_FOLDERS, *folders, *checkout, *sandbox.read, *sandbox.write]):
        raise EngineError(
            f"{program} is in no folder that the sandbox shows",
            "name its folder in regbot.toml: [sandbox] read = [...]",
        )
    return list(dict.fromkeys(folders))


MAX_LINKS = 40
"""Maximum number of links that are followed, as in Linux."""
MAX_PYVENV_CHARACTERS = 65536
"""Part of a pyvenv.cfg that is read. Code under test may have written the file."""
SYSTEM_FOLDERS = tuple(Path("/", name) for name in SYSTEM)


def _is_visible(program: Path, folders: Iterable[Path]) -> bool:
    return any(program.is_relative_to(folder) or _is_within(program, folder) for folder in folders)


def python_prefixes(program: Path) -> list[Path]:
    """Return the Python prefixes that ``program`` needs. A prefix is the folder of an installation or environment.

    ``program`` may be a link to a link. Each link on the way to the real program can have a prefix of its own. A
    virtual environment also needs the prefix of its base interpreter. A prefix that contains the home folder is left
    out, because code under test could then read all files there.
    """
    prefixes: list[Path] = []
    path = program
    for _ in range(MAX_LINKS):
        prefix = _prefix(path.parent)
        if (prefix / "pyvenv.cfg").is_file():
            prefixes.append(prefix)
            base_folder = _read_home(prefix / "pyvenv.cfg")
            if base_folder is not None and _is_prefix(_prefix(base_folder)):
                prefixes.append(_prefix(base_folder))
        elif _is_prefix(prefix):
            prefixes.append(prefix)
        if not path.is_symlink():
            break
        path = path.parent / path.readlink()
    home_folder = Path.home().resolve()
    return [prefix for prefix in dict.fromkeys(prefixes) if not home_folder.is_relative_to(prefix.resolve())]


def _prefix(folder: Path) -> Path:
    """Return the folder that contains the ``bin`` folder ``folder``, which may be a link such as /bin to /usr/bin.

    If the parent of the path as written is the right folder, that path is returned. Otherwise links are resolved.
    """
    real_parent = folder.resolve().parent
    is_parent_as_written = ".." not in folder.parts and folder.parent.resolve() == real_parent
    return folder.parent if is_parent_as_written else real_parent


def _is_prefix(folder: Path) -> bool:
    """Return whether a folder contains Python's standard library."""
    library_files = [file for lib in ("lib", "lib64") for file in (folder / lib).glob("python3*/os.py")]
    return bool(library_files)


def _read_home(file: Path) -> Path | None:
    """Return the ``bin`` folder of the base interpreter, from the key ``home`` of a pyvenv.cfg; None if it is unset."""
    with file.open(encoding="utf-8", errors="replace") as text:
        lines = text.read(MAX_PYVENV_CHARACTERS).splitlines()
    for line in lines:
        key, _, value = line.partition("=")
        if key.strip() == "home" and value.strip().startswith("/"):
            return Path(value.strip())
    return None


# ---- bubblewrap


def _bwrap() -> str:
    return shutil.which("bwrap") or "bwrap"


@functools.cache
def _supports(option: str) -> bool:
    """Return whether the installed bubblewrap has an option."""
    try:
        result = subprocess.run([_bwrap(), "--help"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return False
    return option in result.stdout + result.stderr


def bubblewrap_version() -> str:
    """Return for example ``bubblewrap 0.8.0``; '' if bubblewrap is not installed."""
    try:
        result = subprocess.run([_bwrap(), "--version"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return ""
    return result.stdout.strip()


def unbounded(sandbox: Sandbox) -> dict[str, str]:
    """Return the limits that this machine cannot enforce, by controller ("pids", "memory"), each with the reason.

    For users other than root, RLIMIT_NPROC limits the number of processes too. So "pids" is returned for root only.
    """
    # /proc belongs to the real root. In a user namespace, st_uid is the id that this root has inside of it.
    is_root = Path("/proc").stat().st_uid == os.getuid()
    reasons = confinement.unbounded(memory=sandbox.memory_gb is not None)
    if not is_root:
        reasons.pop(confinement.PIDS, None)
    return reasons
