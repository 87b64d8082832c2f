"""Where the workflows install regbot from: never by its bare name.

On the public package index the name ``regbot`` is somebody else's. A job that asked for it would run that code with a
token that may write, so a source says exactly what is meant: a commit at an address, an archive with its hash, or a
path in the repository itself.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from regbot.config import ConfigError
from regbot.text import printable

UNSET = "/set/by/regbot-init"
"""What a template has: a path that does not exist, so that pip installs nothing."""
EXAMPLE = "regbot @ git+https://HOST/OWNER/NAME@COMMIT"

_ADDRESS = r"https://[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?/[A-Za-z0-9_./~+-]+?"
_FOLDER = r"(?:#subdirectory=[A-Za-z0-9_][A-Za-z0-9_./-]*)?"
_GIT = re.compile(rf"regbot @ git\+(?P<address>{_ADDRESS})@(?P<commit>[0-9a-f]{{40}})(?P<folder>{_FOLDER})")
_ARCHIVE = re.compile(rf"regbot @ {_ADDRESS}\.(?:whl|tar\.gz|zip)#sha256=[0-9a-f]{{64}}")
_PATH = re.compile(r"\.(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")


def by_name(source: str) -> bool:
    """Would pip look ``source``, as it stands in a workflow, up in a package index?"""
    try:
        return Requirement(_bare(source)).url is None
    except InvalidRequirement:
        return False


def _bare(source: str) -> str:
    """A value of a workflow without its comment and its quotes."""
    word = re.sub(r"\s+#.*", "", source).strip()
    return word[1:-1].strip() if word[:1] == word[-1:] and word[:1] in ("'", '"') else word


def strangers(there: Mapping[str, Sequence[str]]) -> list[str]:
    """A warning for each workflow, by its path, that installs somebody else's package."""
    return [
        f"{path} installs {printable(source)!r} by its name, which on the public package index is somebody else's "
        "package: its code would run with what this job may do. Stop it until its source is set"
        for path, every in there.items()
        for source in dict.fromkeys(filter(by_name, every))
    ]


def inside(source: str) -> str:
    """The path in the repository that a job installs regbot from: ``vendor/regbot``. '' where it is from elsewhere, or
    is the whole of it."""
    path = PurePosixPath(_bare(source))
    if path.is_absolute() or not _bare(source).startswith("./") or ".." in path.parts:
        return ""
    return "" if path == PurePosixPath() else path.as_posix()


def docs_of(sources: Iterable[str]) -> str:
    """Where the pages of the regbot that is installed can be read; '' where none of ``sources`` has an address."""
    found = next(filter(None, map(_GIT.fullmatch, map(_bare, sources))), None)
    if found is None:
        return ""
    folder = found["folder"].partition("=")[2]
    return "/".join(filter(None, [found["address"].removesuffix(".git"), "blob", found["commit"], folder, "docs"]))


def usable(source: str) -> bool:
    """Is something set there, and not a mere name?"""
    return source != UNSET and not by_name(source)


def given_source(root: Path, text: str) -> str:
    """What ``--source`` says, in the form that is written. Raises ConfigError with what to give instead."""
    shown = f"--source {printable(text)!r}"
    if by_name(text):
        raise ConfigError(
            f"{shown}: is looked up by name, and on the public package index the name regbot is somebody else's: its "
            f"code would get this repository's tokens. Give '{EXAMPLE}' with all 40 digits, or a path in the "
            "repository, as ./vendor/regbot"
        )
    direct = re.sub(r"\s*@\s*", " @ ", text.strip(), count=1)
    if _GIT.fullmatch(direct) or _ARCHIVE.fullmatch(direct):
        return direct
    if "@" in text or "://" in text:
        raise ConfigError(
            f"{shown}: give '{EXAMPLE}' with all 40 digits of a commit, or 'regbot @ https://...whl#sha256=...'; no "
            "user or password in it: it stands in a file that everybody reads"
        )
    path = "/".join([".", *PurePosixPath(text).parts])
    if text.startswith("/") or not _PATH.fullmatch(path):
        raise ConfigError(f"{shown}: give a path in the repository, as ./vendor/regbot, or '{EXAMPLE}'")
    _installable(root / path, root, shown)
    return path


def own_source() -> str | None:
    """What this regbot was installed from, by PEP 610; None where that is no commit at an address all can reach."""
    try:
        text = distribution("regbot").read_text("direct_url.json")
        said = json.loads(text) if text else {}
        vcs = said.get("vcs_info", {})
        if vcs.get("vcs") != "git":
            return None
        address = re.sub(r"(?<=^https://)[^/]*@", "", said["url"])
        folder = f"#subdirectory={said['subdirectory']}" if said.get("subdirectory") else ""
        source = f"regbot @ git+{address}@{vcs['commit_id']}{folder}"
    except (PackageNotFoundError, ValueError, KeyError, AttributeError, TypeError):
        return None
    return source if _GIT.fullmatch(source) else None


def same_repository(one: str, other: str) -> bool:
    """Are both commits at the same address?"""
    found = [_GIT.fullmatch(each) for each in (one, other)]
    (a, b) = (each and (each["address"], each["folder"]) for each in found)
    return a is not None and a == b


def seen_from(name: str, source: str) -> str:
    """``source`` for the workflow ``name``: regbot-static has the repository in a folder ``code``."""
    inside = source == "." or source.startswith("./")
    return f"./code{source[1:]}" if inside and name == "regbot-static" else source


def first_usable(sources: Iterable[str]) -> str | None:
    return next((source for source in sources if usable(source)), None)


def _installable(path: Path, root: Path, shown: str) -> None:
    if not path.resolve().is_relative_to(root.resolve()):
        raise ConfigError(f"{shown}: leads out of the repository")
    if path.is_dir():
        if not (path / "pyproject.toml").is_file():
            raise ConfigError(f"{shown}: has no pyproject.toml; give a checkout of regbot, or its wheel")
        return
    if not path.is_file():
        raise ConfigError(f"{shown}: there is no such file in the repository")
    if path.name.endswith(".tar.gz"):
        return
    try:
        name = parse_wheel_filename(path.name)[0]
    except InvalidWheelFilename:
        raise ConfigError(f"{shown}: pip takes a wheel by its full name, as regbot-1.0-py3-none-any.whl") from None
    if name != "regbot":
        raise ConfigError(f"{shown}: is a wheel of {name}, not of regbot")
