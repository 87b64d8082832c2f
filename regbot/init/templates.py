"""The workflows that ``regbot init`` installs: regbot's own files with this repository's settings in a few slots.

A slot is a value in its place in a valid workflow: the labels of a ``runs-on``, where regbot is from. So the templates
can be linted as they are, and what a user sets there by hand is read back and kept. Every installed file begins with a
stamp: the version, and a hash of the file without its slots. By it a newer template is told from a user's edit.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from regbot.init.runners import Runner
from regbot.init.source import same_repository, seen_from, usable
from regbot.text import printable

FOLDER = ".github/workflows"
HOSTED = ("regbot-static", "regbot-post", "regbot-gate")
NODES = ("regbot-measure", "regbot-bisect", "regbot-refresh")
"""Those with a job on a node: left out by ``--only-static``."""
OWN_ARTIFACT = ("regbot-bisect", "regbot-refresh")
"""Those whose last job reads an artifact of its own run. A GitHub Enterprise Server, with v3 of the artifact actions,
shows one only when the whole run has ended."""

_SHIPPED = next(
    folder
    for folder in (Path(__file__).parent / "workflows", Path(__file__).parents[2] / "workflows")
    if folder.is_dir()
)
"""Beside this file in a wheel, at the top of a checkout."""

_SLOTS: Mapping[str, re.Pattern[str]] = {
    "runs-on": re.compile(r"^ +runs-on: (?P<value>\S.*?)(?= +#|$)", re.MULTILINE),
    "timeout": re.compile(r"^ +timeout-minutes: (?P<value>\d+)", re.MULTILINE),
    "cron": re.compile(r"^ +- cron: (?P<value>\"[^\"\n]*\"|'[^'\n]*')", re.MULTILINE),
    "source": re.compile(r"^ +REGBOT_SOURCE: (?P<value>\S[^\n]*)$", re.MULTILINE),
    "packages": re.compile(r'"(?:regbot\[smoke\]|numpy>=1\.26)"(?P<value>[^\n]*)$', re.MULTILINE),
    "artifacts": re.compile(r"^ +uses: (?P<value>[\w./-]+/upload-artifact@\S+(?: +# [^\n]*)?)$", re.MULTILINE),
}
_TOLD = {"runs-on": "runs-on", "timeout": "timeout-minutes", "cron": "cron", "packages": "packages"}
"""Slots of which one workflow may have its own, and what a user calls them."""
_NODE_LABELS = re.compile(r"\[self-hosted, regbot\]")
"""What a template has where a job needs a node."""

ENTERPRISE = "actions/upload-artifact@c6a366c94c3e0affe28c06c8df20a878f24da3cf # v3.2.2"
"""The last that a GitHub Enterprise Server takes: v4 and newer refuse to run there, and github.com refuses v3."""
_CHOSEN = re.compile(r"(?!actions/)|\S+@v3\b|\S+ +# v3\b")
"""An upload that is not to be replaced by a newer one: v3, or somebody's own."""

_JOB = re.compile(r"^  (?P<name>[\w-]+):[ \t]*(?:#.*)?$", re.MULTILINE)
_STAMP = re.compile(r"\A# Written by 'regbot init' \((?P<version>[^,()\n]{1,40}), (?P<hash>[0-9a-f]{16})\)[^\n]*\n")

_ADVICE = "; run it again after an upgrade of regbot."

State = Literal["new", "unchanged", "outdated", "edited"]


@dataclass(frozen=True)
class Settings:
    """What goes into the slots. ``runner`` and ``source`` None keep what is installed; ``packages`` are words for pip.
    ``enterprise``: for a GitHub Enterprise Server, None for as it is installed.

    ``own_source`` is what this regbot is from: taken where nothing usable is installed, and where that is another
    commit of the same repository; ``other_source`` is what the other workflows have.
    """

    version: str
    default_runner: Runner
    runner: Runner | None = None
    packages: Sequence[str] = ()
    enterprise: bool | None = None
    source: str | None = None
    own_source: str | None = None
    other_source: str | None = None


def template(name: str) -> str:
    """The text of a workflow as regbot ships it; ``name`` without its end."""
    return (_SHIPPED / f"{name}.yml").read_text(encoding="utf-8")


