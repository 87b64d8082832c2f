"""Decide what ``regbot init`` does with each file, from the existing file and the options. Nothing is written here."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Literal

from regbot import __version__
from regbot.config import FILE_NAME, Config, ConfigError, parse_config
from regbot.init.configuration import configuration
from regbot.init.detection import RepositoryFacts
from regbot.init.repository import find_link, read_text
from regbot.init.templates import (
    FOLDER,
    WorkflowSettings,
    compare_installed,
    custom_settings,
    install_sources,
    render,
    version_of,
)
from regbot.records.base import Record
from regbot.text.printable import printable

Action = Literal["created", "kept", "unchanged", "upgraded", "overwritten", "outdated", "edited", "removed"]
"""What ``regbot init`` does with a file:

- created: regbot writes a file that did not exist.
- kept: ``regbot.toml`` exists; regbot never changes it.
- unchanged: the file has the text that regbot would write.
- upgraded: regbot replaces a text of its own that nobody edited.
- overwritten: with --force, regbot replaces a file that it did not write, or that a user edited.
- outdated: regbot wrote another text and nobody edited it. It stays until --upgrade or --force.
- edited: a user edited the file, or regbot did not write it. It stays until --force.
- removed: regbot deletes a workflow that the options exclude.
"""
WRITTEN: frozenset[Action] = frozenset({"created", "upgraded", "overwritten", "removed"})
WAITING: frozenset[Action] = frozenset({"outdated", "edited"})


class Unreadable(Enum):
    """State of a file that exists and cannot be read as text."""

    UNREADABLE = "unreadable"


UNREADABLE = Unreadable.UNREADABLE


@dataclass(frozen=True)
class InitOptions:
    """Options of ``regbot init``."""

    folder: Path = Path()
    """A folder in the repository."""
    branch: str | None = None
    """Target branch of pull requests; None to detect it."""
    labels: Sequence[str] = ()
    """Labels of the runners to time on; () keeps the installed labels, or detects them."""
    only_static: bool | None = None
    """Whether to install only workflows that need no node. None keeps what is installed, or else installs all."""
    shadow: bool = False
    """Whether the first ``regbot.toml`` sets shadow mode, in which checks block nothing."""
    upgrade: bool = False
    """Whether to replace outdated workflows that nobody edited."""
    force: bool = False
    """Whether to replace edited workflows too."""
    dry_run: bool = False
    version: str = __version__
    """Version of regbot that is written into the files."""
    source: str | None = None
    """Source from which the workflows install regbot. None keeps a usable installed source, except that this regbot's
    commit replaces another commit of the same repository."""
    enterprise: bool | None = None
    """Whether the repository is on a GitHub Enterprise Server. None keeps what is installed, or else means no."""


class InitFile(Record):
    """What ``regbot init`` did with one file, or would do without ``--dry-run``.

    ``why`` is the reason, '' if it is obvious. ``diff`` shows how the new text differs from the existing file; '' if
    there is nothing to show.
    """

    path: str
    action: Action
    why: str = ""
    diff: str = ""


@dataclass(frozen=True)
class PlannedFile:
    """A file, what to do with it, and its new text. ``text`` is None if regbot keeps or removes the file.

    A kept file may be outdated or edited.
    """

    file: InitFile
    text: str | None = None


def workflow_path(name: str) -> str:
    """Return the path in the repository of the workflow ``name``."""
    return f"{FOLDER}/{name}.yml"


def read_configuration(root: Path) -> Config | None:
    """Return the repository's configuration; None if it has no ``regbot.toml``. Raises ConfigError if it is invalid."""
    installed = _read_installed(root, FILE_NAME)
    if installed is None:
        return None
    if installed is UNREADABLE:
        raise ConfigError(f"{FILE_NAME}: cannot be read as text", "nothing was written. Repair or move the file")
    return parse_config(installed, FILE_NAME)


def plan_configuration(config: Config | None, facts: RepositoryFacts, shadow: bool, docs: str) -> PlannedFile:
    """Plan ``regbot.toml``. ``docs`` is the address of regbot's documentation; '' if unknown. Raises ConfigError."""
    if config is None:
        text = configuration(facts, shadow, docs)
        parse_config(text, FILE_NAME)  # raises ConfigError if the new text is invalid
        return PlannedFile(InitFile(path=FILE_NAME, action="created"), text)
    reason = "your file; regbot never changes it"
    if shadow and not config.github.shadow:
        reason += "; for shadow mode, write 'shadow = true' below [github]"
    return PlannedFile(InitFile(path=FILE_NAME, action="kept", why=reason))


