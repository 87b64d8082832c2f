"""``regbot init``, in order: look, decide for each file, write what may be written, say what comes next.

``regbot.toml`` is written once and is the user's from then on. A workflow that nobody edited is replaced by a newer one
with ``--upgrade``, one that somebody edited only with ``--force``; both are shown as a diff first. ``--only-static``
takes workflows for nodes away by the same rule. Nothing else is touched, and what is written is written whole or not at
all, file by file.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from regbot.checkout.git import CheckoutError, try_git
from regbot.config import ConfigError
from regbot.init.detection import Findings, detect
from regbot.init.next_steps import Step, enterprise_step, first_steps, owner_step, source_step, waiting_steps
from regbot.init.planned import (
    WAITING,
    WRITTEN,
    InitFile,
    Options,
    Planned,
    configured,
    file_of,
    plan_configuration,
    sources_of,
    sources_then,
)
from regbot.init.repository import open_repository, owned
from regbot.init.runners import DEFAULT, LABEL, Runner
from regbot.init.selection import STATIC, select
from regbot.init.source import docs_of, first_usable, given_source, inside, own_source, strangers, usable
from regbot.init.templates import FOLDER, HOSTED, NODES, Settings
from regbot.records.base import Record
from regbot.records.files import write_text
from regbot.text import printable


class Found(Record):
    """One thing that was found out, and from what."""

    what: str
    value: str
    why: str


class Initialised(Record):
    """What ``regbot init`` found and did. ``docs``: where the pages that are named as docs/... can be read, '' where
    that is not known."""

    schema_id: Literal["regbot/init@1"] = Field(default="regbot/init@1", alias="schema")
    root: str
    dry_run: bool
    found: list[Found]
    files: list[InitFile]
    next_steps: list[Step]
    warnings: list[str]
    docs: str = ""

    @property
    def waiting(self) -> bool:
        """Is there something newer that was not written?"""
        return any(file.action in WAITING for file in self.files)


def initialise(options: Options) -> Initialised:
    """Set up the repository that ``options.folder`` lies in.

    Raises CheckoutError where there is none, ConfigError where what is given or what is there cannot be used, OSError
    where a file cannot be written.
    """
    _usable(options)
    repository = open_repository(options.folder)
    root = repository.root
    found = detect(repository, options.branch)
    runner = Runner(tuple(options.labels)) if options.labels else None
    config = configured(root)
    there = {name: sources_of(root, name) for name in (*HOSTED, *NODES)}
    settings = Settings(
        version=options.version,
        default_runner=found.installed or found.runner or DEFAULT,
        runner=runner,
        packages=("-r", "code/requirements.txt") if found.installs_requirements else (),
        enterprise=options.enterprise if options.enterprise is not None else found.enterprise or None,
        source=None if options.source is None else given_source(root, options.source),
        own_source=own_source(),
        other_source=first_usable(each for name in there if name != "regbot-static" for each in there[name]),
    )
    selected = select(root, options, config, settings)
    warnings = [*found.warnings, *strangers({file_of(name): each for name, each in there.items()}), *selected.warnings]
    if options.branch and _no_such_branch(root, options.branch):
        warnings.append(f"there is no branch {printable(options.branch)!r} here yet")
    warnings += _twice(root, selected.planned)
    sources = list(dict.fromkeys(sources_then(root, selected.planned)))
    docs = docs_of([*sources, settings.own_source or ""])
    planned = [plan_configuration(config, found, options.shadow, docs), *selected.planned]
    if not options.dry_run:
        _write(root, planned)
    files = [each.file for each in planned]
    if config is None:
        others = ((each.framework, each.evidence) for each in found.other_stacks)
        warnings += [f"also found: {framework} ({evidence}); it has no workload" for framework, evidence in others]
    changed = any(file.action in WRITTEN and file.path.startswith(FOLDER) for file in files)
    ask = changed and settings.enterprise is None
    known = bool(sources) and all(map(usable, sources))
    timed_on = runner or found.installed or found.runner or DEFAULT if selected.nodes else None
    return Initialised(
        root=printable(str(root)),
        dry_run=options.dry_run,
        found=[
            *_said(found, timed_on, given=bool(options.labels)),
            Found(
                what="regbot",
                value=", ".join(map(printable, sources)) if known else "not set",
                why="what the workflows install",
            ),
        ],
        files=files,
        next_steps=[
            *([] if known or settings.source or settings.own_source or settings.other_source else [source_step()]),
            *([owner_step(path)] if (path := _unowned(root, selected.planned)) and changed else []),
            *([enterprise_step(found.server)] if found.server and ask else []),
            *_next(found, files, timed_on, options.shadow, settings.source),
        ],
        warnings=warnings,
        docs=docs,
    )


def _usable(options: Options) -> None:
    for label in options.labels:
        if not LABEL.fullmatch(label):
            raise ConfigError(f"--label {printable(label)!r}: is no label of a runner; give one word")
    if options.labels and options.only_static:
        raise ConfigError("--label is of runners for timing, and --only-static installs nothing that runs there")


def _write(root: Path, planned: Sequence[Planned]) -> None:
    for each in planned:
        if each.text is not None:
            write_text(root / each.file.path, each.text)
        elif each.file.action == "removed":
            (root / each.file.path).unlink()


def _twice(root: Path, planned: Sequence[Planned]) -> list[str]:
    """GitHub takes files that end with .yaml as well."""
    stay = (each.file.path for each in planned if each.file.action != "removed")
    also = [path for path in (f"{path.removesuffix('.yml')}.yaml" for path in stay) if os.path.lexists(root / path)]
    return [
        f"{path}: GitHub runs it beside {path.rpartition('/')[2].removesuffix('.yaml')}.yml, and both would act; "
        "remove one of them"
        for path in also
    ]


def _unowned(root: Path, planned: Sequence[Planned]) -> str:
    """The path in the repository that jobs with a token install regbot from, where no file of owners names it."""
    trusted = [each for each in planned if each.file.path != file_of(STATIC)]
    path = next(filter(None, map(inside, sources_then(root, trusted))), "")
    return "" if owned(root, path) else path


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
