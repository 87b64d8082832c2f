"""Which workflows a repository is to have: those that its configuration and its nodes give work to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from regbot.config import FILE_NAME, Config, ConfigError
from regbot.init.planned import Options, Planned, edited, file_of, plan_removal, plan_workflow
from regbot.init.templates import HOSTED, NODES, OWN_ARTIFACT, Settings

STATIC = "regbot-static"


@dataclass(frozen=True)
class Selection:
    """The workflows that are planned for, what is said about those that are not, and whether any is for nodes."""

    planned: list[Planned]
    warnings: list[str]
    nodes: bool


def select(root: Path, options: Options, config: Config | None, settings: Settings) -> Selection:
    """``config``: that is there already. Raises ConfigError."""
    there = {name for name in (*HOSTED, *NODES) if (root / file_of(name)).exists()}
    untraced = config is not None and all(each.adapter == "command" for each in config.workloads.values())
    if untraced and options.only_static:
        raise ConfigError(
            f"--only-static installs nothing that could measure: every workload of {FILE_NAME} is a command, of which "
            "only step times can be measured, on a node"
        )
    unread = OWN_ARTIFACT if settings.enterprise else ()
    only_static, left, warnings = _nodes(root, there, options, settings, [name for name in NODES if name not in unread])
    wanted = [*HOSTED, *(() if only_static else NODES)]
    wanted = [name for name in wanted if name not in (*left, *unread) and not (untraced and name == STATIC)]
    planned = [plan_workflow(root, name, settings, options) for name in wanted]
    away: list[Planned | None] = []
    if options.only_static:
        away = [plan_removal(root, name, settings, options, "--only-static", told=True) for name in NODES]
    elif unread:
        why = (
            "the last job reads an artifact of its own run, which a GitHub Enterprise Server shows only when the run "
            "has ended"
        )
        away = [plan_removal(root, name, settings, options, why, told=False) for name in unread]
        if not only_static:
            warnings.append(f"{' and '.join(unread)} are left out: {why} (docs/github.md)")
    if untraced:
        why = f"every workload of {FILE_NAME} is a command, which cannot be traced"
        away.append(plan_removal(root, STATIC, settings, options, why, told=False))
        nodes = "; 'regbot init --with-nodes' installs what times it" if only_static else ""
        warnings.append(f"{STATIC} is left out: {why}, and only '/regbot run' on a node measures one{nodes}")
    return Selection([*planned, *(each for each in away if each is not None)], warnings, not only_static)


def _nodes(
    root: Path, there: set[str], options: Options, settings: Settings, possible: Sequence[str]
) -> tuple[bool, list[str], list[str]]:
    """Whether those for nodes are left out, all or which of the ``possible`` ones, and what is said of it."""
    if options.only_static is not None or not there:
        return bool(options.only_static), [], []
    held = there & set(NODES)
    missing = [name for name in possible if name not in there]
    asis = replace(settings, source=None, runner=None, enterprise=None)
    if not held or not missing or not all(edited(root, name, asis) for name in held):
        return not held, [], []
    warning = (
        f"not written: {', '.join(missing)}. Of those for nodes only what somebody edited is here, as --only-static "
        "leaves it; 'regbot init --with-nodes' brings them back"
    )
    return False, missing, [warning]
