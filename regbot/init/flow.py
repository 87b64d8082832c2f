"""``regbot init``, in order: look, decide for each file, write what may be written, say what comes next.

``regbot.toml`` is written once and is the user's from then on. A workflow that nobody edited is replaced by a newer one
with ``--upgrade``, one that somebody edited only with ``--force``; both are shown as a diff first. ``--only-static``
takes workflows for nodes away by the same rule. Nothing else is touched, and what is written is written whole or not at
all, file by file.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from regbot import __version__
from regbot.checkout.git import CheckoutError, try_git
from regbot.config import FILE_NAME, ConfigError, parse_config
from regbot.init.configuration import configuration
from regbot.init.detection import Findings, detect
from regbot.init.next_steps import Step, first_steps, source_step, waiting_steps
from regbot.init.repository import linked, open_repository, read_text
from regbot.init.runners import DEFAULT, LABEL, Runner
from regbot.init.source import UNSET, by_name, first_usable, given_source, own_source
from regbot.init.templates import FOLDER, HOSTED, NODES, Settings, render, sources, state, version_of
from regbot.records.base import Record
from regbot.records.files import write_text
from regbot.text import printable

Action = Literal["created", "kept", "unchanged", "upgraded", "overwritten", "outdated", "edited", "removed"]
WRITTEN: frozenset[Action] = frozenset({"created", "upgraded", "overwritten", "removed"})
WAITING: frozenset[Action] = frozenset({"outdated", "edited"})


@dataclass(frozen=True)
class Options:
    """What the user asks for. ``only_static`` None: as it is installed, else everything. ``version`` is regbot's.
    ``source`` None: what regbot itself is from, else as it is installed."""

    folder: Path = Path()
    branch: str | None = None
    labels: Sequence[str] = ()
    only_static: bool | None = None
    shadow: bool = False
    upgrade: bool = False
    force: bool = False
    dry_run: bool = False
    version: str = __version__
    source: str | None = None


class InitFile(Record):
    """What became of one file, or with ``--dry-run`` would become. ``diff`` is from what is there to what is new."""

    path: str
    action: Action
    why: str = ""
    diff: str = ""


class Found(Record):
    """One thing that was found out, and from what."""

    what: str
    value: str
    why: str


class Initialised(Record):
    """What ``regbot init`` found and did."""

    schema_id: Literal["regbot/init@1"] = Field(default="regbot/init@1", alias="schema")
    root: str
    dry_run: bool
    found: list[Found]
    files: list[InitFile]
    next_steps: list[Step]
    warnings: list[str]

    @property
    def waiting(self) -> bool:
        """Is there something newer that was not written?"""
        return any(file.action in WAITING for file in self.files)


@dataclass(frozen=True)
class _Planned:
    """A file with what it would become; ``text`` None where it stays as it is, or is taken away."""

    file: InitFile
    text: str | None


def initialise(options: Options) -> Initialised:
    """Set up the repository that ``options.folder`` lies in.

    Raises CheckoutError where there is none, ConfigError where what is given or what is there cannot be used, OSError
    where a file cannot be written.
    """
    _usable(options)
    repository = open_repository(options.folder)
    found = detect(repository, options.branch)
    names, static_only = _selected(repository.root, options.only_static)
    runner = Runner(tuple(options.labels)) if options.labels else None
    there = {name: _sources(repository.root, name) for name in (*HOSTED, *NODES)}
    settings = Settings(
        version=options.version,
        default_runner=found.installed or found.runner or DEFAULT,
        runner=runner,
        packages=("-r", "code/requirements.txt") if found.installs_requirements else (),
        source=None if options.source is None else given_source(repository.root, options.source),
        own_source=own_source(),
        other_source=first_usable(each for name in there if name != "regbot-static" for each in there[name]),
    )
    warnings = [*found.warnings, *_stranger(there)]
    if options.branch and _no_such_branch(repository.root, options.branch):
        warnings.append(f"there is no branch {printable(options.branch)!r} here yet")
    planned = [_configured(repository.root, found, options.shadow)]
    planned += [_workflow(repository.root, f"{FOLDER}/{name}.yml", name, settings, options) for name in names]
    if options.only_static:
        without = (_without(repository.root, f"{FOLDER}/{name}.yml", name, settings, options) for name in NODES)
        planned += [each for each in without if each is not None]
    if not options.dry_run:
        for each in planned:
            if each.text is not None:
                write_text(repository.root / each.file.path, each.text)
            elif each.file.action == "removed":
                (repository.root / each.file.path).unlink()
    files = [each.file for each in planned]
    if files[0].action == "created":
        others = ((each.framework, each.evidence) for each in found.other_stacks)
        warnings += [f"also found: {framework} ({evidence}); it has no workload" for framework, evidence in others]
    source = _shown_source(repository.root, planned)
    timed_on = None if static_only else runner or found.installed or found.runner or DEFAULT
    return Initialised(
        root=printable(str(repository.root)),
        dry_run=options.dry_run,
        found=[
            *_said(found, timed_on, given=bool(options.labels)),
            Found(what="regbot", value=source or "not set", why="what the workflows install"),
        ],
        files=files,
        next_steps=[
            *([] if source or _known(settings) else [source_step()]),
            *_next(found, files, timed_on, options.shadow, settings.source),
        ],
        warnings=warnings,
    )


def _usable(options: Options) -> None:
    for label in options.labels:
        if not LABEL.fullmatch(label):
            raise ConfigError(f"--label {printable(label)!r}: is no label of a runner; give one word")
    if options.labels and options.only_static:
        raise ConfigError("--label is of runners for timing, and --only-static installs nothing that runs there")


def _selected(root: Path, only_static: bool | None) -> tuple[tuple[str, ...], bool]:
    """The workflows to install, and whether those for nodes are left out."""
    there = {name for name in (*HOSTED, *NODES) if (root / FOLDER / f"{name}.yml").exists()}
    if only_static is None:
        only_static = bool(there) and not there & set(NODES)
    return (HOSTED if only_static else (*HOSTED, *NODES)), only_static


def _configured(root: Path, found: Findings, shadow: bool) -> _Planned:
    installed = _installed(root, FILE_NAME)
    if installed is None:
        text = configuration(found, shadow)
        parse_config(text, FILE_NAME)
        return _Planned(InitFile(path=FILE_NAME, action="created"), text)
    if not isinstance(installed, str):
        raise ConfigError(f"{FILE_NAME}: cannot be read as text; nothing was written. Mend it, or move it away")
    config = parse_config(installed, FILE_NAME)
    why = "yours: never changed by regbot"
    if shadow and not config.github.shadow:
        why += "; for shadow mode write 'shadow = true' below [github]"
    return _Planned(InitFile(path=FILE_NAME, action="kept", why=why), None)


def _workflow(root: Path, path: str, name: str, settings: Settings, options: Options) -> _Planned:
    found = _installed(root, path)
    installed = found if isinstance(found, str) else None
    wanted = render(name, settings, installed)
    if found is None:
        return _Planned(InitFile(path=path, action="created"), wanted)
    if installed is None:
        why = "cannot be read as text"
        if options.force:
            return _Planned(InitFile(path=path, action="overwritten", why=why), wanted)
        return _Planned(InitFile(path=path, action="edited", why=why), None)
    now = state(installed, wanted)
    if now == "unchanged":
        return _Planned(InitFile(path=path, action="unchanged"), None)
    writer = version_of(installed)
    diff = _diff(path, installed, wanted)
    if now == "outdated":
        why = "" if writer == settings.version else f"written by regbot {writer}"
        if options.upgrade or options.force:
            return _Planned(InitFile(path=path, action="upgraded", why=why, diff=diff), wanted)
        return _Planned(InitFile(path=path, action="outdated", why=why, diff=diff), None)
    why = f"edited since regbot {writer} wrote it" if writer else "not written by regbot init"
    if options.force:
        return _Planned(InitFile(path=path, action="overwritten", why=why, diff=diff), wanted)
    return _Planned(InitFile(path=path, action="edited", why=why, diff=diff), None)


def _without(root: Path, path: str, name: str, settings: Settings, options: Options) -> _Planned | None:
    """What becomes of a workflow that is not wanted any more; None where there is none."""
    planned = _workflow(root, path, name, settings, replace(options, upgrade=False, force=False))
    file = planned.file
    if file.action == "created":
        return None
    if file.action != "edited" or options.force:
        return _Planned(InitFile(path=path, action="removed", why="--only-static"), None)
    why = f"{file.why}; --only-static removes it with --force"
    return _Planned(InitFile(path=path, action="edited", why=why), None)


def _sources(root: Path, name: str) -> list[str]:
    path = f"{FOLDER}/{name}.yml"
    return sources(read_text(root, path) or "") if (root / path).is_file() else []


def _stranger(there: Mapping[str, Sequence[str]]) -> list[str]:
    """A warning for each workflow that installs somebody else's package."""
    return [
        f"{FOLDER}/{name}.yml installs {printable(source)!r} by its name, which on the public package index is "
        "somebody else's package: its code would run with what this job may do. Stop it until its source is set"
        for name, every in there.items()
        for source in dict.fromkeys(filter(by_name, every))
    ]


