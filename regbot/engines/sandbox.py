"""The sandbox for code under test: what it may see and use, told to bubblewrap and to the supervisor.

Everything is denied that is not named here: the guest sees the system's programs, its interpreter and what its launch
names, all read-only; it writes to its record folder and to a private /tmp and /dev/shm, which are file systems in
memory with a limit; it has no network, no other process, none of regbot's environment and nothing of regbot but the
guest part. What is not confined stands in docs/sandbox.md.

Paths are looked up here, on the machine that asks, and hold on nodes that are set up alike. What differs from node to
node (devices, control groups) is left to the supervisor there (``regbot.engines.confinement``).
"""

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from regbot import config
from regbot.engines import confinement
from regbot.engines.engine import EngineError, Launch

MEGABYTE = 2**20
HOME = "/tmp/home"
HOST = "sandbox"
USER = 1000
"""The guest's number inside; outside it is who started regbot."""
FILES_OF_RECORD = 20_000
FILES_PER_MB = 256
LEAST_FILES = 4096
"""Files of a room in memory, each about 1 kB of the kernel's own memory beside its content."""

SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "localtime", "alternatives", "ssl", "pki",
    "ca-certificates", "protocols", "services", "nccl.conf", "OpenCL", "os-release",
)  # fmt: skip
ETC_OF_NETWORK = ("hosts", "resolv.conf", "host.conf", "gai.conf", "libibverbs.d")
CACHES = {
    "XDG_CACHE_HOME": "cache", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda", "MPLCONFIGDIR": "matplotlib", "HF_HOME": "huggingface",
}  # fmt: skip
"""Variables that name a folder to write to, and what it is in HOME where the guest may not write to the one named."""
KERNEL = (
    "sys", "sysrq-trigger", "irq", "bus", "acpi", "fs", "scsi", "tty", "driver", "mtrr", "dynamic_debug", "asound",
    "pressure", "sysvipc",
)  # fmt: skip
"""In /proc, what is the whole machine's: made read-only, because root's files let root write without any capability."""
KERNEL_SECRETS = (
    "kcore", "keys", "kmsg", "key-users", "timer_list", "sched_debug", "latency_stats", "slabinfo", "vmallocinfo",
    "kpagecount", "kpageflags", "kpagecgroup", "iomem", "ioports",
)  # fmt: skip
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")

TRY_S = 60.0
_VERSION = re.compile(r"(\d+)\.(\d+)")


class SandboxError(EngineError):
    """A launch cannot be confined. The message says why and what to do."""


@dataclass(frozen=True)
class Sandbox:
    """What a guest may use beside what its launch names. Sizes are those of each launch on each node."""

    read: tuple[Path, ...] = ()
    """Folders and files of the operator's that guests may read: data, a CUDA toolkit in /opt."""
    write: tuple[Path, ...] = ()
    """Folders that guests may write to, and leave something for the next one."""
    network: bool = False
    """The host's network, for ranks on several nodes; else there is only a loopback of its own."""
    tmp_mb: int = 2048
    """Of /tmp, and as much again of /dev/shm."""
    disk_mb: int = 4096
    """By which folders on disk that a guest may write to may grow."""
    pids: int = 4096
    """Processes and threads at a time."""
    memory_gb: float | None = None
    build_network: bool = True
    """The host's network for build commands."""
    submodule_hosts: tuple[str, ...] = ()
    """Hosts that submodules may be fetched from, beside the repository's own. That is done outside of the sandbox."""

    @property
    def of_builds(self) -> "Sandbox":
        """The same for build commands."""
        return replace(self, network=self.build_network)


def sandbox_of(settings: config.SandboxSettings) -> Sandbox:
    """The sandbox of runs, as ``[sandbox]`` has it."""
    return Sandbox(
        read=tuple(Path(folder) for folder in settings.read),
        write=tuple(Path(folder) for folder in settings.write),
        network=settings.network,
        tmp_mb=settings.tmp_mb,
        disk_mb=settings.disk_mb,
        pids=settings.pids,
        memory_gb=settings.memory_gb,
        build_network=settings.build_network,
        submodule_hosts=tuple(settings.submodule_hosts),
    )


