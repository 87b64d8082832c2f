"""One virtual environment for each version of a dependency: all that the workload's interpreter sees, and that version.

Only the one package moves: it is installed without its requirements, before everything else on the import path, and
what then does not fit is a warning. Environments are kept in the cache. One that no longer is what was installed is
made again: a version measured as another is the worst error there is.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import ConfigDict, Field, ValidationError

from regbot.bisect.pip import AxisError, clean, executable, how, index_arguments, run, run_pip
from regbot.checkout.places import locked
from regbot.records.base import Record
from regbot.records.files import RecordError, read_record, write_record
from regbot.records.ledger import Message, Text

PROBE_TIMEOUT_S = 120.0
WARNINGS_KEPT = 20

_PROBE = Path(__file__).with_name("probe.py")
_COMPLAINT = re.compile(
    r"(?P<of>\S+) \S+ (requires (?P<missing>[\w.-]+)|has requirement .*, but you have (?P<unfit>[\w.-]+)"
    r"|is not supported)"
)


class VersionUnavailable(Exception):
    """This version cannot be measured here: no file of it fits, it does not build, or another one hides it.

    No usage error: the other versions can be measured. The message ends with what pip said last.
    """


@dataclass(frozen=True)
class VersionEnvironment:
    """An interpreter that sees one version of the package, and all else that the workload's interpreter sees."""

    python: str
    variables: dict[str, str]
    """For a launch, beside the interpreter: its commands first on PATH."""
    built: bool
    """Made by this call; False where an earlier one is used again."""
    build_s: float
    """What this call took to make it; 0 where an earlier one is used again."""
    installed: str
    """The version, as the environment itself tells it."""
    warnings: tuple[str, ...] = ()


class _Seen(Record):
    """What regbot/bisect/probe.py prints: trusted no more than the interpreter, but checked for its form."""

    model_config = ConfigDict(strict=False)

    executable: str
    version: str = Field(description="of Python, with its build")
    prefix: str
    venv: bool
    inherits: bool = Field(description="a virtual environment that sees its base interpreter's packages")
    site: list[str]
    scripts: list[str]
    path: list[str]
    installed: str = Field(description="version of the package; '' where it is not there")
    names: dict[str, list[str]] = Field(description="module -> where it would be imported from, first one first")
    libraries_only: bool


class _Made(Record):
    """Written when an environment is complete, beside its folder."""

    folder: str
    installed: Text
    warnings: list[Message]
    state: str = Field(description="digest of all files, by their status")


def environment_for(
    cache: Path,
    axis_package: str,
    version: str,
    python: str,
    index_options: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
    timeout_s: float = 1800,
) -> VersionEnvironment:
    """The environment of ``axis_package`` at ``version``, made now or taken from the cache.

    ``version`` is spelled as ``versions_between`` gives it, ``python`` is the workload's interpreter. Raises
    VersionUnavailable, and AxisError where no version could be installed: no such interpreter, no pip, no venv.
    """
    package = canonicalize_name(axis_package)
    options = index_arguments(index_options)
    try:
        version = str(Version(version))
    except InvalidVersion as error:
        raise AxisError(f"{package}: {clean(version)!r} is no version; write one such as 2.9.1") from error
    parent = _look(python, package)
    identity = [package, version, parent.executable, parent.prefix, parent.version, *options]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:24]
    home = cache.resolve() / "versions" / key
    marker = home / "made.json"
    build_s = 0.0
    with locked(home.with_name(f"{key}.lock"), timeout_s + PROBE_TIMEOUT_S):
        made = _reusable(home, marker, package, version)
        if reused := made is not None:
            os.utime(marker)  # for whoever drops those not used for long
        else:
            say(f"install {package} {version}")
            began = time.monotonic()
            made = _make(home, marker, parent, package, version, options, timeout_s)
            build_s = time.monotonic() - began
    folder = home / made.folder
    return VersionEnvironment(
        python=executable(folder),
        variables=_variables(folder),
        built=not reused,
        build_s=build_s,
        installed=made.installed,
        warnings=tuple(made.warnings),
    )


