"""The sandbox for code under test: the options for bubblewrap and the limits for the supervisor. A guest sees only what
this module lists; docs/operator.md says what is not confined. Paths are looked up on the machine that runs regbot, so
all nodes must have the same ones. Devices and control groups differ between nodes, so the supervisor on each node looks
them up (``regbot.engines.confinement``)."""

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from regbot.engines import confinement
from regbot.engines.launch import EngineError, Launch, NoSeatError
from regbot.records.config import SandboxSettings

MEGABYTE = 2**20
HOME = "/tmp/home"
HOST = "sandbox"
USER = 1000
"""The guest's user id inside. Outside, it is the user that runs regbot."""
RECORD_FILES = 20_000
FILES_PER_MB = 256
MIN_FILES = 4096
"""Limits on the number of files in the record, for each MB of /tmp, and at least in /tmp. A file takes about 1 kB of
kernel memory in addition to its content."""

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
"""Variables that name a cache folder. If the guest may not write there, they get this folder below HOME."""
READ_ONLY_PROC = (
    "sys", "sysrq-trigger", "irq", "bus", "acpi", "fs", "scsi", "tty", "driver", "mtrr", "dynamic_debug", "asound",
    "pressure", "sysvipc",
)  # fmt: skip
"""Files in /proc of the whole machine. If regbot runs as root, a guest could write to them even without capabilities.
"""
HIDDEN_PROC = (
    "kcore", "keys", "kmsg", "key-users", "timer_list", "sched_debug", "latency_stats", "slabinfo", "vmallocinfo",
    "kpagecount", "kpageflags", "kpagecgroup", "iomem", "ioports",
)  # fmt: skip
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Variables that name a network interface. Without a network, they name the loopback interface."""


def confine(request: Mapping[str, Any], launch: Launch, sandbox: SandboxSettings) -> dict[str, Any]:
    """Return the supervisor's request for ``launch`` with ``sandbox`` around its command, which may be torchrun's
    command for each rank. The entry ``confine`` is for the supervisor on the node. Raises EngineError; a NoSeatError if
    the disk has no room for as much as the guest may write."""
    record = launch.record_dir.absolute()
    for path in launch.writable:
        if path.is_symlink():
            raise EngineError(f"{path}: is a link, probably made by code under test", "links are not followed here")
    writable = _existing_paths((*launch.writable, *map(Path, sandbox.write)))
    folders_on_disk = [str(folder) for folder in writable if folder != record]
    for folder in folders_on_disk:
        if shortage := confinement.find_shortage(os.statvfs(folder), sandbox.disk_mb * MEGABYTE, sandbox.disk_files):
            raise NoSeatError(f"{folder}: {shortage}", "free some, or lower sandbox.disk_mb and sandbox.disk_files")
    env = _environment(request["env"], sandbox, writable)
    program = _resolve_program(launch.command[0], launch.cwd, env)
    command = [str(program), *request["command"][1:]]
    arguments = [_bwrap(), *_namespace_options(sandbox)]
    for name, value in env.items():
        arguments += ["--setenv", name, value]
    binds = _visible_binds(launch, sandbox, program, env, writable)
    for target in sorted(binds, key=lambda target: Path(target).parts):  # a folder before the paths in it
        arguments += binds[target]
    # bubblewrap creates / and /dev as memory file systems without a size limit, so they are made read-only. The
    # supervisor replaces DEVICES by the options for the devices of its node.
    remounts = ["--remount-ro", "/dev", "--remount-ro", "/"]
    arguments += [confinement.DEVICES, *remounts, "--chdir", str(launch.cwd.absolute())]
    # If prlimit is installed, it limits the number of processes even where no control group can.
    tmp_limits = (sandbox.tmp_mb * MEGABYTE, max(MIN_FILES, sandbox.tmp_mb * FILES_PER_MB))
    limiter = ["/usr/bin/prlimit", f"--nproc={sandbox.pids}", "--"] if Path("/usr/bin/prlimit").exists() else []
    return {
        **request,
        "command": [*arguments, "--", *limiter, *command],
        "cwd": "/",
        "env": {},  # the guest's variables (such as LD_PRELOAD) must not affect bubblewrap
        "confine": {
            **sandbox.model_dump(mode="json"),
            "file_systems": {  # maximum bytes and number of files; one page more than the limit shows an overflow
                "record": (launch.max_dir_bytes + 4096, RECORD_FILES),
                "tmp": tmp_limits,
                "shm": tmp_limits,
            },
            "files": _replacement_files(sandbox),
            "writable": folders_on_disk,
            "visible": launch.env.get(confinement.VISIBLE_VARIABLE),
        },
    }


def _namespace_options(sandbox: SandboxSettings) -> list[str]:
    options = [
        "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
        "--uid", str(USER), "--gid", str(USER), "--cap-drop", "ALL", "--die-with-parent", "--new-session",
    ]  # fmt: skip
    if "--disable-userns" in _bwrap_output(_bwrap(), "--help"):
        options += ["--disable-userns"]
    return options if sandbox.network else [*options, "--unshare-net", "--hostname", HOST]


def _replacement_files(sandbox: SandboxSettings) -> dict[str, str]:
    """Return the contents of the files that replace system files in /etc, by name."""
    files = {
        "passwd": f"guest:x:{USER}:{USER}::{HOME}:/bin/sh\nnobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\n",
        "group": f"guest:x:{USER}:\nnogroup:x:65534:\n",
    }
    if not sandbox.network:
        files["hosts"] = f"127.0.0.1 localhost {HOST}\n::1 localhost {HOST}\n"
    return files


def _environment(env: Mapping[str, str], sandbox: SandboxSettings, writable: Sequence[Path]) -> dict[str, str]:
    """Return the launch's variables with another user, home and temporary folder, and with writable cache folders."""
    new_values = {"HOME": HOME, "TMPDIR": "/tmp", "USER": "guest", "LOGNAME": "guest"}
    for name in CACHES.keys() & env.keys():
        if not any(Path(env[name]).is_relative_to(folder) for folder in writable):
            new_values[name] = f"{HOME}/{CACHES[name]}"
    if not sandbox.network:
        new_values |= dict.fromkeys(INTERFACES, "lo")
    return {**env, **new_values}


