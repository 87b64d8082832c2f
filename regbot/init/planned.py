"""What becomes of each file: decided here by what is there and what was asked for, and written elsewhere."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from regbot import __version__
from regbot.config import FILE_NAME, Config, ConfigError, parse_config
from regbot.init.configuration import configuration
from regbot.init.detection import Findings
from regbot.init.repository import linked, read_text
from regbot.init.templates import FOLDER, Settings, render, set_in, sources, state, version_of
from regbot.records.base import Record
from regbot.text import printable

Action = Literal["created", "kept", "unchanged", "upgraded", "overwritten", "outdated", "edited", "removed"]
WRITTEN: frozenset[Action] = frozenset({"created", "upgraded", "overwritten", "removed"})
WAITING: frozenset[Action] = frozenset({"outdated", "edited"})


@dataclass(frozen=True)
class Options:
    """What the user asks for. ``only_static`` None: as it is installed, else everything. ``version`` is regbot's.
    ``source`` None: what regbot itself is from, else as it is installed. ``enterprise``: pull requests are on a GitHub
    Enterprise Server; None for as it is installed."""

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
    enterprise: bool | None = None


class InitFile(Record):
    """What became of one file, or with ``--dry-run`` would become. ``diff`` is from what is there to what is new."""

    path: str
    action: Action
    why: str = ""
    diff: str = ""


@dataclass(frozen=True)
class Planned:
    """A file with what it would become; ``text`` None where it stays as it is, or is taken away."""

    file: InitFile
    text: str | None = None


def file_of(name: str) -> str:
    """The path of the workflow ``name``."""
    return f"{FOLDER}/{name}.yml"


def configured(root: Path) -> Config | None:
    """The configuration that is there. Raises ConfigError where it cannot be used."""
    installed = _installed(root, FILE_NAME)
    if installed is None:
        return None
    if not isinstance(installed, str):
        raise ConfigError(f"{FILE_NAME}: cannot be read as text; nothing was written. Mend it, or move it away")
    return parse_config(installed, FILE_NAME)


def plan_configuration(there: Config | None, found: Findings, shadow: bool, docs: str) -> Planned:
    """``docs`` is where its comments can be looked up. Raises ConfigError."""
    if there is None:
        text = configuration(found, shadow, docs)
        parse_config(text, FILE_NAME)
        return Planned(InitFile(path=FILE_NAME, action="created"), text)
    why = "yours: never changed by regbot"
    if shadow and not there.github.shadow:
        why += "; for shadow mode write 'shadow = true' below [github]"
    return Planned(InitFile(path=FILE_NAME, action="kept", why=why))


def plan_workflow(root: Path, name: str, settings: Settings, options: Options) -> Planned:
    """A workflow that is wanted. Raises ConfigError where it could be written through a link, or not at all."""
    path = file_of(name)
    found = _installed(root, path)
    installed = found if isinstance(found, str) else None
    wanted = render(name, settings, installed)
    if found is None:
        return Planned(InitFile(path=path, action="created"), wanted)
    if installed is None:
        why = "cannot be read as text"
        if options.force:
            return Planned(InitFile(path=path, action="overwritten", why=why), wanted)
        return Planned(InitFile(path=path, action="edited", why=why))
    now = state(installed, wanted)
    if now == "unchanged":
        return Planned(InitFile(path=path, action="unchanged"))
    writer = version_of(installed)
    diff = _diff(path, installed, wanted)
    if now == "outdated":
        why = "" if writer == settings.version else f"written by regbot {writer}"
        if options.upgrade or options.force:
            return Planned(InitFile(path=path, action="upgraded", why=why, diff=diff), wanted)
        return Planned(InitFile(path=path, action="outdated", why=why, diff=diff))
    why = f"edited since regbot {writer} wrote it" if writer else "not written by regbot init"
    if options.force:
        return Planned(InitFile(path=path, action="overwritten", why=why, diff=diff), wanted)
    return Planned(InitFile(path=path, action="edited", why=why, diff=diff))


def plan_removal(root: Path, name: str, settings: Settings, options: Options, why: str, told: bool) -> Planned | None:
    """A workflow that is not wanted any more, and ``why``; None where there is none. What somebody edited goes only by
    force, and the rest where the user has ``told`` so, else as an upgrade does."""
    file = plan_workflow(root, name, settings, replace(options, upgrade=False, force=False)).file
    if file.action == "created":
        return None
    if file.action == "edited" and not options.force:
        return Planned(InitFile(path=file.path, action="edited", why=f"{file.why}; {why}: --force removes it"))
    if not (told or options.upgrade or options.force):
        return Planned(InitFile(path=file.path, action="outdated", why=f"{why}: --upgrade removes it"))
    own = set_in(name, read_text(root, file.path) or "")
    lost = f"; what was set in it goes too: {', '.join(own)}" if own else ""
    return Planned(InitFile(path=file.path, action="removed", why=f"{why}{lost}"))


def edited(root: Path, name: str, settings: Settings) -> bool:
    """Was an installed workflow edited?"""
    return plan_workflow(root, name, settings, Options()).file.action == "edited"


def sources_of(root: Path, name: str) -> list[str]:
    """Where the jobs of an installed workflow have regbot from; none where it is not there."""
    path = file_of(name)
    return sources(read_text(root, path) or "") if (root / path).is_file() else []


def sources_then(root: Path, planned: Sequence[Planned]) -> list[str]:
    """Where all jobs have regbot from after ``planned`` was written."""
    stay = (each for each in planned if each.file.action != "removed" and each.file.path != FILE_NAME)
    return [source for each in stay for source in sources(each.text or read_text(root, each.file.path) or "")]


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
