"""Virtual environments of a dependency axis: one for each version of the dependency.

Each environment contains one version of the dependency, and sees all other packages of the workload's interpreter. The
dependency is installed without its requirements and comes first on the import path, so that no other package changes.
Unmet requirements become warnings.

Environments are cached. If the files of an environment have changed since the installation, it is built again.
Otherwise another version could be measured under the name of this one.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import ConfigDict, Field, ValidationError

from regbot.bisect.pip import (
    AxisError,
    clean_output,
    describe_end,
    executable,
    index_arguments,
    run_interpreter,
    run_pip,
)
from regbot.checkout.cache import lock
from regbot.records.base import Record
from regbot.records.files import RecordError, read_record, write_record
from regbot.records.ledger import Message, Text
from regbot.text.clip import clip_label

PROBE_TIMEOUT_S = 120.0
MAX_WARNINGS = 20

_PROBE = Path(__file__).with_name("probe.py")
_PIP_COMPLAINT = re.compile(
    r"(?P<package>\S+) \S+ (requires (?P<missing>[\w.-]+)|has requirement .*, but you have (?P<unfit>[\w.-]+)"
    r"|is not supported)"
)


class VersionUnavailable(Exception):
    """A version that cannot be measured here.

    Either the index has no file of the version that fits the interpreter, or the version does not build, or another
    version hides it.

    This is not a usage error, because the other versions can still be measured. The message ends with the last output
    of pip.
    """


@dataclass(frozen=True)
class VersionEnvironment:
    """A virtual environment with one version of the package and the other packages of the workload's interpreter."""

    python: str
    variables: dict[str, str]
    """Environment variables of a launch. They put the commands of the environment first on PATH."""
    built: bool
    """True if this call built the environment, False if the environment comes from the cache."""
    build_s: float
    """Seconds that this call took to build the environment; 0 if it comes from the cache."""
    installed: str
    """The version of the package that the interpreter of the environment reports."""
    warnings: tuple[str, ...] = ()


class _InterpreterReport(Record):
    """Output of regbot/bisect/probe.py.

    The interpreter under test writes the output. regbot checks its form, but cannot check that its content is true.
    """

    model_config = ConfigDict(strict=False)

    executable: str
    version: str = Field(description="version and build of Python")
    prefix: str
    venv: bool
    inherits: bool = Field(description="whether a virtual environment sees the packages of its base interpreter")
    site: list[str]
    scripts: list[str]
    path: list[str]
    installed: str = Field(description="version of the package; '' if it is not installed")
    names: dict[str, list[str]] = Field(description="module -> places from which it would be imported, in import order")
    libraries_only: bool


class _EnvironmentRecord(Record):
    """Record of a complete environment, in a file beside the folder of the environment."""

    folder: str
    installed: Text
    warnings: list[Message]
    state: str = Field(description="digest of all files, by their status")


def provide_environment(
    cache: Path,
    axis_package: str,
    version: str,
    python: str,
    index_options: Sequence[str] = (),
    *,
    timeout_s: float = 1800,
) -> VersionEnvironment:
    """Return the environment of ``axis_package`` at ``version``, newly built or from the cache.

    ``version`` is spelled as ``versions_between`` returns it. ``python`` is the workload's interpreter. Raises
    VersionUnavailable if this version cannot be installed. Raises AxisError if no version can be installed, because the
    interpreter, pip or venv is missing.
    """
    package = canonicalize_name(axis_package)
    options = index_arguments(index_options)
    try:
        version = str(Version(version))
    except InvalidVersion as error:
        raise AxisError(f"{package}: {clean_output(version)!r} is not a version", "write one such as 2.9.1") from error
    parent = _run_probe(python, package)
    identity = [package, version, parent.executable, parent.prefix, parent.version, *options]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:24]
    home = cache.resolve() / "versions" / key
    marker = home / "made.json"
    build_s = 0.0
    with lock(home.with_name(f"{key}.lock"), timeout_s + PROBE_TIMEOUT_S):
        record = _load_reusable(home, marker, package, version)
        if reused := record is not None:
            os.utime(marker)  # mark it as recently used, for a clean-up of the cache
        else:
            start = time.monotonic()
            record = _build_environment(home, marker, parent, package, version, options, timeout_s=timeout_s)
            build_s = time.monotonic() - start
    folder = home / record.folder
    return VersionEnvironment(
        python=executable(folder),
        variables=_launch_variables(folder),
        built=not reused,
        build_s=build_s,
        installed=record.installed,
        warnings=tuple(record.warnings),
    )