def render(name: str, settings: Settings, installed: str | None = None) -> str:
    """The workflow ``name`` with its stamp, for a repository that has ``installed`` now."""
    text = template(name)
    body = _body(installed) if installed is not None else None
    for slot in _SLOTS:
        kept = _placed(slot, body) if body is not None else {}
        wanted = [_wanted(name, slot, value, kept.get(place), settings) for place, value in _placed(slot, text).items()]
        text = _filled(slot, text, iter(wanted).__next__)
    return f"# Written by 'regbot init' ({settings.version}, {_hash(text)}){_ADVICE}\n{text}"


def state(installed: str | None, wanted: str) -> State:
    """What an installed file is beside what would be written now."""
    if installed is None:
        return "new"
    if _body(installed) == _body(wanted):
        return "unchanged"
    stamp = _STAMP.match(_lines(installed))
    return "outdated" if stamp is not None and stamp["hash"] == _hash(_body(installed)) else "edited"


def for_enterprise(installed: str) -> bool:
    """Does an installed workflow hand over its artifact as a GitHub Enterprise Server needs it?"""
    return any(re.search(r"@v3\b|# v3\b", value) for value in _values("artifacts", _body(installed)))


def version_of(installed: str) -> str:
    """The version of regbot that wrote a file; '' where no stamp says it."""
    stamp = _STAMP.match(_lines(installed))
    return stamp["version"] if stamp else ""


def sources(installed: str) -> list[str]:
    """Where the jobs of an installed workflow have regbot from."""
    return _values("source", _body(installed))


def set_in(name: str, installed: str) -> list[str]:
    """What stands in the slots of an installed workflow and is not as shipped, ``timeout-minutes: 999``. Where regbot
    is from, and its artifact actions, are left out: they are the same in all workflows."""
    shipped, body = template(name), _body(installed)
    found = []
    for slot, key in _TOLD.items():
        before = _placed(slot, shipped)
        placed = _placed(slot, body).items()
        found += [f"{key}: {printable(value.strip())}" for place, value in placed if before.get(place) != value]
    return list(dict.fromkeys(found))


def _wanted(name: str, slot: str, shipped: str, kept: str | None, settings: Settings) -> str:
    if slot == "source":
        return _source(name, shipped, kept, settings)
    if slot == "runs-on" and _NODE_LABELS.fullmatch(shipped):
        if settings.runner is not None:
            return settings.runner.yaml
        return kept or settings.default_runner.yaml
    if slot == "artifacts":
        return _artifacts(shipped, kept, settings.enterprise)
    if slot == "packages" and kept is None:
        return "".join(f" {word}" for word in settings.packages)
    return shipped if kept is None else kept


def _source(name: str, shipped: str, kept: str | None, settings: Settings) -> str:
    own = settings.own_source
    if settings.source is not None:
        return seen_from(name, settings.source)
    if kept is not None and usable(kept) and not (own and same_repository(kept, own)):
        return kept
    return seen_from(name, own or settings.other_source or shipped)


def _artifacts(shipped: str, kept: str | None, enterprise: bool | None) -> str:
    """What hands over an artifact. A choice stays until another one is made; else the newest that regbot knows."""
    chosen = kept if kept is not None and _CHOSEN.match(kept) else None
    if enterprise is None:
        return chosen or shipped
    if not enterprise:
        return shipped
    return chosen or ENTERPRISE


def _values(slot: str, text: str) -> list[str]:
    return [match["value"] for match in _SLOTS[slot].finditer(text)]


def _placed(slot: str, text: str) -> dict[tuple[str, int], str]:
    """The values of a slot by their job, and their number in it: an upgrade may bring another job."""
    jobs = [(match.start(), match["name"]) for match in _JOB.finditer(text)]
    placed: dict[tuple[str, int], str] = {}
    for match in _SLOTS[slot].finditer(text):
        job = next((name for start, name in reversed(jobs) if start < match.start()), "")
        placed[job, sum(place[0] == job for place in placed)] = match["value"]
    return placed


def _filled(slot: str, text: str, value: Callable[[], str]) -> str:
    """``text`` with what ``value()`` gives in each slot of this kind, in order."""

    def put(match: re.Match[str]) -> str:
        start, end = (each - match.start() for each in match.span("value"))
        return match[0][:start] + value() + match[0][end:]

    return _SLOTS[slot].sub(put, text)


def _hash(body: str) -> str:
    """Of a workflow without its stamp, whatever stands in its slots."""
    for slot in _SLOTS:
        body = _filled(slot, body, lambda: "")
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def _body(text: str) -> str:
    return _STAMP.sub("", _lines(text), count=1)


def _lines(text: str) -> str:
    """``text`` with the line ends that git may have changed in a checkout put right."""
    return text.replace("\r\n", "\n")
