"""``regbot init``: detect facts, plan what to do with each file, write the planned files, and list the next steps.

``regbot.toml`` is written only if it does not exist. From then on it belongs to the user, and regbot never changes it.
``--upgrade`` replaces workflows by newer versions if nobody edited them, and ``--force`` replaces edited workflows too.
Without these options, regbot only shows the differences. ``--only-static`` removes workflows for nodes. It removes
edited workflows only together with ``--force``. Other files are not touched. Each file is written atomically.
"""

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import Field

from regbot.checkout.git import CheckoutError, try_git
from regbot.config import FILE_NAME, ConfigError, parse_config
from regbot.init.configuration import placeholder_warnings
from regbot.init.detection import RepositoryFacts, detect
from regbot.init.file_plan import (
    WAITING,
    WRITTEN,
    InitFile,
    InitOptions,
    PlannedFile,
    plan_configuration,
    read_configuration,
    read_sources,
    sources_after,
    workflow_path,
)
from regbot.init.next_steps import SetupStep, enterprise_step, first_steps, owner_step, source_step, waiting_steps
from regbot.init.repository import has_owner, open_repository, read_text
from regbot.init.runners import DEFAULT, LABEL, Runner
from regbot.init.selection import select_workflows
from regbot.init.source import (
    bare_name_warnings,
    docs_of,
    first_usable,
    is_usable,
    own_source,
    parse_source,
    path_in_repository,
)
from regbot.init.templates import FOLDER, HOSTED_WORKFLOWS, NODE_WORKFLOWS, STATIC, WorkflowSettings
from regbot.records.base import Record
from regbot.records.files import write_text
from regbot.text.printable import printable


class DetectedFact(Record):
    """One detected fact. ``why`` is the evidence for it."""

    what: str
    value: str
    why: str


class InitReport(Record):
    """Result of ``regbot init``. ``docs`` is the address of the pages that texts call docs/...; '' if it is unknown."""

    schema_id: Literal["regbot/init@1"] = Field(default="regbot/init@1", alias="schema")
    root: str
    dry_run: bool
    facts: list[DetectedFact] = Field(alias="found")
    files: list[InitFile]
    next_steps: list[SetupStep]
    warnings: list[str]
    docs: str = ""

    @property
    def waiting(self) -> bool:
        """Whether a file has a newer version that was not written."""
        return any(file.action in WAITING for file in self.files)


def initialise(options: InitOptions) -> InitReport:
    """Set up the repository that contains ``options.folder``.

    Raises CheckoutError if no repository contains it, ConfigError if options or existing files cannot be used, and
    OSError if a file cannot be written.
    """
    _check_options(options)
    repository = open_repository(options.folder)
    root = repository.root
    facts = detect(repository, options.branch)
    requested_runner = Runner(tuple(options.labels)) if options.labels else None
    config = read_configuration(root)
    installed_sources = {name: read_sources(root, name) for name in (*HOSTED_WORKFLOWS, *NODE_WORKFLOWS)}
    # In regbot-static, a path in the repository begins with ./code, so its sources cannot be reused in other workflows.
    reusable_sources = [source for name in installed_sources if name != STATIC for source in installed_sources[name]]
    # None means unknown: there is no option, and no installed workflow is for an Enterprise Server.
    enterprise = options.enterprise if options.enterprise is not None else facts.enterprise or None
    # ``facts.installed`` is the runner in the installed regbot-measure.yml, and ``facts.runner`` the best one in the
    # repository's other workflows. DEFAULT stands for a runner that the user still has to set up.
    settings = WorkflowSettings(
        version=options.version,
        default_runner=facts.installed or facts.runner or DEFAULT,
        runner=requested_runner,
        packages=facts.hosted_packages,
        python=facts.needs.python if facts.needs else None,
        torch=facts.needs.torch if facts.needs else None,
        enterprise=enterprise,
        source=None if options.source is None else parse_source(root, options.source),
        own_source=own_source(),  # where this regbot was installed from
        other_source=first_usable(reusable_sources),  # where another installed workflow installs regbot from
    )
    selection = select_workflows(root, options, config, settings)
    warnings = [
        *facts.warnings,
        *bare_name_warnings({workflow_path(name): sources for name, sources in installed_sources.items()}),
        *selection.warnings,
    ]
    if options.branch and _is_missing_branch(root, options.branch):
        warnings.append(f"there is no branch {printable(options.branch)!r} here yet")
    warnings += _yaml_copy_warnings(root, selection.planned)
    sources = list(dict.fromkeys(sources_after(root, selection.planned)))
    # The address of regbot's documentation; '' if it is unknown.
    docs = docs_of([*sources, settings.own_source or ""])
    planned_config = plan_configuration(config, facts, options.shadow, docs)
    config_text = planned_config.text or read_text(root, FILE_NAME) or ""
    warnings += placeholder_warnings(config or parse_config(config_text, FILE_NAME), config_text)
    planned_files = [planned_config, *selection.planned]
    if not options.dry_run:
        _write(root, planned_files)
    files = [planned_file.file for planned_file in planned_files]
    if config is None:  # the new regbot.toml has only one workload
        warnings += [
            f"also found: {stack.framework} ({stack.evidence}); it has no workload" for stack in facts.other_stacks
        ]
    workflows_change = any(file.action in WRITTEN and file.path.startswith(FOLDER) for file in files)
    all_sources_usable = bool(sources) and all(map(is_usable, sources))
    best_runner = requested_runner or facts.installed or facts.runner or DEFAULT
    timing_runner = best_runner if selection.has_node_workflows else None
    next_steps: list[SetupStep] = []
    if not (all_sources_usable or settings.source or settings.own_source or settings.other_source):
        next_steps.append(source_step())
    if workflows_change and (path := _path_without_owner(root, selection.planned)):
        next_steps.append(owner_step(path))
    # ``settings.enterprise`` is None if it is unknown whether the server is an Enterprise Server.
    if workflows_change and facts.server and settings.enterprise is None:
        next_steps.append(enterprise_step(facts.server))
    next_steps += _next_steps(facts, files, timing_runner, options.shadow, settings.source)
    return InitReport(
        root=printable(str(root)),
        dry_run=options.dry_run,
        facts=[
            *_describe_facts(facts, timing_runner, label_given=bool(options.labels)),
            DetectedFact(
                what="regbot",
                value=", ".join(map(printable, sources)) if all_sources_usable else "not set",
                why="what the workflows install",
            ),
        ],
        files=files,
        next_steps=next_steps,
        warnings=warnings,
        docs=docs,
    )