def find_shadowing(environment: VersionEnvironment, package: str, folders: Sequence[Path]) -> str:
    """Return the file, folder or version that is imported instead of the environment's version; '' if there is none.

    ``folders`` come first on the import path of a launch. If a checkout contains a copy of the package, the copy hides
    all versions.
    """
    environment_folder = Path(environment.python).parents[1]
    report = _run_probe(environment.python, package, [str(folder) for folder in folders])
    return _shadowing_place(report, environment_folder) or (
        "" if report.installed == environment.installed else f"version {report.installed}"
    )


def _run_probe(python: str, package: str, first_folders: Sequence[str] = ()) -> _InterpreterReport:
    result = run_interpreter(python, str(_PROBE), package, *first_folders, timeout_s=PROBE_TIMEOUT_S)
    try:
        if result.code != 0:
            raise ValueError(
                f"the probe of its packages {describe_end(result, PROBE_TIMEOUT_S)}:\n{result.last_lines()}"
            )
        return _InterpreterReport.model_validate_json(result.out)
    except ValidationError as error:
        raise AxisError(f"{python}: is not a Python interpreter: the probe's output is invalid") from error
    except ValueError as error:
        raise AxisError(f"{python}: cannot be used as an interpreter of Python 3.10 or newer: {error}") from error


def _load_reusable(home: Path, marker: Path, package: str, version: str) -> _EnvironmentRecord | None:
    """Return the record of a complete environment that works and whose files are unchanged; otherwise None."""
    try:
        record = read_record(marker, _EnvironmentRecord)
        folder = home / record.folder
        if _status_digest(folder) == record.state and not _find_fault(
            _run_probe(executable(folder), package), folder, package, version
        ):
            return record
    except (RecordError, AxisError):
        pass
    return None


def _build_environment(
    home: Path,
    marker: Path,
    parent: _InterpreterReport,
    package: str,
    version: str,
    options: Sequence[str],
    *,
    timeout_s: float,
) -> _EnvironmentRecord:
    """Build the environment in a folder with a new name.

    The new name is needed because pip of a killed attempt may still be running. That pip writes into the old folder,
    which nothing reads.
    """
    marker.unlink(missing_ok=True)  # first, because the environment is incomplete from here on
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True, exist_ok=True)
    folder = home / secrets.token_hex(4)
    try:
        _create_environment(folder, parent)
        _install_package(folder, package, version, options, timeout_s=timeout_s)
        report = _run_probe(executable(folder), package)
        if fault := _find_fault(report, folder, package, version):
            raise VersionUnavailable(fault)
        _copy_scripts(parent, folder)
        warnings = [*_package_warnings(parent, report, package), *_requirement_warnings(folder, package)][:MAX_WARNINGS]
        record = _EnvironmentRecord(
            folder=folder.name, installed=report.installed, warnings=warnings, state=_status_digest(folder)
        )
        write_record(marker, record)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return record


def _create_environment(folder: Path, parent: _InterpreterReport) -> None:
    """Create an environment without packages of its own that sees exactly what ``parent`` sees."""
    arguments = (
        "-m",
        "venv",
        "--without-pip",
        *(["--system-site-packages"] if not parent.venv or parent.inherits else []),
    )
    result = run_interpreter(parent.executable, *arguments, str(folder), timeout_s=PROBE_TIMEOUT_S)
    if result.code != 0:
        raise AxisError(
            f"{parent.executable}: creating a virtual environment {describe_end(result, PROBE_TIMEOUT_S)}",
            f"it needs the module venv (Debian: python3-venv) and free space in {folder.parent}\n{result.last_lines()}",
        )
    if parent.venv:
        # venv only adds the packages of the base interpreter. addsitedir also reads the parent's .pth files (editable
        # installs).
        site = Path(_run_probe(executable(folder), "pip").site[0])
        lines = [f"import site; site.addsitedir({path!r})\n" for path in parent.site]
        (site / "_regbot_parent.pth").write_text("".join(lines), encoding="utf-8")


def _install_package(folder: Path, package: str, version: str, options: Sequence[str], timeout_s: float) -> None:
    """Install the package into the environment in ``folder``.

    The environment has no pip of its own. It sees the pip of the parent interpreter, and pip installs into the
    environment of the interpreter that runs it. The requirement has three equal signs, because ``==2.9.1``
    would also accept 2.9.1+cpu.
    """
    arguments = ("--no-deps", "--ignore-installed", "--no-user", *options, f"{package}==={version}")
    result = run_pip(executable(folder), "install", *arguments, timeout_s=timeout_s)
    if result.code != 0:
        raise VersionUnavailable(
            f"pip install {package}=={version} {describe_end(result, timeout_s)}\n{result.last_lines()}"
        )


