"""``regbot init``: find what to trace, plan each file, write the planned files, and list the next steps.

``regbot.toml`` is written only if it does not exist. From then on it belongs to the user, and regbot never changes it.
A workflow that nobody edited is replaced by a newer version. An edited one is shown as a difference and replaced only
with ``--force``. Nothing is written through a symbolic link. Each file is written atomically.
"""

import difflib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from regbot import __version__
from regbot.cli.init.configuration import configuration
from regbot.cli.init.detection import (
    Framework,
    Layer,
    Repository,
    declared_packages,
    find_framework,
    find_layer,
    find_link,
    open_repository,
    read_text,
)
from regbot.github.source import EXAMPLE, is_usable, own_source, parse_source, path_in_repository
from regbot.github.templates import (
    FOLDER,
    HOSTED_WORKFLOWS,
    NODE_LABELS,
    NODE_WORKFLOWS,
    STATIC,
    WorkflowSettings,
    compare_installed,
    install_sources,
    render,
)
from regbot.records.base import Record
from regbot.records.config import FILE_NAME, ConfigError
from regbot.records.files import write_text
from regbot.records.text.printable import printable
from regbot.records.text.table import columns
from regbot.records.text.words import listed
from regbot.records.text.wrap import wrapped

LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:=/+-]{0,127}")
WIDTH = 100
"""Characters of a line if the output is not a terminal."""
MAX_PACKAGES = 12

Action = Literal["created", "kept", "unchanged", "upgraded", "overwritten", "edited", "removed"]
"""What ``regbot init`` does with a file. kept: ``regbot.toml`` exists. upgraded: regbot replaces a text of its own that
nobody edited. overwritten: with --force, regbot replaces another text. edited: such a text stays, and the difference is
shown. removed: --only-static excludes the workflow."""


class InitFile(Record):
    """What ``regbot init`` did with one file, or would do."""

    path: str
    action: Action
    diff: str = ""


class SetupStep(Record):
    """One step that the user has to take. ``command`` is '' if the step has no command."""

    text: str
    command: str = ""


class InitReport(Record):
    """Result of ``regbot init``."""

    schema_id: Literal["regbot/init@1"] = Field(default="regbot/init@1", alias="schema")
    root: str
    dry_run: bool
    traced: str = Field(description="the layer or the framework that was found; '' if there is none")
    evidence: str
    files: list[InitFile]
    next_steps: list[SetupStep]

    @property
    def waiting(self) -> bool:
        """Whether an edited file differs from what regbot would write."""
        return any(file.action == "edited" for file in self.files)


@dataclass(frozen=True)
class InitOptions:
    """Options of ``regbot init``."""

    folder: Path = Path()
    """A folder in the repository."""
    labels: Sequence[str] = ()
    """Labels of the runners to time on; () keeps the installed ones."""
    only_static: bool | None = None
    """Whether to leave out the workflows that need a node. None keeps what is installed, or else installs all."""
    force: bool = False
    """Whether to replace edited workflows."""
    dry_run: bool = False
    source: str | None = None
    """Source from which the workflows install regbot; None for the source of this regbot, or else the installed one."""


class _PlannedFile(NamedTuple):
    file: InitFile
    text: str | None
    """The text to write; None to write nothing."""


def initialise(options: InitOptions) -> InitReport:
    """Set up the repository that contains ``options.folder``.

    Raises CheckoutError if no repository contains it, ConfigError if options or existing files cannot be used, and
    OSError if a file cannot be written.
    """
    for label in options.labels:
        if not LABEL.fullmatch(label):
            raise ConfigError(f"--label {printable(label)!r}: is not a valid runner label", "give one word")
    if options.labels and options.only_static:
        raise ConfigError("--label is for timing runners, but --only-static installs no workflow that uses them")
    repository = open_repository(options.folder)
    root = repository.root
    layer = find_layer(repository)
    framework = find_framework(repository) if layer is None else None
    installed = {name: _read_installed(root, _path(name)) for name in (*HOSTED_WORKFLOWS, *NODE_WORKFLOWS)}
    settings = _make_settings(options, repository, framework, installed)
    # Without an option, a later run keeps the choice of the first one.
    is_first_run = all(text is None for text in installed.values())
    has_nodes = is_first_run or any(installed[name] is not None for name in NODE_WORKFLOWS)
    with_nodes = not options.only_static if options.only_static is not None else has_nodes
    planned = [_plan_configuration(root, layer, framework)]
    for name, text in installed.items():
        if with_nodes or name in HOSTED_WORKFLOWS:
            planned.append(_plan_workflow(name, text, settings, options.force))
        elif options.only_static and text is not None:
            planned.append(_plan_removal(name, text, settings, options.force))
    if not options.dry_run:
        for file, new_text in planned:
            if new_text is not None:
                write_text(root / file.path, new_text)
            elif file.action == "removed":
                (root / file.path).unlink()
    evidence = layer.file if layer is not None else framework.evidence if framework is not None else ""
    return InitReport(
        root=printable(str(root)),
        dry_run=options.dry_run,
        traced=layer.entry if layer is not None else framework.name if framework is not None else "",
        evidence=evidence or "no build_layer and no known framework was found",
        files=[file for file, _ in planned],
        next_steps=_next_steps(planned, layer, framework, settings, with_nodes, declared_packages(repository)),
    )