def _known(settings: Settings) -> bool:
    return bool(settings.source or settings.own_source or settings.other_source)


def _shown_source(root: Path, planned: Sequence[_Planned]) -> str:
    """What the workflows install now, or would with ``--dry-run``; '' where one of them has nothing usable."""
    every: list[str] = []
    for each in planned:
        if each.file.action != "removed" and each.file.path != FILE_NAME:
            every += sources(each.text or read_text(root, each.file.path) or "")
    if not every or any(source == UNSET or by_name(source) for source in every):
        return ""
    return ", ".join(dict.fromkeys(printable(source) for source in every))


def _installed(root: Path, path: str) -> str | bytes | None:
    """The text that is there; b"" where something is that is no text; None where nothing is. Raises ConfigError."""
    link = linked(root, path)
    if link is not None:
        raise ConfigError(f"{link}: is a symbolic link, and regbot init writes through none; nothing was written")
    target = root / path
    blocked = next((parent for parent in target.parents if root in parent.parents and parent.is_file()), None)
    if blocked is not None:
        raise ConfigError(f"{blocked.relative_to(root)}: is a file, and has to be a folder; nothing was written")
    if not target.exists():
        return None
    if target.is_dir():
        raise ConfigError(f"{path}: is a folder; nothing was written. Move it away")
    text = read_text(root, path)
    return b"" if text is None else text


