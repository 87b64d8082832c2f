"""Virtual environments of a dependency axis: one for each version of the dependency.

Each environment contains one version of the dependency, and sees all other packages of the workload's interpreter. The
dependency is installed without its requirements and comes first on the import path, so that no other package changes.
Unmet requirements become warnings.

Environments are cached. If the files of an environment have changed since the installation, it is built again, because
it may now contain another version.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
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
from regbot.removal import discard_folder
from regbot.text.clip import clip_label

PROBE_TIMEOUT_S = 120.0
MAX_WARNINGS = 20

_PROBE = Path(__file__).with_name("probe.py")
"""Program that reports which packages an interpreter sees. The interpreter under test runs it."""
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
    """Path of the environment's own interpreter."""
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
    """Output of ``probe.py``, which the interpreter under test runs.

    regbot checks the form of the output, but cannot check that its content is true.
    """

    model_config = ConfigDict(strict=False)

    executable: str
    version: str = Field(description="version and build of Python")
    prefix: str = Field(description="sys.prefix, the folder of the interpreter's environment")
    venv: bool = Field(description="whether the interpreter belongs to a virtual environment")
    inherits: bool = Field(description="whether a virtual environment sees the packages of its base interpreter")
    site: list[str] = Field(description="folders of its packages")
    scripts: list[str] = Field(description="folders of its commands, such as torchrun")
    path: list[str] = Field(description="sys.path")
    installed: str = Field(description="version of the package; '' if it is not installed")
    names: dict[str, list[str]] = Field(description="module -> locations that it would be imported from, in order")
    libraries_only: bool = Field(description="whether the package has shared libraries and no Python code")


