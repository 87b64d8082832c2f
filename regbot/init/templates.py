"""The workflows that ``regbot init`` installs: templates in which fields are filled with a repository's settings.

A field is a part of a workflow whose value differs between repositories, such as the labels of a ``runs-on`` key or the
source of regbot. A template is itself a valid workflow, so it can be linted. If a user has changed the value of a field
in an installed file, this value is read and kept. An installed file begins with a stamp, which has regbot's version and
a hash of the file without the values of its fields. The stamp shows whether a file differs from the template because
the template is newer or because a user edited the file.

A parameter ``field`` is a key of ``_FIELDS``, and ``template_value`` is the value of that field in the template.
"""

import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Literal

from regbot.init.runners import Runner
from regbot.init.source import is_same_repository, is_usable, source_for
from regbot.text.printable import printable

FOLDER = ".github/workflows"
STATIC = "regbot-static"
"""The workflow that runs the code under test on a hosted runner."""
HOSTED_WORKFLOWS = (STATIC, "regbot-post", "regbot-gate")
NODE_WORKFLOWS = ("regbot-measure", "regbot-bisect", "regbot-refresh")
"""Workflows that have a job on a node. ``--only-static`` leaves these workflows out."""
OWN_ARTIFACT_WORKFLOWS = ("regbot-bisect", "regbot-refresh")
"""Workflows whose last job reads an artifact of the same workflow run. On a GitHub Enterprise Server, which needs v3 of
the artifact actions, an artifact is available only after the whole run has ended."""

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
    "packages": re.compile(r'"(?:regbot\[smoke\]|numpy>=1\.26)"(?P<value>[^\n]*)$', re.MULTILINE),
    "python": re.compile(r"^ +python-version: (?P<value>\"[^\"\n]*\"|'[^'\n]*')", re.MULTILINE),
    "torch": re.compile(r"^ +TORCH: (?P<value>\S[^\n]*)$", re.MULTILINE),
    "torch-index": re.compile(r"^ +TORCH_INDEX: (?P<value>\S[^\n]*)$", re.MULTILINE),
    "artifacts": re.compile(r"^ +uses: (?P<value>[\w./-]+/upload-artifact@\S+(?: +# [^\n]*)?)$", re.MULTILINE),
}
_LATER_FIELDS = frozenset({"python", "torch", "torch-index"})
"""Fields that the first workflows did not have. The hashes in their stamps include the values of these fields."""
_CUSTOM_FIELDS = {
    "runs-on": "runs-on",
    "timeout": "timeout-minutes",
    "cron": "cron",
    "packages": "packages",
    "python": "python-version",
    "torch": "TORCH",
    "torch-index": "TORCH_INDEX",
}
"""Fields whose values may differ between workflows, with the name that messages use for each field."""
_NODE_LABELS = re.compile(r"\[self-hosted, regbot\]")
"""Matches the labels that a job on a node has in a template."""

ENTERPRISE = "actions/upload-artifact@c6a366c94c3e0affe28c06c8df20a878f24da3cf # v3.2.2"
"""Newest upload action for a GitHub Enterprise Server, where v4 and newer do not run. github.com refuses v3."""
_KEPT_ACTION = re.compile(r"(?!actions/)|\S+@v3\b|\S+ +# v3\b")
"""Matches upload actions that are not replaced by a newer version: v3, and actions of other owners."""

_JOB = re.compile(r"^  (?P<name>[\w-]+):[ \t]*(?:#.*)?$", re.MULTILINE)
_STAMP = re.compile(r"\A# Written by 'regbot init' \((?P<version>[^,()\n]{1,40}), (?P<hash>[0-9a-f]{16})\)[^\n]*\n")

_ADVICE = "; run it again after an upgrade of regbot."

State = Literal["new", "unchanged", "outdated", "edited"]


