"""Versions of a dependency, each installed into a folder of its own in the cache.

pip installs a version without its requirements (``pip install --target``). A launch finds the folder through
PYTHONPATH, before the packages of the workload's interpreter. So no other package changes, and programs such as
torchrun import the version too. Unmet requirements become warnings.

The user's configuration of pip says where packages come from: private indexes, proxies, folders of wheels.
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from regbot.engines.removal import remove_folder
from regbot.records.config import ConfigError
from regbot.records.text.clip import clip, clip_label
from regbot.records.text.printable import printable
from regbot.workloads.checkout.cache import lock
from regbot.workloads.checkout.git import without_credentials

INSTALL_TIMEOUT_S = 1800.0
PROBE_TIMEOUT_S = 120.0

_REMOVED_VARIABLES = frozenset({
    "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON", "PIP_REQUIREMENT", "PIP_EDITABLE",
    "PIP_CONSTRAINT", "PIP_DRY_RUN", "PIP_REPORT", "PIP_QUIET", "PIP_VERBOSE", "PIP_LOG",
    "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONSAFEPATH",
})  # fmt: skip
"""Environment variables that pip must not see. For example, a vendor's container may set a constraint file that pins
the version under test.
"""

_PROBE = """
import importlib.metadata, importlib.util, json, re, sys
package, *sys.path[:1] = sys.argv[1:]
files = importlib.metadata.distribution(package).files or []
code = {file.parts[0].removesuffix(".py") for file in files if file.suffix == ".py" and file.name != "__init__.py"}
code |= {file.parts[0].partition(".")[0] for file in files if file.suffix == ".so" and len(file.parts) == 1}
code |= {file.parts[0] for file in files if file.name == "__init__.py" and file.size and len(file.parts) == 2}
code -= {"test", "tests", "doc", "docs", "example", "examples", "benchmarks", "scripts", "tools"}
names = {name for name in code if name.isidentifier()}
names = {name for name in names if re.sub("[-_.]+", "-", name).lower() == package} or names
specs = {name: importlib.util.find_spec(name) for name in names}
places = {
    name: ([spec.origin] if spec.origin else list(spec.submodule_search_locations or [])) if spec else []
    for name, spec in specs.items()
}
print(json.dumps({"version": importlib.metadata.version(package), "places": places}))
"""
"""Program that prints which version of a package an interpreter sees, and from where it would import the package's
top-level modules. The arguments are the package and folders that come first on the import path. Folders that several
packages install by mistake, such as ``tests``, are left out.
"""


class AxisError(ConfigError):
    """A usage error: the requested versions cannot be searched."""


class VersionUnavailable(Exception):
    """A version that cannot be measured here, because it does not install or would not be imported. The other versions
    can still be measured."""


@dataclass(frozen=True)
class PipResult:
    """How a run of an interpreter ended."""

    code: int | None
    """Exit code; None if the run timed out."""
    out: str
    error: str

    def last_lines(self, count: int = 12) -> str:
        """Return the last lines of the output: indented, printable, without credentials in URLs."""
        lines = [clean_output(line) for line in f"{self.out}\n{self.error}".splitlines()]
        last_lines = [line for line in lines if line.strip()][-count:]
        return "\n".join(f"  {clip(line, 300)}" for line in last_lines) or "  (it printed nothing)"


@dataclass(frozen=True)
class VersionFolder:
    """A version of the package, installed into a folder."""

    folder: Path
    python: str
    """The interpreter it is installed for: a name or an absolute path."""
    built: bool
    """Whether this call installed the version, and did not find it in the cache."""
    warnings: tuple[str, ...] = ()

    def variables(self, import_path: str = "") -> dict[str, str]:
        """Return the environment variables of a launch with this version. ``import_path`` is the launch's own
        PYTHONPATH. A command's ``python`` is the interpreter that the version is installed for."""
        beside_python = [str(Path(self.python).parent)] if "/" in self.python else []
        on_path = [str(self.folder / "bin"), *beside_python, os.environ.get("PATH", os.defpath)]
        return {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(self.folder), import_path))),
            "PATH": os.pathsep.join(on_path),
        }