class _EnvironmentRecord(Record):
    """Record of a complete environment, in a file beside the folder of the environment."""

    folder: str = Field(description="name of the environment's folder")
    installed: Text = Field(description="installed version of the package")
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

    ``version`` is text such as "2.9.1+cpu". ``python`` is the workload's interpreter. ``index_options`` are options of
    pip, and ``timeout_s`` limits the installation. Raises VersionUnavailable if this version cannot be installed.
    Raises AxisError if no version can be installed, because the interpreter, pip or venv is missing.
    """
    package = canonicalize_name(axis_package)
    options = index_arguments(index_options)
    try:
        version = str(Version(version))
    except InvalidVersion as error:
        raise AxisError(f"{package}: {clean_output(version)!r} is not a version", "write one such as 2.9.1") from error
    parent = _run_probe(python, package)  # the workload's interpreter, whose packages the environment sees
    identity = [package, version, parent.executable, parent.prefix, parent.version, *options]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:24]
    home = cache.resolve() / "versions" / key
    marker = home / "made.json"  # the record of the environment; it exists only if the environment is complete
    build_s = 0.0
    with lock(home.with_name(f"{key}.lock"), timeout_s + PROBE_TIMEOUT_S):
        record = _load_reusable(home, marker, package, version)
        is_reused = record is not None
        if record is not None:
            os.utime(marker)  # mark it as recently used, for a clean-up of the cache
        else:
            start = time.monotonic()
            record = _build_environment(home, marker, parent, package, version, options, timeout_s=timeout_s)
            build_s = time.monotonic() - start
    folder = home / record.folder
    return VersionEnvironment(
        python=executable(folder),
        variables=_launch_variables(folder),
        built=not is_reused,
        build_s=build_s,
        installed=record.installed,
        warnings=tuple(record.warnings),
    )


def find_shadowing(environment: VersionEnvironment, package: str, folders: Sequence[Path]) -> str:
    """Return the file, folder or version that is imported instead of the environment's version; '' if there is none.

    ``folders`` are the source folders of a checkout, which come first on the import path of a launch. If one of them
    contains a copy of the package, the copy hides all versions.
    """
    environment_folder = Path(environment.python).parents[1]
    report = _run_probe(environment.python, package, [str(folder) for folder in folders])
    if location := _shadowing_location(report, environment_folder):
        return location
    return "" if report.installed == environment.installed else f"version {report.installed}"


def _run_probe(python: str, package: str, first_folders: Sequence[str] = ()) -> _InterpreterReport:
    """Return what an interpreter reports about its packages. ``first_folders`` are put first on its import path.

    Raises AxisError if the interpreter cannot run the probe.
    """
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
    """Return the record of a complete environment that works and whose files are unchanged; otherwise None.

    ``home`` is the folder of this version in the cache. The file ``marker`` has the record.
    """
    try:
        record = read_record(marker, _EnvironmentRecord)
        folder = home / record.folder
        if _status_digest(folder) != record.state:
            return None
        report = _run_probe(executable(folder), package)
    except (RecordError, AxisError):
        return None
    has_fault = _find_fault(report, folder, package, version) != ""
    return None if has_fault else record


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
    """Build the environment in a new folder below ``home``, and write its record to the file ``marker``.

    ``parent`` is the report of the workload's interpreter. ``home`` is the folder of this version in the cache.

    The folder gets a new name, because the pip of an attempt that was killed may still be running. It then writes into
    the old folder, which nothing reads. Raises VersionUnavailable if the version cannot be installed.
    """
    marker.unlink(missing_ok=True)  # first, because the environment is incomplete from here on
    discard_folder(home)
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
        discard_folder(folder)
        raise
    return record


def _create_environment(folder: Path, parent: _InterpreterReport) -> None:
    """Create an environment without packages of its own that sees exactly what the workload's interpreter sees.

    ``parent`` is the report of the workload's interpreter.
    """
    sees_base_packages = not parent.venv or parent.inherits
    options = ["--without-pip", *(["--system-site-packages"] if sees_base_packages else [])]
    result = run_interpreter(parent.executable, "-m", "venv", *options, str(folder), timeout_s=PROBE_TIMEOUT_S)
    if result.code != 0:
        raise AxisError(
            f"{parent.executable}: creating a virtual environment {describe_end(result, PROBE_TIMEOUT_S)}",
            f"it needs the module venv (Debian: python3-venv) and free space in {folder.parent}\n{result.last_lines()}",
        )
    if parent.venv:
        # The new environment sees the packages of the base interpreter, but not those of the parent environment. A .pth
        # file adds them. addsitedir also reads the .pth files of the parent, which make editable installs visible.
        new_site = Path(_run_probe(executable(folder), "pip").site[0])
        lines = [f"import site; site.addsitedir({path!r})\n" for path in parent.site]
        (new_site / "_regbot_parent.pth").write_text("".join(lines), encoding="utf-8")


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
    """Return why a launch in this environment would not import ``version``; '' if it would import this version.

    ``report`` is what the environment's interpreter reports, and ``folder`` is the folder of the environment.
    """
    if not report.installed:
        return f"{package} {version} was installed, but the environment does not contain the package"
    try:
        is_same = Version(report.installed) == Version(version)
    except InvalidVersion:
        is_same = False
    if not is_same:
        return f"{package} {version} was installed, but {clean_output(report.installed)} is imported from elsewhere"
    if location := _shadowing_location(report, folder):
        return f"{package} {version} is hidden: {clean_output(location)} would be imported instead"
    return ""


def _shadowing_location(report: _InterpreterReport, folder: Path) -> str:
    """Return where the first module comes from that does not come from ``folder``; '' if all modules come from it.

    A namespace package can have several locations. It comes from ``folder`` if at least one of them lies in ``folder``.
    If the module does not exist at all, the result says so.
    """
    for name, locations in report.names.items():
        if not any(Path(location).is_relative_to(folder) for location in locations):
            return locations[0] if locations else f"nothing (no module {name})"
    return ""


def _package_warnings(parent: _InterpreterReport, report: _InterpreterReport, package: str) -> list[str]:
    """Return a warning if the versions under test may have no effect.

    That is so if the workload's interpreter has no such package, or if the package has shared libraries only.
    ``parent`` is the report of the workload's interpreter, and ``report`` that of the new environment's interpreter.
    """
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
    if result.code not in (0, 1):  # 1 means that pip found unmet requirements
        return [f"{package}: its requirements were not checked: pip check {describe_end(result, PROBE_TIMEOUT_S)}"]
    warnings = []
    for line in result.out.splitlines():
        complaint = _PIP_COMPLAINT.match(line)
        if complaint is None:
            continue
        named_packages = {canonicalize_name(name) for name in complaint.groupdict().values() if name}
        if package in named_packages:
            warnings.append(f"requirements are not met: {clip_label(clean_output(line))}")
    return warnings


def _copy_scripts(parent: _InterpreterReport, folder: Path) -> None:
    """Copy commands (torchrun, pytest, ...) from the workload's interpreter, so that the copies start the interpreter
    of this environment.

    ``parent`` is the report of the workload's interpreter. Only scripts that start that interpreter are copied. pip
    writes two kinds of them: those whose ``#!`` line names the interpreter, and those that start the interpreter
    through the shell.
    """
    parent_folders = "|".join(re.escape(path) for path in parent.scripts)
    shebang = re.compile(rf"#!(?:{parent_folders})/python[\w.]*([^\n]*)\n".encode())
    shell_wrapper = re.compile(rf"(#!/bin/sh\n'''exec' )\"?(?:{parent_folders})/python[\w.]*\"?".encode())
    interpreter = os.fsencode(executable(folder))
    scripts = sorted(path for scripts_folder in parent.scripts for path in Path(scripts_folder).glob("*"))
    for path in scripts:
        copy = folder / "bin" / path.name
        with contextlib.suppress(OSError):  # an unreadable file or a folder is not a command
            if copy.exists() or not _is_script(path):
                continue
            text = path.read_bytes()
            if first_line := shebang.match(text):
                # Start the interpreter through the shell, because a path in a ``#!`` line must not contain spaces and
                # must not be too long. ``first_line[1]`` has the options after the old path of the interpreter.
                new_start = b"#!/bin/sh\n'''exec' \"%s\"%s \"$0\" \"$@\"\n' '''\n" % (interpreter, first_line[1])
                new_text = new_start + text[first_line.end() :]
            elif wrapper := shell_wrapper.match(text):
                new_text = b'%s"%s"' % (wrapper[1], interpreter) + text[wrapper.end() :]
            else:
                continue
            if new_text != text:
                copy.write_bytes(new_text)
                copy.chmod(0o755)


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _launch_variables(folder: Path) -> dict[str, str]:
    """Return the variables that activate the environment in ``folder``."""
    path = os.environ.get("PATH", os.defpath)
    return {"PATH": f"{folder / 'bin'}{os.pathsep}{path}", "VIRTUAL_ENV": str(folder)}


def _status_digest(folder: Path) -> str:
    """Return a digest of the status of all files. Hashing gigabytes of content at every use would take too long.

    The digest includes the time of the last status change (ctime), which a program cannot set. It leaves this time out
    for files with several hard links, because every new link to a file changes it too. Compiled Python files are left
    out, because a first run adds them.
    """
    digest = hashlib.sha256()
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as listing:
                files = sorted(listing, key=lambda file: file.name)
            for file in files:
                status = file.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    if file.name != "__pycache__":
                        folders.append(Path(file.path))
                    continue
                has_one_link = status.st_nlink == 1
                times = (status.st_mtime_ns, status.st_ctime_ns if has_one_link else 0)
                digest.update(f"{status.st_mode:o} {status.st_size} {times} {file.path}\0".encode("utf-8", "replace"))
        except OSError as error:  # if a file is unreadable or was just deleted, the digest differs
            digest.update(f"{error.errno}\0".encode())
    return digest.hexdigest()