# ---- visible paths


Binds = dict[str, list[str]]
"""Options for bubblewrap by path in the guest's file tree."""


def _bind(source: Path | str, target: Path | str | None = None, write: bool = False, optional: bool = False) -> Binds:
    """Show ``source`` at ``target``, by default at its own path and read-only."""
    option = ("--bind" if write else "--ro-bind") + ("-try" if optional else "")
    target_path = str(source if target is None else target)
    return {target_path: [option, str(source), target_path]}


def _bind_all(paths: Iterable[Path], write: bool = False) -> Binds:
    """Show ``paths``, and ``paths`` with their links resolved. A program may use either."""
    binds: Binds = {}
    for path in paths:
        binds |= _bind(path, write=write) | _bind(path.resolve(), write=write)
    return binds


def _visible_binds(
    launch: Launch, sandbox: SandboxSettings, program: Path, env: Mapping[str, str], writable: Sequence[Path]
) -> Binds:
    """Return the mount points of everything that the guest sees. The order matters: a later one replaces an earlier one
    with the same path, such as a writable folder of the readable checkout."""
    record = launch.record_dir.absolute()
    launch_paths = _existing_paths((launch.cwd, *launch.readable))
    checkout = [*launch_paths, *writable]  # a pull request may have written files there
    readable = [
        *_interpreter_folders(program, launch.command, env, checkout, sandbox),
        *launch_paths,
        *_existing_paths(map(Path, sandbox.read)),
    ]
    # The supervisor mounts the file systems "tmp", "shm", "files" and "record" below the record folder.
    binds = {
        **_system_binds(sandbox),
        **_bind(record / "tmp", "/tmp", write=True),
        **_bind(record / "shm", "/dev/shm", write=True),
        HOME: ["--dir", HOME],
    }
    for file_name in _replacement_files(sandbox):
        binds |= _bind(record / "files" / file_name, f"/etc/{file_name}")
    binds |= _bind_all(readable) | _bind_all(writable, write=True)
    log = launch.log.absolute()
    if any(log.is_relative_to(folder) for folder in writable):  # the guest must not change its log
        binds |= _bind(log.parent)
    binds |= _hide_harness([Path("/usr"), *readable, *writable])
    for path in (record, record.resolve()):
        binds |= _bind(record / "record", path, write=True)
    return binds


def _system_binds(sandbox: SandboxSettings) -> Binds:
    binds = _bind("/usr") | _bind("/sys")
    for name in SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            binds[str(path)] = ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            binds |= _bind(path)
    for name in (*ETC, *(NETWORK_ETC if sandbox.network else ())):
        binds |= _bind(Path("/etc", name), optional=True)
    for path in Path("/etc").glob("python3*"):
        binds |= _bind(path)
    for name in READ_ONLY_PROC:
        binds |= _bind(Path("/proc", name), optional=True)
    for name in HIDDEN_PROC:
        if Path("/proc", name).exists():
            binds |= _bind("/dev/null", Path("/proc", name))
    return {**binds, "/proc": ["--proc", "/proc"], "/dev": ["--dev", "/dev"]}


def _existing_paths(paths: Iterable[Path]) -> list[Path]:
    existing_paths = [path.absolute() for path in paths if path.exists()]
    for path in existing_paths:
        if path.resolve() == Path("/"):
            raise EngineError("a sandbox that shows the root folder (/) confines nothing", "name the folders needed")
    return existing_paths


def _hide_harness(visible: Iterable[Path]) -> Binds:
    package = Path(str(resources.files("regbot"))).absolute()
    guest = package / "guest"
    folders = [path for folder in visible if not _is_within(folder, guest) for path in (folder, folder.resolve())]
    binds: Binds = {}
    for path in (package, package.resolve()):
        if any(path.is_relative_to(folder) for folder in folders):
            binds[str(path)] = ["--tmpfs", str(path)]  # an empty folder over regbot's code
    return binds | _bind_all([guest])