def _path(workflow: str) -> str:
    return f"{FOLDER}/{workflow}.yml"


def _read_installed(root: Path, path: str) -> str | None:
    """Return the text of a file; None if it does not exist. Raises ConfigError if it is a link or no text file."""
    if (link := find_link(root, path)) is not None:
        raise ConfigError(
            f"{link}: is a symbolic link, and regbot init does not write through links", "nothing was written"
        )
    if not (root / path).exists():
        return None
    text = read_text(root, path)
    if text is None:
        raise ConfigError(f"{path}: cannot be read as text", "nothing was written. Move it")
    return text


def _make_settings(
    options: InitOptions, repository: Repository, framework: Framework | None, installed: dict[str, str | None]
) -> WorkflowSettings:
    # In regbot-static, a path in the repository begins with ./code, so its sources cannot be reused in other workflows.
    sources = [
        source for name, text in installed.items() if text and name != STATIC for source in install_sources(text)
    ]
    needs = framework.needs if framework is not None else None
    return WorkflowSettings(
        version=__version__,
        labels=options.labels,
        packages=framework.hosted_packages(repository) if framework is not None else (),
        python=needs.python if needs is not None else None,
        torch=needs.torch if needs is not None else None,
        source=None if options.source is None else parse_source(repository.root, options.source),
        own_source=own_source(),
        other_source=next(filter(is_usable, sources), None),
    )


def _plan_configuration(root: Path, layer: Layer | None, framework: Framework | None) -> _PlannedFile:
    if _read_installed(root, FILE_NAME) is not None:
        return _PlannedFile(InitFile(path=FILE_NAME, action="kept"), None)
    return _PlannedFile(InitFile(path=FILE_NAME, action="created"), configuration(layer, framework))


def _plan_workflow(name: str, installed: str | None, settings: WorkflowSettings, force: bool) -> _PlannedFile:
    path = _path(name)
    if installed is None:
        return _PlannedFile(InitFile(path=path, action="created"), render(name, settings))
    wanted = render(name, settings, installed)
    state = compare_installed(installed, wanted)
    if state == "unchanged":
        return _PlannedFile(InitFile(path=path, action="unchanged"), None)
    if state == "outdated":
        return _PlannedFile(InitFile(path=path, action="upgraded"), wanted)
    diff = _diff(path, installed, wanted)
    if force:
        return _PlannedFile(InitFile(path=path, action="overwritten", diff=diff), wanted)
    return _PlannedFile(InitFile(path=path, action="edited", diff=diff), None)


def _plan_removal(name: str, installed: str, settings: WorkflowSettings, force: bool) -> _PlannedFile:
    """Plan the removal of a workflow, which an edited one survives without ``force``."""
    planned = _plan_workflow(name, installed, settings, force=False)
    if planned.file.action == "edited" and not force:
        return planned
    return _PlannedFile(InitFile(path=planned.file.path, action="removed", diff=planned.file.diff), None)


def _diff(path: str, installed: str, wanted: str) -> str:
    """Return the unified diff from the installed text to the wanted text. It is safe for a terminal."""
    lines = difflib.unified_diff(
        installed.splitlines(), wanted.splitlines(), f"a/{path}", f"b/{path}", n=3, lineterm=""
    )
    return "".join(f"{printable(line)}\n" for line in lines)