def confined(order: Mapping[str, Any], launch: Launch, sandbox: Sandbox) -> dict[str, Any]:
    """The order for a supervisor, with ``sandbox`` around its command. Raises SandboxError.

    ``order`` is that of the launch without a sandbox; its command may be a launcher in front of the launch's own.
    """
    record = launch.record_dir.absolute()
    for each in launch.writable:
        if each.is_symlink():
            raise SandboxError(f"{each}: is a link, which only code under test can have made; it is not followed")
    writable = _existing((*launch.writable, *sandbox.write))
    env = _environment(order["env"], sandbox, writable)
    program = _program(launch.command[0], launch.cwd, env)
    command = [str(program), *order["command"][1:]]
    words = [_bwrap(), *_namespaces(sandbox)]
    for name, value in env.items():
        words += ["--setenv", name, value]
    shown = _shown(launch, sandbox, program, env, writable)
    for bind in sorted(shown, key=lambda bind: Path(bind.target).parts):
        words += bind.words
    # The roots of what bubblewrap puts together are file systems in memory without a limit.
    words += [confinement.DEVICES, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(launch.cwd.absolute())]
    bounded = ["/usr/bin/prlimit", f"--nproc={sandbox.pids}", "--"] if Path("/usr/bin/prlimit").exists() else []
    return {
        **order,
        "command": [*words, "--", *bounded, *command],
        "cwd": "/",
        "env": {},  # a variable meant for the guest (LD_PRELOAD) must not act on bubblewrap
        "confine": {
            "rooms": {
                "record": (launch.max_dir_bytes + 4096, FILES_OF_RECORD),
                "tmp": _room(sandbox.tmp_mb),
                "shm": _room(sandbox.tmp_mb),
            },
            "files": _files(sandbox),
            "writable": [str(folder) for folder in writable if folder != record],
            "growth_bytes": sandbox.disk_mb * MEGABYTE,
            "pids": sandbox.pids,
            "memory_bytes": None if sandbox.memory_gb is None else int(sandbox.memory_gb * 2**30),
            "network": sandbox.network,
            "visible": launch.env.get(confinement.VISIBLE),
        },
    }


def _room(megabytes: int) -> tuple[int, int]:
    return megabytes * MEGABYTE, max(LEAST_FILES, megabytes * FILES_PER_MB)


def _namespaces(sandbox: Sandbox) -> list[str]:
    words = [
        "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
        "--uid", str(USER), "--gid", str(USER), "--cap-drop", "ALL", "--die-with-parent", "--new-session",
    ]  # fmt: skip
    if _knows("--disable-userns"):
        words += ["--disable-userns"]
    return words if sandbox.network else [*words, "--unshare-net", "--hostname", HOST]


def _files(sandbox: Sandbox) -> dict[str, str]:
    nobody = "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    files = {
        "passwd": f"guest:x:{USER}:{USER}:guest:{HOME}:/bin/sh\n{nobody}",
        "group": f"guest:x:{USER}:\nnogroup:x:65534:\n",
    }
    if not sandbox.network:
        files["hosts"] = f"127.0.0.1 localhost {HOST}\n::1 localhost {HOST}\n"
    return files


def _environment(given: Mapping[str, str], sandbox: Sandbox, writable: Sequence[Path]) -> dict[str, str]:
    """``given``, with every folder that the guest writes to one that it can write to."""
    changed = {"HOME": HOME, "TMPDIR": "/tmp", "USER": "guest", "LOGNAME": "guest"}
    for name, folder in CACHES.items():
        value = given.get(name)
        if value is not None and not any(Path(value).is_relative_to(each) for each in writable):
            changed[name] = f"{HOME}/{folder}"
    if not sandbox.network:
        changed |= dict.fromkeys(INTERFACES, "lo")
    return {**given, **changed}


# ---- what is shown


@dataclass(frozen=True)
class _Bind:
    """One place in the guest's tree."""

    target: str
    words: tuple[str, ...]


def _bind(source: Path | str, target: Path | str | None = None, write: bool = False, tried: bool = False) -> _Bind:
    word = ("--bind" if write else "--ro-bind") + ("-try" if tried else "")
    place = str(source if target is None else target)
    return _Bind(place, (word, str(source), place))