def hidden_by(environment: VersionEnvironment, package: str, folders: Sequence[Path]) -> str:
    """The folder or file that is imported instead of the package where ``folders`` come first on the import path.

    '' where the environment's version is imported. A checkout that brings a copy of the package hides all versions.
    """
    at = Path(environment.python).parents[1]
    seen = _look(environment.python, package, [str(folder) for folder in folders])
    return _elsewhere(seen, at) or ("" if seen.installed == environment.installed else f"version {seen.installed}")


def _look(python: str, package: str, first: Sequence[str] = ()) -> _Seen:
    ended = run(python, str(_PROBE), package, *first, timeout_s=PROBE_TIMEOUT_S)
    try:
        if ended.code != 0:
            raise ValueError(f"a look at its packages {how(ended, PROBE_TIMEOUT_S)}:\n{ended.last_lines()}")
        return _Seen.model_validate_json(ended.out)
    except ValidationError as error:
        raise AxisError(f"{python}: is no Python interpreter: it printed something else than was asked") from error
    except ValueError as error:
        raise AxisError(f"{python}: cannot be used as an interpreter of Python 3.10 or newer: {error}") from error


def _reusable(home: Path, marker: Path, package: str, version: str) -> _Made | None:
    """What is known of a complete environment that still is what was installed; else None."""
    try:
        made = read_record(marker, _Made)
        folder = home / made.folder
        if _state(folder) == made.state and not _fault(_look(executable(folder), package), folder, package, version):
            return made
    except (RecordError, AxisError):
        pass
    return None


def _make(
    home: Path, marker: Path, parent: _Seen, package: str, version: str, options: Sequence[str], timeout_s: float
) -> _Made:
    """In a folder with a new name: pip of a killed attempt may still be running, and writes where nobody looks."""
    marker.unlink(missing_ok=True)  # first: from here on it is incomplete
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True, exist_ok=True)
    folder = home / secrets.token_hex(4)
    try:
        _create(folder, parent)
        _install(folder, package, version, options, timeout_s)
        seen = _look(executable(folder), package)
        if fault := _fault(seen, folder, package, version):
            raise VersionUnavailable(fault)
        _take_over_scripts(parent, folder)
        warnings = [*_unlike(parent, seen, package), *_misfits(folder, package)][:WARNINGS_KEPT]
        made = _Made(folder=folder.name, installed=seen.installed, warnings=warnings, state=_state(folder))
        write_record(marker, made)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return made


def _create(folder: Path, parent: _Seen) -> None:
    """An environment without packages of its own, that sees what ``parent`` sees and nothing more."""
    own = ("-m", "venv", "--without-pip", *(["--system-site-packages"] if not parent.venv or parent.inherits else []))
    ended = run(parent.executable, *own, str(folder), timeout_s=PROBE_TIMEOUT_S)
    if ended.code != 0:
        raise AxisError(
            f"{parent.executable}: making a virtual environment {how(ended, PROBE_TIMEOUT_S)}; "
            f"it needs the module venv (Debian: python3-venv) and room in {folder.parent}\n{ended.last_lines()}"
        )
    if parent.venv:
        # venv goes by the base interpreter. By addsitedir, since the parent's .pth files (editable installs) count too.
        site = Path(_look(executable(folder), "pip").site[0])
        lines = [f"import site; site.addsitedir({path!r})\n" for path in parent.site]
        (site / "_regbot_parent.pth").write_text("".join(lines), encoding="utf-8")


def _install(folder: Path, package: str, version: str, options: Sequence[str], timeout_s: float) -> None:
    """By the parent's pip, run by the new interpreter, which sees it: then it installs there.

    With three equal signs: two would take 2.9.1+cpu for 2.9.1.
    """
    exactly = ("--no-deps", "--ignore-installed", "--no-user", *options, f"{package}==={version}")
    ended = run_pip(executable(folder), "install", *exactly, timeout_s=timeout_s)
    if ended.code != 0:
        raise VersionUnavailable(f"pip install {package}=={version} {how(ended, timeout_s)}\n{ended.last_lines()}")