def plan_workflow(root: Path, name: str, settings: WorkflowSettings, options: InitOptions) -> PlannedFile:
    """Plan the workflow ``name``, which the options select. Its action follows from the existing file.

    ``settings`` are the values for the fields of the workflow, such as the labels of the runner.

    Raises ConfigError if its path contains a link or cannot be written."""
    path = workflow_path(name)
    installed = _read_installed(root, path)
    if installed is None:
        return PlannedFile(InitFile(path=path, action="created"), render(name, settings, installed=None))
    if installed is UNREADABLE:
        reason = "cannot be read as text"
        if options.force:
            new_text = render(name, settings, installed=None)
            return PlannedFile(InitFile(path=path, action="overwritten", why=reason), new_text)
        return PlannedFile(InitFile(path=path, action="edited", why=reason))
    wanted = render(name, settings, installed)
    file_state = compare_installed(installed, wanted)
    if file_state == "unchanged":
        return PlannedFile(InitFile(path=path, action="unchanged"))
    writer_version = version_of(installed)  # version of the regbot that wrote the file; '' if regbot did not write it
    diff = _diff(path, installed, wanted)
    if file_state == "outdated":
        reason = "" if writer_version == settings.version else f"written by regbot {writer_version}"
        if options.upgrade or options.force:
            return PlannedFile(InitFile(path=path, action="upgraded", why=reason, diff=diff), wanted)
        return PlannedFile(InitFile(path=path, action="outdated", why=reason, diff=diff))
    reason = f"edited since regbot {writer_version} wrote it" if writer_version else "not written by regbot init"
    if options.force:
        return PlannedFile(InitFile(path=path, action="overwritten", why=reason, diff=diff), wanted)
    return PlannedFile(InitFile(path=path, action="edited", why=reason, diff=diff))


def plan_removal(
    root: Path, name: str, settings: WorkflowSettings, options: InitOptions, reason: str, explicit: bool
) -> PlannedFile | None:
    """Plan the removal of a workflow. Return None if it is not installed. ``reason`` says why it is removed.

    An edited workflow is removed only with --force, and its diff shows the edits. A workflow that nobody edited is
    removed with --upgrade, with --force, or if ``explicit`` says that an option requests the removal.
    """
    # Plan it as a workflow to install, without the options that replace files. Its action shows its state.
    file = plan_workflow(root, name, settings, replace(options, upgrade=False, force=False)).file
    if file.action == "created":  # there is no such file, so nothing is to be removed
        return None
    if file.action == "edited" and not options.force:
        why = f"{file.why}; {reason}: --force removes it"
        return PlannedFile(InitFile(path=file.path, action="edited", why=why, diff=file.diff))
    if not (explicit or options.upgrade or options.force):
        return PlannedFile(InitFile(path=file.path, action="outdated", why=f"{reason}: --upgrade removes it"))
    custom_values = custom_settings(name, read_text(root, file.path) or "")
    lost_text = f"; its own settings are lost: {', '.join(custom_values)}" if custom_values else ""
    edits = file.diff if file.action == "edited" else ""
    return PlannedFile(InitFile(path=file.path, action="removed", why=f"{reason}{lost_text}", diff=edits))


def is_edited(root: Path, name: str, settings: WorkflowSettings) -> bool:
    """Return whether a user has edited an installed workflow."""
    return plan_workflow(root, name, settings, InitOptions()).file.action == "edited"


def read_sources(root: Path, name: str) -> list[str]:
    """Return the sources from which a workflow's jobs install regbot; [] if the workflow is not installed."""
    path = workflow_path(name)
    return install_sources(read_text(root, path) or "") if (root / path).is_file() else []


def sources_after(root: Path, planned_files: Sequence[PlannedFile]) -> list[str]:
    """Return the sources from which the jobs of all workflows install regbot, after ``planned_files`` are written."""
    sources = []
    for planned_file in planned_files:
        is_workflow = planned_file.file.path != FILE_NAME
        if is_workflow and planned_file.file.action != "removed":
            # A planned file without a text keeps the installed one.
            text = planned_file.text or read_text(root, planned_file.file.path) or ""
            sources += install_sources(text)
    return sources


def _read_installed(root: Path, path: str) -> str | Unreadable | None:
    """Return the text of a file; UNREADABLE if it is not text; None if it does not exist.

    Raises ConfigError if the path contains a link, is a folder, or has a file in place of a folder.
    """
    link = find_link(root, path)
    if link is not None:
        raise ConfigError(
            f"{link}: is a symbolic link, and regbot init does not write through links", "nothing was written"
        )
    target = root / path
    for parent in target.parents:
        if root in parent.parents and parent.is_file():
            raise ConfigError(f"{parent.relative_to(root)}: is a file, but must be a folder", "nothing was written")
    if not target.exists():
        return None
    if target.is_dir():
        raise ConfigError(f"{path}: is a folder", "nothing was written. Move the folder")
    text = read_text(root, path)
    return UNREADABLE if text is None else text


def _diff(path: str, installed: str, wanted: str) -> str:
    """Return the unified diff from the installed text to the wanted text. It is safe for a terminal."""
    lines = difflib.unified_diff(
        installed.splitlines(), wanted.splitlines(), f"a/{path}", f"b/{path}", n=3, lineterm=""
    )
    return "".join(f"{printable(line)}\n" for line in lines)