def _shown(
    launch: Launch, sandbox: Sandbox, program: Path, env: Mapping[str, str], writable: Sequence[Path]
) -> list[_Bind]:
    """Everything that the guest sees. Of two binds for one place the later one holds."""
    rooms = launch.record_dir.absolute()
    own = _existing((launch.cwd, *launch.readable))
    checkout = [*own, *_existing(launch.writable)]
    readable = [*_interpreters(program, launch.command, env, checkout, sandbox), *own, *_existing(sandbox.read)]
    binds = {bind.target: bind for bind in _system(sandbox)}
    binds |= {name: _bind(rooms / room, name, write=True) for name, room in (("/tmp", "tmp"), ("/dev/shm", "shm"))}
    binds[HOME] = _Bind(HOME, ("--dir", HOME))
    binds |= {name: _bind(rooms / "files" / file, name) for name, file in _etc_files(sandbox).items()}
    binds |= {str(path): _bind(path) for each in readable for path in _names(each)}
    binds |= {str(path): _bind(path, write=True) for each in writable for path in _names(each)}
    if any(launch.log.absolute().is_relative_to(folder) for folder in writable):
        binds[str(launch.log.parent.absolute())] = _bind(launch.log.parent.absolute())
    binds |= {bind.target: bind for bind in _harness([Path("/usr"), *readable, *writable])}
    binds |= {str(path): _bind(rooms / "record", path, write=True) for path in _names(rooms)}
    return list(binds.values())


def _system(sandbox: Sandbox) -> Iterator[_Bind]:
    yield _bind("/usr")
    for name in SYSTEM:
        place = Path("/", name)
        if place.is_symlink():
            yield _Bind(str(place), ("--symlink", str(place.readlink()), str(place)))
        elif place.exists():
            yield _bind(place)
    for name in (*ETC, *(ETC_OF_NETWORK if sandbox.network else ())):
        yield _bind(Path("/etc", name), tried=True)
    for place in Path("/etc").glob("python3*"):
        yield _bind(place)
    yield _bind("/sys")
    yield _Bind("/proc", ("--proc", "/proc"))
    for name in KERNEL:
        yield _bind(Path("/proc", name), tried=True)
    for name in KERNEL_SECRETS:
        if Path("/proc", name).exists():
            yield _bind("/dev/null", Path("/proc", name))
    yield _Bind("/dev", ("--dev", "/dev"))


def _etc_files(sandbox: Sandbox) -> dict[str, str]:
    return {f"/etc/{name}": name for name in _files(sandbox)}


def _names(path: Path) -> tuple[Path, ...]:
    """``path`` as it is written, and as it is with its links followed: programs use either."""
    return tuple(dict.fromkeys((path, path.resolve())))


def _existing(paths: Iterable[Path]) -> list[Path]:
    """Absolute, without what is not there; nothing may be the whole system."""
    found = [path.absolute() for path in paths if path.exists()]
    for path in found:
        if path.resolve() == Path("/"):
            raise SandboxError("a sandbox that shows the whole system (/) is none; name the folders that are needed")
    return found


def _harness(shown: Iterable[Path]) -> list[_Bind]:
    """Regbot's own code out of sight where it lies in something that is shown, but for its guest part."""
    package = Path(str(resources.files("regbot"))).absolute()
    guest = package / "guest"
    hidden = [
        place
        for place in _names(package)
        if any(place.is_relative_to(name) for folder in shown for name in _names(folder) if not _within(folder, guest))
    ]
    masks = [_Bind(str(place), ("--tmpfs", str(place))) for place in hidden]
    return [*masks, *(_bind(path) for path in _names(guest))]