def _is_within(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def leads_through(path: Path, folders: Iterable[Path]) -> bool:
    """Return whether one of ``folders`` is on the way of the absolute ``path``, as written. A link in such a folder may
    lead anywhere, so it does not matter where the path ends."""
    steps = [Path(os.path.realpath(step)) for step in (path, *path.parents)]
    return any(step.is_relative_to(folder.resolve()) for folder in folders for step in steps)


# ---- interpreters


def _resolve_program(name: str, cwd: Path, env: Mapping[str, str]) -> Path:
    """Return the program that the guest starts: a path, which may be relative to ``cwd``, or a name on the PATH of
    ``env``. Raises EngineError."""
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
    program: Path, command: Sequence[str], env: Mapping[str, str], checkout: Sequence[Path], sandbox: SandboxSettings
) -> list[Path]:
    """Return the folders of all interpreters that the command may start: its program, its arguments, and those on PATH.
    A virtual environment in ``checkout``, or a link there, may point to any folder of the machine, so a pull request
    could expose it. Such a folder is shown only if it belongs to regbot's own interpreter, or if the operator has
    listed it. Raises EngineError if the program needs another one."""
    folders: list[Path] = []
    listed = [Path(folder) for folder in sandbox.read]
    executable_arguments = [Path(word) for word in command[1:] if word.startswith("/") and os.access(word, os.X_OK)]
    on_path = (shutil.which(name, path=env.get("PATH", os.defpath)) for name in ("python3", "python"))
    pythons = [Path(path).absolute() for path in on_path if path is not None]
    for executable in (program, *executable_arguments, *pythons):
        if executable.is_dir():
            continue
        is_in_checkout = leads_through(executable, checkout)
        try:
            prefixes = python_prefixes(executable)
        except (OSError, RuntimeError, ValueError) as error:  # such as a loop of links, or a null byte in a path
            raise EngineError(f"{executable}: the Python installation behind it cannot be found: {error}") from error
        for prefix in prefixes:
            if any(_is_within(prefix, folder) for folder in (Path("/usr"), *checkout, *listed)):
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
    visible = [Path("/usr"), *SYSTEM_FOLDERS, *folders, *checkout, *listed, *map(Path, sandbox.write)]
    if not any(program.is_relative_to(folder) or _is_within(program, folder) for folder in visible):
        raise EngineError(
            f"{program} is in no folder that the sandbox shows",
            "name its folder in regbot.toml: [sandbox] read = [...]",
        )
    return list(dict.fromkeys(folders))


MAX_LINKS = 40
MAX_PYVENV_CHARACTERS = 65536
SYSTEM_FOLDERS = tuple(Path("/", name) for name in SYSTEM)


def python_prefixes(program: Path) -> list[Path]:
    """Return the folders of all installations and virtual environments that ``program`` needs, on the way of its links
    and of pyvenv.cfg. One that contains the home folder is left out, because code under test could then read all files
    there."""
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
    """Return the folder that contains the ``bin`` folder ``folder``: as written, or with links resolved if that is
    another one, such as for /bin to /usr/bin."""
    real_parent = folder.resolve().parent
    is_parent_as_written = ".." not in folder.parts and folder.parent.resolve() == real_parent
    return folder.parent if is_parent_as_written else real_parent


def _is_prefix(folder: Path) -> bool:
    library_files = [file for lib in ("lib", "lib64") for file in (folder / lib).glob("python3*/os.py")]
    return bool(library_files)


def _read_home(file: Path) -> Path | None:
    with file.open(encoding="utf-8", errors="replace") as text:
        home = re.search(r"^[ \t]*home[ \t]*=[ \t]*(/.*)$", text.read(MAX_PYVENV_CHARACTERS), re.MULTILINE)
    return Path(home.group(1).strip()) if home else None


# ---- bubblewrap


def _bwrap() -> str:
    return shutil.which("bwrap") or "bwrap"


@functools.cache
def _bwrap_output(program: str, option: str) -> str:
    try:
        result = subprocess.run([program, option], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return ""
    return (result.stdout + result.stderr).strip()


def bubblewrap_version() -> str:
    """Return for example ``bubblewrap 0.8.0``; '' if bubblewrap is not installed."""
    return _bwrap_output(_bwrap(), "--version")


def unbounded(sandbox: SandboxSettings) -> dict[str, str]:
    """Return the limits that this machine cannot enforce ("pids", "memory"), each with the reason. RLIMIT_NPROC limits
    the processes of other users than root."""
    # /proc belongs to the real root. In a user namespace, st_uid is the id that this root has inside of it.
    is_root = Path("/proc").stat().st_uid == os.getuid()
    controllers = [*([confinement.PIDS] if is_root else []), *([] if sandbox.memory_gb is None else ["memory"])]
    return {controller: reason for controller in controllers if (reason := confinement.why_unbounded(controller))}
