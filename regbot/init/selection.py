"""Select the workflows to install in a repository, from its configuration and the options of ``regbot init``."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from regbot.config import FILE_NAME, Config, ConfigError
from regbot.init.file_plan import InitOptions, PlannedFile, is_edited, plan_removal, plan_workflow, workflow_path
from regbot.init.templates import HOSTED_WORKFLOWS, NODE_WORKFLOWS, OWN_ARTIFACT_WORKFLOWS, STATIC, WorkflowSettings


@dataclass(frozen=True)
class Selection:
    """The planned workflows, and warnings about workflows that are left out."""

    planned: list[PlannedFile]
    warnings: list[str]
    has_node_workflows: bool
    """Whether the plan includes workflows for nodes."""


def select_workflows(root: Path, options: InitOptions, config: Config | None, settings: WorkflowSettings) -> Selection:
    """Select the workflows to install and to remove.

    ``config`` is the repository's ``regbot.toml``; None if there is none. ``_select_node_workflows`` says when
    workflows for nodes are left out. The workflow that traces is left out if no workload can be traced.

    Raises ConfigError if the options leave nothing to measure.
    """
    installed = {name for name in (*HOSTED_WORKFLOWS, *NODE_WORKFLOWS) if (root / workflow_path(name)).exists()}
    # Without a configuration, ``regbot init`` writes one whose workload is traced.
    nothing_to_trace = config is not None and all(
        workload.adapter == "command" for workload in config.workloads.values()
    )
    if nothing_to_trace and options.only_static:
        raise ConfigError(
            f"--only-static leaves nothing to measure: every workload of {FILE_NAME} is a command, and a command can "
            "only be timed, on a node"
        )
    # Workflows that do not run on a GitHub Enterprise Server.
    unsupported = OWN_ARTIFACT_WORKFLOWS if settings.enterprise else ()
    supported = [name for name in NODE_WORKFLOWS if name not in unsupported]
    omits_node_workflows, left_out, warnings = _select_node_workflows(root, installed, options, settings, supported)
    excluded = {*left_out, *unsupported, *([STATIC] if nothing_to_trace else [])}
    candidates = HOSTED_WORKFLOWS if omits_node_workflows else (*HOSTED_WORKFLOWS, *NODE_WORKFLOWS)
    planned_files = [plan_workflow(root, name, settings, options) for name in candidates if name not in excluded]
    removals: list[PlannedFile | None] = []  # None for a workflow that is not installed
    if options.only_static:
        removals = [
            plan_removal(root, name, settings, options, "--only-static", explicit=True) for name in NODE_WORKFLOWS
        ]
    elif unsupported:
        reason = (
            "the last job reads an artifact of its own run, which a GitHub Enterprise Server provides only after the "
            "run has ended"
        )
        removals = [plan_removal(root, name, settings, options, reason, explicit=False) for name in unsupported]
        if not omits_node_workflows:
            warnings.append(f"{' and '.join(unsupported)} are left out: {reason} (docs/github.md)")
    if nothing_to_trace:
        reason = f"every workload of {FILE_NAME} is a command, which cannot be traced"
        removals.append(plan_removal(root, STATIC, settings, options, reason, explicit=False))
        advice = "; 'regbot init --with-nodes' installs the workflows that time it" if omits_node_workflows else ""
        warnings.append(f"{STATIC} is left out: {reason}, and only '/regbot run' on a node measures one{advice}")
    planned_files += [removal for removal in removals if removal is not None]
    return Selection(planned_files, warnings, has_node_workflows=not omits_node_workflows)


def _select_node_workflows(
    root: Path, installed: set[str], options: InitOptions, settings: WorkflowSettings, possible: Sequence[str]
) -> tuple[bool, list[str], list[str]]:
    """Return three things: whether all workflows for nodes are left out, which of ``possible`` are left out otherwise,
    and warnings.

    ``installed`` has the names of all installed workflows. ``possible`` has the workflows for nodes that can run on the
    repository's server.

    The options --only-static and --with-nodes decide. Without these options, a first installation has all workflows.
    A later run installs workflows for nodes only if some are installed already. If all of these are edited, the missing
    ones are left out too. The user may have given --only-static, which keeps edited workflows and removes the others.
    """
    if options.only_static is not None or not installed:  # True for --only-static, False for --with-nodes
        return bool(options.only_static), [], []
    installed_node_workflows = installed & set(NODE_WORKFLOWS)
    if not installed_node_workflows:
        return True, [], []
    missing = [name for name in possible if name not in installed]
    if not missing:
        return False, [], []
    # These settings keep all installed values, so that only the user's edits make a difference.
    unchanged_settings = replace(settings, source=None, runner=None, enterprise=None)
    if not all(is_edited(root, name, unchanged_settings) for name in installed_node_workflows):
        return False, [], []
    warning = (
        f"not written: {', '.join(missing)}. Only edited workflows for nodes are installed, as after --only-static; "
        "'regbot init --with-nodes' installs the others again"
    )
    return False, missing, [warning]