def _fault(seen: _Seen, folder: Path, package: str, version: str) -> str:
    """Why a launch in this environment would not run ``version``; '' where it would."""
    if not seen.installed:
        return f"{package} {version} was installed, and its environment has none"
    try:
        same = Version(seen.installed) == Version(version)
    except InvalidVersion:
        same = False
    if not same:
        return f"{package} {version} was installed, but its environment has {clean(seen.installed)}, from elsewhere"
    if place := _elsewhere(seen, folder):
        return f"{package} {version} is hidden: {clean(place)} would be imported instead"
    return ""


def _elsewhere(seen: _Seen, folder: Path) -> str:
    """A place outside ``folder`` that the package would be imported from. Parts of a namespace may lie anywhere."""
    for name, places in seen.names.items():
        if not any(Path(place).is_relative_to(folder) for place in places):
            return places[0] if places else f"nothing (no module {name})"
    return ""


def _unlike(parent: _Seen, seen: _Seen, package: str) -> list[str]:
    if not parent.installed:
        return [f"{parent.executable} has no {package} that these versions replace; check the name"]
    if seen.libraries_only:
        theirs = f"{parent.installed}, which {parent.executable} has"
        return [
            (
                f"{package} is shared libraries only: others find theirs by paths of their own and may still load "
                f"{theirs}; look at what they print (for NCCL: NCCL_DEBUG=VERSION)"
            )
        ]
    return []


def _misfits(folder: Path, package: str) -> list[str]:
    """What ``pip check`` says of the package: its requirements that others do not meet, and theirs of it."""
    ended = run_pip(executable(folder), "check", timeout_s=PROBE_TIMEOUT_S)
    if ended.code not in (0, 1):
        return [f"{package}: requirements were not checked: pip check {how(ended, PROBE_TIMEOUT_S)}"]
    found = []
    for line in ended.out.splitlines():
        said = _COMPLAINT.match(line)
        if said and package in {canonicalize_name(name) for name in said.groupdict().values() if name}:
            found.append(f"requirements are not met: {clean(line)[:500]}")
    return found


def _take_over_scripts(parent: _Seen, folder: Path) -> None:
    """The parent's commands (torchrun, pytest, ...) for this interpreter; as they are, they would start the parent."""
    theirs = "|".join(re.escape(path) for path in parent.scripts)
    first = re.compile(rf"#!(?:{theirs})/python[\w.]*([^\n]*)\n".encode())
    second = re.compile(rf"(#!/bin/sh\n'''exec' )\"?(?:{theirs})/python[\w.]*\"?".encode())
    ours = os.fsencode(executable(folder))
    for path in sorted(path for scripts in parent.scripts for path in Path(scripts).glob("*")):
        own = folder / "bin" / path.name
        with contextlib.suppress(OSError):  # unreadable, or a folder: no command of ours
            if own.exists() or not _is_script(path):
                continue
            text = path.read_bytes()
            # The shell starts it: a line of #! may be too short for the path, and takes no spaces.
            new = first.sub(lambda m: b"#!/bin/sh\n'''exec' \"%s\"%s \"$0\" \"$@\"\n' '''\n" % (ours, m[1]), text, 1)
            if new == text or not first.match(text):
                new = second.sub(lambda m: b'%s"%s"' % (m[1], ours), text, 1) if second.match(text) else text
            if new != text:
                own.write_bytes(new)
                own.chmod(0o755)


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _variables(folder: Path) -> dict[str, str]:
    path = os.environ.get("PATH", os.defpath)
    return {"PATH": f"{folder / 'bin'}{os.pathsep}{path}", "VIRTUAL_ENV": str(folder)}


def _state(folder: Path) -> str:
    """A digest of all files by their status, since hashing some gigabytes at every look takes too long.

    With the time of the last status change, which nobody can set. Without compiled Python, which a first run adds.
    """
    digest = hashlib.sha256()
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    if entry.name != "__pycache__":
                        folders.append(Path(entry.path))
                    continue
                times = (status.st_mtime_ns, status.st_ctime_ns if status.st_nlink == 1 else 0)
                digest.update(f"{status.st_mode:o} {status.st_size} {times} {entry.path}\0".encode("utf-8", "replace"))
        except OSError as error:  # unreadable, or gone meanwhile: then it differs from what was there
            digest.update(f"{error.errno}\0".encode())
    return digest.hexdigest()