@dataclass(frozen=True)
class WorkflowSettings:
    """Values for the fields of the workflows."""

    version: str
    """Version of regbot."""
    default_runner: Runner
    """Runner for jobs on a node if ``runner`` is None and no runner is installed."""
    runner: Runner | None = None
    """Runner that the user requests for jobs on a node; None to keep the installed one."""
    packages: Sequence[str] = ()
    """Additional arguments of pip for the job that traces pull requests."""
    python: str | None = None
    """Version of Python for the job that traces pull requests; None for the template's."""
    torch: str | None = None
    """Requirement for torch of the job that traces pull requests; '' for no torch, None for the template's."""
    enterprise: bool | None = None
    """Whether the repository is on a GitHub Enterprise Server; None to keep what is installed."""
    source: str | None = None
    """Source of regbot that the user requests; None to keep the installed one."""
    own_source: str | None = None
    """Source of this regbot; None if unknown. It replaces an installed source that is not usable, and another commit of
    the same repository."""
    other_source: str | None = None
    """Source in the repository's other workflows; None if there is none."""


def read_template(name: str) -> str:
    """Return the text of the template ``name``, which is the file name without its suffix."""
    return (_TEMPLATE_FOLDER / f"{name}.yml").read_text(encoding="utf-8")


def render(name: str, settings: WorkflowSettings, installed: str | None = None) -> str:
    """Return the workflow ``name`` with its stamp and filled fields. Values in the ``installed`` text are kept.

    ``installed`` is the text of the existing file; None if there is none."""
    text = read_template(name)
    installed_body = _body(installed) if installed is not None else ""
    for field in _FIELDS:
        installed_values = _values_by_job(field, installed_body)
        new_values = [
            _field_value(name, field, template_value, installed_values.get(job_and_position), settings)
            for job_and_position, template_value in _values_by_job(field, text).items()
        ]
        text = _fill_fields(field, text, iter(new_values))
    return f"# Written by 'regbot init' ({settings.version}, {_hash(text)}){_ADVICE}\n{text}"


def compare_installed(installed: str | None, wanted: str) -> State:
    """Return how an installed file relates to ``wanted``, the text that regbot would write now."""
    if installed is None:
        return "new"
    if _body(installed) == _body(wanted):
        return "unchanged"
    stamp, body = _STAMP.match(_lines(installed)), _body(installed)
    # The stamp of an old workflow has a hash that includes the values of the later fields, so two hashes are possible.
    fields_of_first_workflows = [field for field in _FIELDS if field not in _LATER_FIELDS]
    hashes = (_hash(body), _hash(body, fields_of_first_workflows))
    is_as_written = stamp is not None and stamp["hash"] in hashes
    return "outdated" if is_as_written else "edited"


def is_for_enterprise(installed: str) -> bool:
    """Return whether an installed workflow uploads artifacts with v3, which is needed on a GitHub Enterprise Server."""
    return any(re.search(r"@v3\b|# v3\b", value) for value in _values("artifacts", _body(installed)))


def version_of(installed: str) -> str:
    """Return the version of regbot that wrote an installed file; '' if the file has no stamp."""
    stamp = _STAMP.match(_lines(installed))
    return stamp["version"] if stamp else ""


def install_sources(installed: str) -> list[str]:
    """Return the sources from which the jobs of an installed workflow install regbot."""
    return _values("source", _body(installed))


def custom_settings(name: str, installed: str) -> list[str]:
    """Return the fields of an installed workflow that differ from the template, such as ``timeout-minutes: 999``.

    The source and the artifact actions are left out, because they are the same in all workflows.
    """
    template, body = read_template(name), _body(installed)
    settings = []
    for field, key in _CUSTOM_FIELDS.items():
        template_values = _values_by_job(field, template)
        for job_and_position, value in _values_by_job(field, body).items():
            if template_values.get(job_and_position) != value:
                settings.append(f"{key}: {printable(value.strip())}")
    return list(dict.fromkeys(settings))