def provide_version(cache: Path, package: str, version: str, python: str) -> VersionFolder:
    """Return the folder of ``package`` at ``version`` for ``python``, newly installed or from the cache.

    Raises VersionUnavailable if this version cannot be installed, and AxisError if no version can be installed.
    """
    identity = [package, version, python, _run(python, "-VV", timeout_s=PROBE_TIMEOUT_S).out]
    home = cache.resolve() / "versions" / hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:24]
    warnings_file = home / "warnings.json"  # exists only if the installation is complete
    with lock(home.with_name(f"{home.name}.lock"), INSTALL_TIMEOUT_S + PROBE_TIMEOUT_S):
        is_new = not warnings_file.exists()
        if is_new:
            remove_folder(home)
            home.mkdir(parents=True)
            warnings = _install(home / "packages", package, version, python)
            warnings_file.write_text(json.dumps(warnings))
        return VersionFolder(home / "packages", python, is_new, tuple(json.loads(warnings_file.read_text())))


def find_shadowing(installed: VersionFolder, package: str, python: str, roots: Sequence[Path] = ()) -> str:
    """Return what would be imported instead of the installed version; '' if it is imported.

    ``roots`` are the source folders of a checkout, which come first on the import path of a launch. Raises AxisError if
    the import path does not decide which version is used.
    """
    result = _run(python, "-c", _PROBE, package, *map(str, roots), path=installed.folder, timeout_s=PROBE_TIMEOUT_S)
    try:
        places: dict[str, list[str]] = json.loads(result.out)["places"]
    except (ValueError, KeyError) as error:
        raise AxisError(f"{python}: cannot find {package}\n{result.last_lines()}") from error
    if not places:
        raise AxisError(f"{package}: contains no Python code, and libraries are found by other paths than imports")
    for name, locations in places.items():
        if not any(Path(location).is_relative_to(installed.folder) for location in locations):
            return clean_output(locations[0]) if locations else f"nothing (no module {clean_output(name)})"
    return ""


def _install(folder: Path, package: str, version: str, python: str) -> list[str]:
    """Install the version, and return warnings about its requirements.

    The requirement has three equal signs, because ``==2.9.1`` would also accept 2.9.1+cpu.
    """
    options = ("--no-deps", "--target", str(folder), f"{package}==={version}")
    result = run_pip(python, "install", *options, timeout_s=INSTALL_TIMEOUT_S)
    if result.code != 0:
        raise VersionUnavailable(f"pip install {package}=={version} {describe_end(result)}\n{result.last_lines()}")
    check = run_pip(python, "check", path=folder, timeout_s=PROBE_TIMEOUT_S)
    complaints = [clean_output(line) for line in check.out.splitlines() if f" {package} " in f" {line} "]
    return [f"requirements are not met: {clip_label(line)}" for line in complaints[:20] if check.code]


def run_pip(python: str, *arguments: str, timeout_s: float, path: Path | None = None) -> PipResult:
    """Run ``python -m pip``. Raises AxisError if the interpreter cannot start or has no pip."""
    options = ("-m", "pip", "--disable-pip-version-check", "--no-input")
    result = _run(python, *options, *arguments, path=path, timeout_s=timeout_s)
    if result.code == 1 and "No module named pip" in result.error:
        raise AxisError(
            f"{python}: has no pip, which regbot needs to find and install versions",
            f"add it: '{python} -m ensurepip', or 'uv pip install pip' in an environment made by uv",
        )
    return result


def _run(python: str, *arguments: str, timeout_s: float, path: Path | None = None) -> PipResult:
    """Run an interpreter to its end, with ``path`` first on its import path. Raises AxisError if it cannot start."""
    environment: Mapping[str, str] = {
        **{name: value for name, value in os.environ.items() if name not in _REMOVED_VARIABLES},
        **({"PYTHONPATH": str(path)} if path is not None else {}),
    }
    try:
        done = subprocess.run(
            [python, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return PipResult(None, "", "")
    except OSError as fault:
        raise AxisError(
            f"{python}: cannot be started: {fault.strerror}",
            "set the workload's 'python' to an interpreter that starts",
        ) from fault
    return PipResult(done.returncode, done.stdout, done.stderr)


def describe_end(result: PipResult) -> str:
    return "did not end in time" if result.code is None else f"failed with exit code {result.code}"


def clean_output(text: str) -> str:
    """Return pip's output as one printable line without credentials."""
    return without_credentials(printable(text))
