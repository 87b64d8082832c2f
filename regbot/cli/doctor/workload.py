"""``regbot doctor --workload``: list what tracing a workload requires, and check which of it the workload's interpreter
and this machine have.

What a framework requires is listed in ``regbot/workloads/framework_needs.py``. Another revision of the framework may
import more packages. They are not recognised here, but its trace names the missing module.
"""

import platform
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from regbot.cli.doctor.diagnosis import Capability, Diagnosis, query_interpreter
from regbot.engines import Engine, LocalEngine
from regbot.records.config import FILE_NAME, PLACEHOLDER_ENTRY, ConfigError, Workload, load_config
from regbot.records.text.clip import clip
from regbot.records.text.printable import printable
from regbot.workloads.framework_needs import (
    NEWER_GLIBC,
    TORCH_INDEX,
    FrameworkNeeds,
    module_name,
    needs_of,
)
from regbot.workloads.guest import interpreter
from regbot.workloads.paper.build import COMPILERS, find_compiler
from regbot.workloads.task import plan

NUMPY = "numpy>=1.26"
"""Requirement of every trace with torch."""


@dataclass(frozen=True)
class _Needs:
    """Needs of one workload."""

    framework: FrameworkNeeds
    requirements: list[str]
    """Requirements for pip: torch and packages."""
    commands: list[str]
    """Programs that must be on PATH."""
    compiler: bool
    """Whether a C++ compiler is needed, to build the paper GPU."""


def examine_workload(name: str, folder: Path, engine: Engine | None = None) -> Diagnosis:
    """Compare the needs of the workload ``name`` with its interpreter and this machine.

    The workload is defined in the ``regbot.toml`` of ``folder``, or of the nearest parent folder that has this file.
    The workload's interpreter is started once, with a time limit. Raises ConfigError.
    """
    folder = next((parent for parent in (folder, *folder.parents) if (parent / FILE_NAME).is_file()), folder)
    if not (folder / FILE_NAME).is_file():
        raise ConfigError(f"{folder} has no {FILE_NAME} with workloads", "run 'regbot init'")
    config = load_config(folder / FILE_NAME)
    if name not in config.workloads:
        raise ConfigError(f"there is no workload {name!r}", f"{FILE_NAME} has {', '.join(config.workloads)}")
    task = plan(config, [name])[0]
    workload, python = task.workload, interpreter(task, folder)
    if workload.adapter == "command":
        raise ConfigError(f"workload {name!r} is not traced, because its adapter is 'command'")
    needs = _collect_needs(workload, compiler=task.wants_paper_gpu)
    answer = _query_packages(python, needs, workload.environment, engine or LocalEngine())
    checks = [_placeholder_check(name)] if workload.entry == PLACEHOLDER_ENTRY else []
    checks.append(_check_python(python, needs.framework, answer))
    if "versions" in answer:
        checks += [_check_package(text, answer["versions"]) for text in needs.requirements]
    checks += _check_framework(needs.framework, workload, folder, answer.get("versions", {}))
    checks += [_check_compiler()] if needs.compiler else []
    checks += [_check_command(command) for command in needs.commands]
    in_checkout = _has_module(needs.framework.module, workload, folder)
    return Diagnosis(checks=checks, install=_install_commands(needs, workload, in_checkout=in_checkout))


def _collect_needs(workload: Workload, *, compiler: bool) -> _Needs:
    """Return the needs of a workload. ``compiler`` says whether its trace needs a C++ compiler."""
    framework = needs_of(workload)
    torch_requirements = [framework.torch, NUMPY] if framework.torch else []
    return _Needs(framework, [*torch_requirements, *framework.packages], list(framework.commands), compiler)


def _query_packages(python: str, needs: _Needs, variables: Mapping[str, str], engine: Engine) -> dict[str, Any]:
    """Ask the interpreter which of the required packages it has.

    Return a document with the interpreter's version (``python``) and the installed ``versions`` by package. If the
    interpreter gives no such document, return ``{"why": REASON}``."""
    names = [Requirement(text).name for text in needs.requirements]
    packages_with_modules = [f"{name}={module_name(name)}" for name in names]
    if needs.framework.distribution:
        distribution = Requirement(needs.framework.distribution).name
        packages_with_modules.append(f"{distribution}={needs.framework.module}")
    document = query_interpreter(python, ["--packages", *packages_with_modules], variables, engine)
    if "why" not in document and not isinstance(document.get("versions"), dict):
        return {"why": "gave no list of packages"}
    return document


def _check_python(python: str, framework: FrameworkNeeds, answer: Mapping[str, Any]) -> Capability:
    """Check the version of the interpreter ``python``. ``answer`` is the result of ``_query_packages``."""
    fix = f"make an environment with Python {framework.python} or newer, and set 'python' of the workload to it"
    if "why" in answer:
        detail = clip(printable(f"{python}: {answer['why']}"), 500)
        return Capability(name="Python", ok=False, detail=detail, fix=fix)
    version = str(answer["python"])
    is_new_enough = _parse_version(version) >= Version(framework.python)
    detail = f"{version} ({python}); needed: {framework.python} or newer"
    return Capability(
        name="Python", ok=is_new_enough, detail=clip(printable(detail), 500), fix="" if is_new_enough else fix
    )


