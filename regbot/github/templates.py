"""The workflows that ``regbot init`` installs: templates in which fields are filled with a repository's settings.

A template is itself a valid workflow, so it can be linted. An installed file begins with a stamp: regbot's version and
a hash of the file without the values of its fields. It shows whether the template is newer or a user edited the file.
"""

import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from regbot.github.source import is_same_repository, is_usable, source_for

FOLDER = ".github/workflows"
STATIC = "regbot-static"
HOSTED_WORKFLOWS = (STATIC, "regbot-post", "regbot-gate")
NODE_WORKFLOWS = ("regbot-measure", "regbot-bisect", "regbot-refresh")
"""Workflows that have a job on a node. ``--only-static`` leaves these workflows out."""

_TEMPLATE_FOLDER = next(
    folder
    for folder in (Path(__file__).parent / "workflows", Path(__file__).parents[2] / "workflows")
    if folder.is_dir()
)
"""Folder of the templates: beside this file in a wheel, and at the root of the repository in a checkout."""

_FIELDS: Mapping[str, re.Pattern[str]] = {
    "runs-on": re.compile(r"^ +runs-on: (?P<value>\S.*?)(?= +#|$)", re.MULTILINE),
    "timeout": re.compile(r"^ +timeout-minutes: (?P<value>\d+)", re.MULTILINE),
    "cron": re.compile(r"^ +- cron: (?P<value>\"[^\"\n]*\"|'[^'\n]*')", re.MULTILINE),
    "source": re.compile(r"^ +REGBOT_SOURCE: (?P<value>\S[^\n]*)$", re.MULTILINE),
    "packages": re.compile(r'"numpy>=1\.26"(?P<value>[^\n]*)$', re.MULTILINE),
    "python": re.compile(r"^ +python-version: (?P<value>\"[^\"\n]*\"|'[^'\n]*')", re.MULTILINE),
    "torch": re.compile(r"^ +TORCH: (?P<value>\S[^\n]*)$", re.MULTILINE),
    "torch-index": re.compile(r"^ +TORCH_INDEX: (?P<value>\S[^\n]*)$", re.MULTILINE),
    "artifacts": re.compile(r"^ +uses: (?P<value>[\w./-]+/upload-artifact@\S+(?: +# [^\n]*)?)$", re.MULTILINE),
}
NODE_LABELS = "[self-hosted, regbot]"
_KEPT_ACTION = re.compile(r"(?!actions/)|\S+ +# v3\b")
"""Matches upload actions that a newer version does not replace: those of other owners, and v3, the newest one that runs
on a GitHub Enterprise Server."""

_JOB = re.compile(r"^  (?P<name>[\w-]+):[ \t]*(?:#.*)?$", re.MULTILINE)
_STAMP = re.compile(r"\A# Written by 'regbot init' \((?P<version>[^,()\n]{1,40}), (?P<hash>[0-9a-f]{16})\)[^\n]*\n")


@dataclass(frozen=True)
class WorkflowSettings:
    version: str
    labels: Sequence[str] = ()
    packages: Sequence[str] = ()
    python: str | None = None
    """Version of Python for the job that traces pull requests; None for the template's."""
    torch: str | None = None
    """Requirement for torch of that job; '' for no torch, None for the template's."""
    source: str | None = None
    """Source of regbot that the user requests; None to keep the installed one."""
    own_source: str | None = None
    """Source of this regbot; None if unknown. It replaces an installed source that is not usable, and another commit of
    the same repository."""
    other_source: str | None = None
    """Source in the repository's other workflows; None if there is none."""


def render(name: str, settings: WorkflowSettings, installed: str = "") -> str:
    """Return the workflow ``name`` with its stamp and filled fields. Values in the ``installed`` text are kept."""
    text = (_TEMPLATE_FOLDER / f"{name}.yml").read_text(encoding="utf-8")
    for field in _FIELDS:
        text = _fill_field(name, field, text, _body(installed), settings)
    stamp = f"# Written by 'regbot init' ({settings.version}, {_hash(text)}); run it again after an upgrade of regbot."
    return f"{stamp}\n{text}"


def compare_installed(installed: str, wanted: str) -> Literal["unchanged", "outdated", "edited"]:
    """Return how an installed file relates to ``wanted``, the text that regbot would write now.

    An outdated file is as an earlier regbot wrote it. An edited one was changed by a user, or regbot did not write it.
    """
    body = _body(installed)
    if body == _body(wanted):
        return "unchanged"
    stamp = _STAMP.match(_lines(installed))
    return "outdated" if stamp is not None and stamp["hash"] == _hash(body) else "edited"


def install_sources(installed: str) -> list[str]:
    """Return the sources from which the jobs of an installed workflow install regbot."""
    return [match["value"] for match in _FIELDS["source"].finditer(_body(installed))]


def _field_value(name: str, field: str, template_value: str, installed: str | None, settings: WorkflowSettings) -> str:
    if field == "source":
        return _source_value(name, template_value, installed, settings)
    if field == "artifacts":
        return installed if installed is not None and _KEPT_ACTION.match(installed) else template_value
    if field == "runs-on" and template_value == NODE_LABELS and settings.labels:
        return f"[{', '.join(settings.labels)}]"
    if installed is not None:
        return installed
    if field == "packages":
        return "".join(f" {shlex.quote(word)}" for word in settings.packages)
    if field == "python" and name == STATIC and settings.python is not None:
        return f'"{settings.python}"'
    if field == "torch" and settings.torch is not None:
        return settings.torch or '""'
    return template_value


def _source_value(name: str, template_value: str, installed: str | None, settings: WorkflowSettings) -> str:
    if settings.source is not None:
        return source_for(name, settings.source)
    is_replaceable = settings.own_source is not None and is_same_repository(installed or "", settings.own_source)
    if installed is not None and is_usable(installed) and not is_replaceable:
        return installed
    return source_for(name, settings.own_source or settings.other_source or template_value)


def _fill_field(name: str, field: str, text: str, installed: str, settings: WorkflowSettings) -> str:
    installed_values: dict[tuple[str, int], str] = {}
    _replace_values(field, installed, installed_values.setdefault)
    return _replace_values(
        field, text, lambda key, value: _field_value(name, field, value, installed_values.get(key), settings)
    )


def _replace_values(field: str, text: str, choose: Callable[[tuple[str, int], str], str]) -> str:
    """Replace each value of a field by ``choose``, which gets the value, and the job and the position within the job.

    A position in the whole file would not identify a value, because an upgrade may add a job.
    """
    jobs = list(_JOB.finditer(text))
    counts: Counter[str] = Counter()

    def fill(match: re.Match[str]) -> str:
        jobs_before = [job["name"] for job in jobs if job.start() < match.start()]
        job = jobs_before[-1] if jobs_before else ""  # '' before the first job
        counts[job] += 1
        start, end = (position - match.start() for position in match.span("value"))
        return match[0][:start] + choose((job, counts[job]), match["value"]) + match[0][end:]

    return _FIELDS[field].sub(fill, text)


def _hash(body: str) -> str:
    for field in _FIELDS:
        body = _replace_values(field, body, lambda *_: "")
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def _body(text: str) -> str:
    return _STAMP.sub("", _lines(text), count=1)


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n")