def _within(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


# ---- interpreters


def _program(name: str, cwd: Path, env: Mapping[str, str]) -> Path:
    """The program that ``name`` is for the guest."""
    if "/" in name:
        found = Path(name) if Path(name).is_absolute() else cwd / name
        if found.exists():
            return found.absolute()
    elif (on_path := shutil.which(name, path=env.get("PATH", os.defpath))) is not None:
        return Path(on_path).absolute()
    raise SandboxError(
        f"{name}: could not be started in {cwd}: no such file; check the interpreter and the build commands of this "
        "workload in regbot.toml"
    )


def _interpreters(
    program: Path, command: Sequence[str], env: Mapping[str, str], checkout: Sequence[Path], sandbox: Sandbox
) -> list[Path]:
    """The folders of every interpreter that the command may start: itself, one it names, what PATH has.

    Raises SandboxError where the interpreter stands on one that the operator has not named: a change may make an
    environment in its checkout that points at any folder of the machine, and so ask to be shown it.
    """
    found: list[Path] = []
    others = [Path(word) for word in command[1:] if word.startswith("/") and os.access(word, os.X_OK)]
    on_path = [shutil.which(name, path=env.get("PATH", os.defpath)) for name in ("python3", "python")]
    for each in (program, *others, *(Path(path).absolute() for path in on_path if path is not None)):
        if each.is_dir():
            continue
        for root in _roots(each):
            own = any(_within(each.parent, folder) for folder in checkout)
            if any(_within(root, folder) for folder in (Path("/usr"), *checkout, *sandbox.read)):
                continue
            if not own or _within(root, Path(sys.base_prefix)) or _within(root, Path(sys.prefix)):
                found.append(root)
            elif each == program:
                raise SandboxError(
                    f"{each} stands on an interpreter in {root}, which a sandbox does not show to a checkout's own "
                    f"environment; name it in regbot.toml: [sandbox] read = ['{root}']"
                )
    if not _seen(program, [Path("/usr"), *SYSTEM_FOLDERS, *found, *checkout, *sandbox.read, *sandbox.write]):
        raise SandboxError(
            f"{program} is in no folder that a sandbox shows; name its folder in regbot.toml: [sandbox] read = [...]"
        )
    return list(dict.fromkeys(found))


SYSTEM_FOLDERS = tuple(Path("/", name) for name in SYSTEM)


def _seen(program: Path, folders: Iterable[Path]) -> bool:
    return any(program.is_relative_to(folder) or _within(program, folder) for folder in folders)


def _roots(program: Path) -> list[Path]:
    """The prefixes of Python that ``program`` stands on: along its links, and what its environment was made from."""
    roots: list[Path] = []
    place = program
    for _ in range(40):
        prefix = _prefix(place.parent)
        if (prefix / "pyvenv.cfg").is_file():
            home = _home_of(prefix / "pyvenv.cfg")
            roots += [prefix, *([_prefix(home)] if home is not None and _is_prefix(_prefix(home)) else [])]
        elif _is_prefix(prefix):
            roots.append(prefix)
        if not place.is_symlink():
            break
        place = place.parent / place.readlink()
    home_folder = Path.home().resolve()
    return [root for root in dict.fromkeys(roots) if not home_folder.is_relative_to(root.resolve())]


def _prefix(folder: Path) -> Path:
    """What a folder of programs stands in, as it is written where that is the same place: /bin may be /usr/bin."""
    real = folder.resolve().parent
    return folder.parent if ".." not in folder.parts and folder.parent.resolve() == real else real


def _is_prefix(folder: Path) -> bool:
    return any(next((folder / lib).glob("python3*/os.py"), None) is not None for lib in ("lib", "lib64"))


def _home_of(file: Path) -> Path | None:
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "home" and value.strip().startswith("/"):
            return Path(value.strip())
    return None


# ---- bubblewrap


def _bwrap() -> str:
    return shutil.which("bwrap") or "bwrap"


@functools.cache
def _knows(option: str) -> bool:
    try:
        told = subprocess.run([_bwrap(), "--help"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return False
    return option in told.stdout + told.stderr


def version() -> str:
    """``bubblewrap 0.8.0``; '' where there is none."""
    try:
        told = subprocess.run([_bwrap(), "--version"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return ""
    return told.stdout.strip()


def unbounded(sandbox: Sandbox) -> list[str]:
    """What this machine does not bound though it is asked to, each with the reason.

    For processes there is a second way, RLIMIT_NPROC, which does not bind root, be it root of a namespace above.
    """
    root = Path("/proc").stat().st_uid == os.getuid()
    found = confinement.unbounded(memory=sandbox.memory_gb is not None)
    return [why for why in found if root or not why.startswith("pids")]