def _check_package(text: str, versions: Mapping[str, Any]) -> Capability:
    """Check whether a requirement for pip, such as ``torch==2.13.0``, is met by the installed ``versions``."""
    requirement = Requirement(text)
    name = requirement.name
    title = name if name == "torch" else f"package {name}"
    if name not in versions:
        return Capability(name=title, ok=False, detail=f"missing; needed: {text}")
    version = clip(printable(str(versions[name])), 100) or "installed, version unknown"
    if not requirement.specifier or requirement.specifier.contains(_parse_version(version), prereleases=True):
        return Capability(name=title, ok=True, detail=version)
    return Capability(
        name=title,
        ok=False,
        detail=f"{version}; regbot has been tested with {requirement.specifier}",
        fix="another version may work; if the trace is refused, install this one",
    )


def _parse_version(text: str) -> Version:
    """Return a version. A text that is no version counts as 0, which is older than every required version."""
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")


def _has_module(module: str, workload: Workload, folder: Path) -> bool:
    """Return whether a source root of the workload has the framework's module.

    ``folder`` is the folder of regbot.toml. If ``module`` is '', the framework has no module.
    """
    module_path = Path(*module.split("."))
    return bool(module) and any((folder / root / module_path).is_dir() for root in workload.source_roots)


def _check_framework(
    framework: FrameworkNeeds, workload: Workload, folder: Path, versions: Mapping[str, Any]
) -> list[Capability]:
    """Check where the framework's own code comes from. Return [] for regbot's own model.

    ``versions`` has the installed version of each package.
    """
    if not framework.module:
        return []
    if _has_module(framework.module, workload, folder):
        return [Capability(name=framework.module, ok=True, detail="from the checkout")]
    if not framework.distribution:
        detail, fix = (
            "in no source root, and an installed one is not traced",
            "set 'source_roots' to the folder that holds it",
        )
        return [Capability(name=framework.module, ok=False, detail=detail, fix=fix)]
    name = Requirement(framework.distribution).name
    if name in versions:
        version = clip(printable(str(versions[name])), 100) or "of unknown version"
        detail = f"no source root has it; the installed one is traced ({version})"
        fix = "to trace the checkout's code, set 'source_roots' to the folders that hold its packages"
        return [Capability(name=framework.module, ok=True, detail=detail, fix=fix)]
    fix = "set 'source_roots' to the folders that hold it, or install it"
    return [Capability(name=framework.module, ok=False, detail="neither in a source root nor installed", fix=fix)]


def _check_compiler() -> Capability:
    """Check whether this machine has a C++ compiler, which builds the paper GPU."""
    path = find_compiler()
    fix = "" if path else "install one, such as g++, or set CXX"
    return Capability(name="C++ compiler", ok=bool(path), detail=path or f"none of {', '.join(COMPILERS)}", fix=fix)


def _placeholder_check(name: str) -> Capability:
    """Return the failed check of the workload ``name``, whose ``entry`` is still the placeholder."""
    return Capability(
        name="entry",
        ok=False,
        detail=f"{PLACEHOLDER_ENTRY} is the placeholder of 'regbot init'",
        fix=f"write build_layer for your MoE layer (docs/module.md), and name it in workloads.{name}.entry",
    )


def _check_command(command: str) -> Capability:
    """Check whether the program ``command``, which the framework needs, is on PATH."""
    path = shutil.which(command)
    return Capability(
        name=f"command {command}",
        ok=path is not None,
        detail=path or "not found",
        fix="" if path else f"install {command}",
    )


def _install_commands(needs: _Needs, workload: Workload, *, in_checkout: bool) -> list[str]:
    """Return the commands that make a fresh environment and install the needs of the workload.

    The environment is that of the interpreter in the workload's ``python``; ``.venv`` if this key is not set.
    ``in_checkout`` says whether the checkout has the framework."""
    framework = needs.framework
    python = workload.python or ".venv/bin/python"
    commands = []
    if python.endswith("/bin/python"):
        commands.append(f"python{framework.python} -m venv {shlex.quote(python.removesuffix('/bin/python'))}")
    install = f"{shlex.quote(python)} -m pip install"
    if framework.torch:
        commands.append(f"{install} --index-url {TORCH_INDEX} {shlex.quote(framework.torch)}  # a CPU build is enough")
    packages = [text for text in needs.requirements if text != framework.torch]
    unpacked = {text: name for text in packages if (name := Requirement(text).name) in NEWER_GLIBC}
    commands.append(f"{install} {shlex.join(text for text in packages if text not in unpacked)}")
    for text, name in unpacked.items():
        wheel = f"--only-binary :all: --platform {NEWER_GLIBC[name]}_{platform.machine()}"
        target = f"$({shlex.quote(python)} -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))')"
        commands.append(f'{install} --no-deps {wheel} --target "{target}" {shlex.quote(text)}')
    if framework.distribution and not in_checkout:
        # ``source`` is a folder to install from. It is set if the package in the index is incomplete.
        source = f"-e {framework.source}" if framework.source else framework.distribution
        commands.append(f"{install} --no-deps {source}  # only if the checkout does not have it")
    return commands