def _field_value(name: str, field: str, template_value: str, installed: str | None, settings: WorkflowSettings) -> str:
    """Return the value for one field of the workflow ``name``.

    ``installed`` is the value in the installed file; None if there is none. If the settings do not replace it, it is
    kept.
    """
    if field == "source":
        return _source_value(name, template_value, installed, settings)
    if field == "runs-on" and _NODE_LABELS.fullmatch(template_value):  # the runner of a job on a node
        if settings.runner is not None:
            return settings.runner.yaml
        return installed or settings.default_runner.yaml
    if field == "artifacts":
        return _artifact_action(template_value, installed, settings.enterprise)
    if installed is not None:
        return installed
    if field == "packages":
        return "".join(f" {shlex.quote(word)}" for word in settings.packages)
    if field == "python" and name == STATIC and settings.python is not None:
        return f'"{settings.python}"'
    if field == "torch" and settings.torch is not None:  # '' means that the job installs no torch
        return settings.torch or '""'
    return template_value


def _source_value(name: str, template_value: str, installed: str | None, settings: WorkflowSettings) -> str:
    """Return the source of regbot: the requested one, the installed one, this regbot's, or that of another workflow.

    A usable installed source is kept, with one exception. If it is a commit of the repository that this regbot comes
    from, this regbot's own commit replaces it.
    """
    own_source = settings.own_source
    if settings.source is not None:
        return source_for(name, settings.source)
    if installed is not None and is_usable(installed):
        is_replaceable = own_source is not None and is_same_repository(installed, own_source)
        if not is_replaceable:
            return installed
    return source_for(name, own_source or settings.other_source or template_value)


def _artifact_action(template_value: str, installed: str | None, enterprise: bool | None) -> str:
    """Return the upload action to write.

    An installed action of version 3 or of another owner is kept, because a user may have chosen it. If the user says
    that this is no GitHub Enterprise Server (``enterprise`` is False), every installed action is replaced, because
    github.com refuses v3.
    """
    is_kept = installed is not None and _KEPT_ACTION.match(installed) is not None
    kept_action = installed if is_kept else None
    if enterprise is None:
        return kept_action or template_value
    if not enterprise:
        return template_value
    return kept_action or ENTERPRISE


def _values(field: str, text: str) -> list[str]:
    return [match["value"] for match in _FIELDS[field].finditer(text)]


def _values_by_job(field: str, text: str) -> dict[tuple[str, int], str]:
    """Return the values of a field, by the name of the job and the position within the job.

    A position in the whole file would not identify a value, because an upgrade may add a job.
    """
    jobs = [(match.start(), match["name"]) for match in _JOB.finditer(text)]
    values: dict[tuple[str, int], str] = {}
    counts: Counter[str] = Counter()
    for match in _FIELDS[field].finditer(text):
        jobs_before = [name for start, name in jobs if start < match.start()]
        job = jobs_before[-1] if jobs_before else ""  # '' before the first job
        values[job, counts[job]] = match["value"]
        counts[job] += 1
    return values


def _fill_fields(field: str, text: str, values: Iterator[str]) -> str:
    """Return ``text`` with all fields of the kind ``field`` filled with ``values``, in order."""

    def fill(match: re.Match[str]) -> str:
        """Return the matched text with the next value in place of its own."""
        start, end = (position - match.start() for position in match.span("value"))
        return match[0][:start] + next(values) + match[0][end:]

    return _FIELDS[field].sub(fill, text)


def _hash(body: str, fields: Iterable[str] = tuple(_FIELDS)) -> str:
    """Return a hash of ``body``, a workflow without its stamp. The hash does not depend on the values of ``fields``."""
    for field in fields:
        body = _fill_fields(field, body, repeat(""))
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def _body(text: str) -> str:
    """Return a workflow without its stamp."""
    return _STAMP.sub("", _lines(text), count=1)


def _lines(text: str) -> str:
    """Return ``text`` with Unix line ends. git may have changed them in a checkout."""
    return text.replace("\r\n", "\n")