def _find_fault(report: _InterpreterReport, folder: Path, package: str, version: str) -> str:
    """Return why a launch in this environment would not import ``version``; '' if it would import this version."""
    if not report.installed:
        return f"{package} {version} was installed, but the environment does not contain the package"
    try:
        is_same = Version(report.installed) == Version(version)
    except InvalidVersion:
        is_same = False
    if not is_same:
        return f"{package} {version} was installed, but {clean_output(report.installed)} is imported from elsewhere"
    if place := _shadowing_place(report, folder):
        return f"{package} {version} is hidden: {clean_output(place)} would be imported instead"
    return ""


def _shadowing_place(report: _InterpreterReport, folder: Path) -> str:
    """Return a place outside ``folder`` that the package would be imported from; '' if there is none.

    A namespace package can have several places. It is enough if one of them lies in ``folder``.
    """
    for name, places in report.names.items():
        if not any(Path(place).is_relative_to(folder) for place in places):
            return places[0] if places else f"nothing (no module {name})"
    return ""


def _package_warnings(parent: _InterpreterReport, report: _InterpreterReport, package: str) -> list[str]:
    if not parent.installed:
        return [f"{parent.executable} has no {package} that these versions could replace; check the name"]
    if report.libraries_only:
        parent_version = f"{parent.installed}, which {parent.executable} has"
        return [
            (
                f"{package} has shared libraries only: other packages find them by their own paths and may still load "
                f"{parent_version}; check the version in their output (for NCCL: NCCL_DEBUG=VERSION)"
            )
        ]
    return []


def _requirement_warnings(folder: Path, package: str) -> list[str]:
    """Return the unmet requirements that ``pip check`` reports.

    Only two kinds are returned: requirements of ``package``, and requirements of other packages on ``package``.
    """
    result = run_pip(executable(folder), "check", timeout_s=PROBE_TIMEOUT_S)
    if result.code not in (0, 1):
        return [f"{package}: its requirements were not checked: pip check {describe_end(result, PROBE_TIMEOUT_S)}"]
    warnings = []
    for line in result.out.splitlines():
        complaint = _PIP_COMPLAINT.match(line)
        if complaint and package in {canonicalize_name(name) for name in complaint.groupdict().values() if name}:
            warnings.append(f"requirements are not met: {clip_label(clean_output(line))}")
    return warnings


def _copy_scripts(parent: _InterpreterReport, folder: Path) -> None:
    """Copy the parent's commands (torchrun, pytest, ...) and let the copies start the interpreter of
    this environment.
    """
    parent_folders = "|".join(re.escape(path) for path in parent.scripts)
    shebang = re.compile(rf"#!(?:{parent_folders})/python[\w.]*([^\n]*)\n".encode())
    shell_wrapper = re.compile(rf"(#!/bin/sh\n'''exec' )\"?(?:{parent_folders})/python[\w.]*\"?".encode())
    interpreter = os.fsencode(executable(folder))
    for path in sorted(path for scripts in parent.scripts for path in Path(scripts).glob("*")):
        copy = folder / "bin" / path.name
        with contextlib.suppress(OSError):  # an unreadable file or a folder is not a command
            if copy.exists() or not _is_script(path):
                continue
            text = path.read_bytes()
            # Start the interpreter through the shell: the path in a ``#!`` line must not contain spaces and must not be
            # too long.
            new_text = shebang.sub(
                lambda match: b"#!/bin/sh\n'''exec' \"%s\"%s \"$0\" \"$@\"\n' '''\n" % (interpreter, match[1]), text, 1
            )
            if new_text == text or not shebang.match(text):
                new_text = (
                    shell_wrapper.sub(lambda match: b'%s"%s"' % (match[1], interpreter), text, 1)
                    if shell_wrapper.match(text)
                    else text
                )
            if new_text != text:
                copy.write_bytes(new_text)
                copy.chmod(0o755)


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _launch_variables(folder: Path) -> dict[str, str]:
    path = os.environ.get("PATH", os.defpath)
    return {"PATH": f"{folder / 'bin'}{os.pathsep}{path}", "VIRTUAL_ENV": str(folder)}


def _status_digest(folder: Path) -> str:
    """Return a digest of the status of all files. Hashing gigabytes of content at every use would take too long.

    The digest includes the time of the last status change, which a program cannot set. It excludes compiled Python
    files, because a first run adds them.
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
        except OSError as error:  # if a file is unreadable or was just deleted, the digest differs
            digest.update(f"{error.errno}\0".encode())
    return digest.hexdigest()