def _diff(path: str, installed: str, wanted: str) -> str:
    lines = difflib.unified_diff(
        installed.splitlines(), wanted.splitlines(), f"a/{path}", f"b/{path}", n=3, lineterm=""
    )
    return "".join(f"{printable(line)}\n" for line in lines)


def _said(found: Findings, runner: Runner | None, *, given: bool) -> list[Found]:
    said = []
    if found.entry is not None:
        said.append(Found(what="layer", value=found.entry.text, why=found.entry.file))
    if found.stack is not None:
        said.append(Found(what="framework", value=found.stack.framework, why=found.stack.evidence))
    if found.entry is None and found.stack is None:
        said.append(Found(what="layer", value="", why="no build_layer and no known framework was found"))
    said.append(Found(what="default branch", value=printable(found.branch.name), why=found.branch.why))
    if runner is not None:
        said.append(Found(what="runner", value=str(runner), why=_why(found, given)))
    if found.slurm:
        said.append(Found(what="Slurm", value="yes", why=found.slurm))
    return said


def _why(found: Findings, given: bool) -> str:
    if given:
        return "--label"
    if found.installed:
        return "regbot-measure.yml"
    if found.runner is None:
        return "none was found"
    return "other workflows, a GPU by its name" if found.runner.gpu else "other workflows"


def _next(
    found: Findings, files: Sequence[InitFile], runner: Runner | None, shadow: bool, source: str | None
) -> list[Step]:
    actions = {file.action for file in files}
    if actions & WAITING:
        return waiting_steps("outdated" in actions, "edited" in actions, source)
    return first_steps(found, runner, shadow) if "created" in actions else []


def _no_such_branch(root: Path, branch: str) -> bool:
    """Neither here nor at origin. Raises CheckoutError where it can be no branch's name."""
    if try_git(root, "check-ref-format", "--branch", branch).code != 0:
        raise CheckoutError(f"--branch {printable(branch)!r}: is no name that a branch can have")
    refs = (f"refs/heads/{branch}", f"refs/remotes/origin/{branch}")
    return all(try_git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", ref).code != 0 for ref in refs)