def _next_steps(
    planned: Sequence[_PlannedFile],
    layer: Layer | None,
    framework: Framework | None,
    settings: WorkflowSettings,
    with_nodes: bool,
    packages: Sequence[str],
) -> list[SetupStep]:
    """Return the steps that the user has to take, in order. ``packages`` are those that the repository declares."""
    steps = []
    if any(file.action == "edited" for file, _ in planned):
        text = "Copy the changes that you want into the edited workflows by hand, or replace these and lose the edits"
        steps.append(SetupStep(text=text, command="regbot init --force"))
    if not any(file.action == "created" for file, _ in planned):
        return steps
    source = settings.source or settings.own_source or settings.other_source
    if source is None:
        text = (
            "Set the source from which the workflows install regbot; until then they fail. Give the address of your "
            "copy with the 40 digits of a commit, or a path in this repository"
        )
        steps.append(SetupStep(text=text, command=f"regbot init --source '{EXAMPLE}'"))
    elif path := path_in_repository(source):
        text = (
            f"Give {path} an owner in .github/CODEOWNERS: the workflows install regbot from there, and it runs with "
            "tokens that write (docs/security.md)"
        )
        steps.append(SetupStep(text=text))
    if layer is None:
        steps.append(_workload_step(framework))
    if framework is None and packages:
        text = f'{_path(STATIC)} installs torch and numpy. Add what else your layer imports after "numpy>=1.26" there'
        steps.append(SetupStep(text=f"{text}. The repository declares {listed(packages, MAX_PACKAGES)}"))
    workload = "moe:mixtral-8x7b" if framework is None else _WORKLOADS[framework.name]
    steps.append(SetupStep(text="Check that it can be traced", command=f"regbot ledger trace {workload}"))
    steps.append(
        SetupStep(
            text="Merge the files into the default branch; from then on each pull request gets a comment",
            command='git add regbot.toml .github/workflows && git commit -m "Let regbot judge pull requests"',
        )
    )
    text = (
        "Before you require the check 'regbot', register a GitHub App and let it create the check run "
        "(docs/security.md, step 6). A job of a pull request can create a check run of that name, but not in the name "
        "of your App"
    )
    steps.append(SetupStep(text=text))
    if with_nodes:
        labels = f"[{', '.join(settings.labels)}]" if settings.labels else NODE_LABELS
        text = (
            f"For step times, set up a runner with the labels {labels} (docs/operator.md, docs/security.md). Then the "
            "comment '/regbot run' of a maintainer times a pull request. No node yet? Then remove the workflows that "
            "need one"
        )
        steps.append(SetupStep(text=text, command="regbot init --only-static"))
    return steps


_WORKLOADS = {
    "torchtitan": "titan:qwen3-30b-a3b",
    "megatron": "megatron:mixtral-8x7b",
    "megatron-bridge": "bridge:qwen3-30b-a3b",
    "maxtext": "maxtext:mixtral-8x7b",
}


def _workload_step(framework: Framework | None) -> SetupStep:
    """Return the step that makes a trace possible, if no ``build_layer`` was found."""
    if framework is None:
        return SetupStep(text="Write build_layer for your MoE layer (docs/module.md) and name it in regbot.toml")
    text = (
        f"Install the dependencies of {framework.name} next to regbot, or set 'python' in regbot.toml to an "
        "interpreter that has them (docs/frameworks.md)"
    )
    if framework.needs is None:
        return SetupStep(text=text)
    packages = [*([framework.needs.torch] if framework.needs.torch else []), *framework.needs.packages]
    text += f". They were traced with Python {framework.needs.python}"
    return SetupStep(text=text, command=f"pip install {shlex.join(packages)}")


def page(report: InitReport) -> str:
    """Return what was found, what was done with each file, the differences of edited files, and the next steps."""
    would_be = "would be " if report.dry_run else ""
    lines = [report.root, "", *columns([("found", f"{report.traced or 'nothing'}  ({report.evidence})")]), ""]
    for file in report.files:
        is_action = file.action not in ("kept", "unchanged", "edited")
        lines.append(f"{would_be * is_action + file.action:<12}  {file.path}")
    for file in report.files:
        lines += ["", file.diff.rstrip("\n")] if file.diff else []
    if report.next_steps:
        lines += ["", "next"]
    for number, step in enumerate(report.next_steps, start=1):
        text = step.text + (":" if step.command else "")
        lines.append(wrapped(text, f"  {number}. ", "     ", piped=WIDTH))
        lines += [f"     {step.command}"] if step.command else []
    return "\n".join(lines) + "\n"