def _check_options(options: InitOptions) -> None:
    """Raise ConfigError if a label is invalid or two options contradict each other."""
    for label in options.labels:
        if not LABEL.fullmatch(label):
            raise ConfigError(f"--label {printable(label)!r}: is not a valid runner label", "give one word")
    if options.labels and options.only_static:
        raise ConfigError("--label is for timing runners, but --only-static installs no workflow that uses them")


def _write(root: Path, planned_files: Sequence[PlannedFile]) -> None:
    """Write the files that have a new text, and delete those with the action "removed". All other files stay."""
    for planned_file in planned_files:
        if planned_file.text is not None:
            write_text(root / planned_file.file.path, planned_file.text)
        elif planned_file.file.action == "removed":
            (root / planned_file.file.path).unlink()


def _yaml_copy_warnings(root: Path, planned_files: Sequence[PlannedFile]) -> list[str]:
    """Return a warning for each planned workflow that also exists with the suffix .yaml. GitHub runs both files."""
    warnings = []
    for planned_file in planned_files:
        path = PurePosixPath(planned_file.file.path)
        copy = path.with_suffix(".yaml")
        if planned_file.file.action != "removed" and os.path.lexists(root / copy):
            warnings.append(f"{copy}: GitHub runs this file and also {path.name}; remove one of them")
    return warnings


def _path_without_owner(root: Path, planned_files: Sequence[PlannedFile]) -> str:
    """Return the path in the repository from which jobs with a token install regbot, if CODEOWNERS does not cover it.

    Return '' if CODEOWNERS covers the path, or if regbot is installed from elsewhere. The workflow STATIC is left out,
    because its job has no token that can write.
    """
    files_with_token = [
        planned_file for planned_file in planned_files if planned_file.file.path != workflow_path(STATIC)
    ]
    paths = filter(None, map(path_in_repository, sources_after(root, files_with_token)))
    path = next(paths, "")
    return "" if has_owner(root, path) else path


def _describe_facts(facts: RepositoryFacts, runner: Runner | None, *, label_given: bool) -> list[DetectedFact]:
    """Return the facts for the report. ``runner`` is the runner for timed runs; None without workflows for nodes.
    ``label_given`` says whether the option --label names the runner."""
    described = []
    if facts.entry is not None:
        described.append(DetectedFact(what="layer", value=facts.entry.text, why=facts.entry.file))
    if facts.stack is not None:
        described.append(DetectedFact(what="framework", value=facts.stack.framework, why=facts.stack.evidence))
    if facts.entry is None and facts.stack is None:
        described.append(DetectedFact(what="layer", value="", why="no build_layer and no known framework was found"))
    described.append(DetectedFact(what="default branch", value=printable(facts.branch.name), why=facts.branch.why))
    if runner is not None:
        described.append(DetectedFact(what="runner", value=str(runner), why=_runner_evidence(facts, label_given)))
    if facts.slurm:
        described.append(DetectedFact(what="Slurm", value="yes", why=facts.slurm))
    return described


def _runner_evidence(facts: RepositoryFacts, label_given: bool) -> str:
    """Return where the runner for timed runs comes from: an option, an installed workflow, or other workflows."""
    if label_given:
        return "--label"
    if facts.installed:
        return "regbot-measure.yml"
    if facts.runner is None:
        return "none was found"
    return "other workflows; its name suggests a GPU" if facts.runner.gpu else "other workflows"


def _next_steps(
    facts: RepositoryFacts, files: Sequence[InitFile], runner: Runner | None, shadow: bool, source: str | None
) -> list[SetupStep]:
    """Return the steps for files that wait for the user, or else the steps after a first installation.

    ``runner`` is the runner for timed runs; None without workflows for nodes. ``source`` is the value of --source."""
    actions = {file.action for file in files}
    if actions & WAITING:
        return waiting_steps("outdated" in actions, "edited" in actions, source)
    return first_steps(facts, runner, shadow) if "created" in actions else []


def _is_missing_branch(root: Path, branch: str) -> bool:
    """Return whether ``branch`` exists neither here nor at origin. Raises CheckoutError for an invalid branch name."""
    if try_git(root, "check-ref-format", "--branch", branch).code != 0:
        raise CheckoutError(f"--branch {printable(branch)!r}: is not a valid branch name")
    refs = (f"refs/heads/{branch}", f"refs/remotes/origin/{branch}")
    return all(try_git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", ref).code != 0 for ref in refs)
