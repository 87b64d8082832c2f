"""The commands ``regbot baseline list|show|add|verify|anchor`` and the text that they print.

A *group* is the sessions of one workload, node class and environment.
"""

import getpass
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath

from regbot.baselines.intake import Intake, distil
from regbot.baselines.names import class_folder
from regbot.baselines.store import BaselineError, Store
from regbot.records.baseline import (
    Acceptance,
    Anchor,
    Baseline,
    BaselineAddition,
    BaselineCheck,
    BaselineGroup,
    BaselineListing,
    EnvironmentKey,
    MoveEvidence,
    format_time,
)
from regbot.records.session import Session
from regbot.records.text.clip import clip_label, short_commit
from regbot.records.text.printable import printable
from regbot.records.text.words import count
from regbot.records.verdict import Verdict
from regbot.stats.prediction import SESSION_RUNS

MIN_HASH_CHARS = 6


@dataclass(frozen=True)
class AnchorMove:
    workload: str
    commit: str
    who: str
    why: str
    variant: str | None = None
    """None if timed sessions of only one variant are stored."""
    node_class: str | None = None
    """None if timed sessions of only one node class are stored."""
    evidence: MoveEvidence | None = None
    """The measured slowdown since the old anchor; None if it was not measured."""
    accepted: Acceptance | None = None
    """The slowdown that a person accepted; None if nobody had to accept one."""


def default_who() -> str:
    """Return the name of the user: the actor of the GitHub workflow if there is one, otherwise the user of this
    machine.
    """
    name = os.environ.get("GITHUB_ACTOR")
    if not name:
        try:
            name = getpass.getuser()
        except (OSError, KeyError):  # a container may run as a user without a name
            name = f"user {os.getuid()}"
    return clip_label(printable(name))


def add(
    store: Store, session: Session, verdict: Verdict, intake: Intake, now: datetime | None = None
) -> BaselineAddition:
    """Store one arm of a session.

    ``intake`` says which arm is stored, by whom and why. Raises BaselineError, OSError.
    """
    distilled = distil(session, verdict, intake, now or datetime.now(UTC))
    files = store.add(distilled.baselines, distilled.ledgers)
    unknown_fields = sorted({name for baseline in distilled.baselines for name in baseline.environment.unknown})
    warnings = [
        f"{baseline.workload}: checks will not be compared with this session, because it has "
        f"{count(len(baseline.runs), 'run')} of {intake.arm} in valid pairs, and {SESSION_RUNS} are needed; add a "
        "session of 'regbot check --gate pairs'"
        for baseline in distilled.baselines
        if baseline.tier == "timed" and len(baseline.runs) < SESSION_RUNS
    ]
    if unknown_fields:
        names = ", ".join(unknown_fields)
        warnings.append(f"unknown fields of the environment, assumed to be always the same: {names}")
    return BaselineAddition(files=[str(path) for path in files], warnings=warnings)


def list_groups(store: Store) -> BaselineListing:
    """List all groups of stored sessions: those of one workload, variant, node class and environment. Raises
    BaselineError.
    """
    groups = []
    for folder in store.class_folders():
        sessions_by_group: dict[tuple[str, str, str], list[Baseline]] = {}
        for session in store.read_sessions(folder).values():
            key = session.tier, session.node_class, session.environment.model_dump_json()
            sessions_by_group.setdefault(key, []).append(session)
        for oldest_first in sessions_by_group.values():
            sample = oldest_first[0]
            anchor = store.anchor(sample.workload, sample.variant, sample.node_class)
            groups.append(
                BaselineGroup(
                    workload=sample.workload,
                    variant=sample.variant,
                    tier=sample.tier,
                    node_class=sample.node_class,
                    environment=sample.environment,
                    folder=str(folder),
                    sessions=len(oldest_first),
                    first=sample.measured,
                    last=oldest_first[-1].measured,
                    anchor=anchor.commit if anchor else None,
                )
            )
    return BaselineListing(groups=groups)


def find_session(store: Store, name: str) -> tuple[PurePosixPath, Baseline]:
    """Return path and content of the stored session whose hash begins with ``name``.

    ``name`` may also be the path of a file. Raises BaselineError if no session matches, or more than one.
    """
    prefix = PurePosixPath(name).name.removesuffix(".json")
    if len(prefix) < MIN_HASH_CHARS:
        advice = f"give at least {MIN_HASH_CHARS} characters of the hash"
        raise BaselineError(store.root, f"{name!r} is too short", advice)
    stored_paths = (path for folder in store.class_folders() for path in store.sessions(folder))
    paths = [path for path in stored_paths if path.name.startswith(prefix)]
    if len(paths) != 1:
        many = f"{len(paths)} stored sessions begin with {prefix!r}"
        problem = many if paths else f"no stored session begins with {prefix!r}"
        raise BaselineError(store.root, problem, "see 'regbot baseline list', and the files in its folders")
    return paths[0], store.session(paths[0])


def find_anchors(
    store: Store, workload: str, variant: str | None = None, node_class: str | None = None
) -> list[Anchor]:
    """Return the anchors of a workload. None for ``variant`` or ``node_class`` selects all. Raises BaselineError."""
    # Each key has the workload, the variant and the node class.
    anchors = [store.anchor(*class_key) for class_key in matching_classes(store, workload, variant, node_class)]
    return [anchor for anchor in anchors if anchor is not None]


def move_anchor(store: Store, move: AnchorMove, now: datetime | None = None) -> Anchor:
    """Make a commit the anchor of one variant and node class. Return the anchor as it is stored now.

    The store must contain a session of the commit for this variant and node class. Raises BaselineError if there is
    none, or if the arguments match several variants, node classes or commits. Raises OSError.
    """
    classes = matching_classes(store, move.workload, move.variant, move.node_class)
    if not classes:
        problem = f"no timed session of {move.workload} is stored for this variant and class"
        raise BaselineError(store.root, problem, "add a session of the commit first")
    if len(classes) > 1:
        names = "; ".join(f"{variant} on {node_class}" for _, variant, node_class in classes)
        problem = f"there are {len(classes)} variants and classes of {move.workload}: {names}"
        raise BaselineError(store.root, problem, "choose one with --variant and --class")
    ((workload, variant, node_class),) = classes
    sessions = store.read_sessions(class_folder(workload, variant, node_class)).values()
    tree_by_commit = {  # the id of the git tree of the commit, by commit
        session.commit: session.tree
        for session in sessions
        if session.node_class == node_class and session.commit.startswith(move.commit.lower())
    }
    if len(tree_by_commit) != 1:
        problem = f"{len(tree_by_commit)} commits with stored sessions begin with {move.commit!r}"
        advice = "give more characters of the commit" if tree_by_commit else "add a session of that commit first"
        raise BaselineError(store.root, problem, advice)
    ((commit, tree),) = tree_by_commit.items()
    path = store.move_anchor(
        Anchor(
            workload=workload,
            variant=variant,
            node_class=node_class,
            commit=commit,
            tree=tree,
            moved=format_time(now or datetime.now(UTC)),
            who=move.who,
            why=move.why,
            previous=None,  # ``Store.move_anchor`` fills it in
            evidence=move.evidence,
            accepted=move.accepted,
        )
    )
    return store.read_anchor(path)


def list_page(listing: BaselineListing) -> str:
    if not listing.groups:
        return "no session is stored; add one with 'regbot baseline add SESSION'"
    paragraphs = []
    for group in listing.groups:
        lines = [
            f"{group.workload}  {group.variant}  {group.tier}",
            f"  class        {printable(group.node_class)}",
            f"  environment  {format_environment(group.environment)}",
            f"  sessions     {group.sessions}, {group.first} to {group.last}",
        ]
        if group.tier != "static":  # traces have no anchor
            lines.append(f"  anchor       {short_commit(group.anchor) if group.anchor else 'none'}")
        lines.append(f"  folder       {group.folder}")
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


def show_page(path: PurePosixPath, baseline: Baseline) -> str:
    """Return one stored session as text: its origin and every run."""
    provenance = baseline.provenance
    lines = [
        f"{baseline.workload}  {baseline.variant}  {baseline.tier}, serves the {baseline.series} reference",
        f"  file         {path}",
        f"  measured     {baseline.measured} at {short_commit(baseline.commit)} ({printable(provenance.revision)})",
        f"  class        {printable(baseline.node_class)}",
        f"  node         {printable(provenance.node or 'any')}",
        f"  environment  {format_environment(baseline.environment)}",
        f"  dispatcher   {printable(baseline.executed or 'not seen')}",
        f"  ledger       {baseline.ledger or 'none'}",
        f"  stored by    {printable(provenance.who)}: {printable(provenance.why)}",
    ]
    if baseline.runs:
        level_s = baseline.level_s
        levels = f"{_ms(level_s['median'])} median, {_ms(level_s['mean'])} mean"
        lines += [
            f"  timed        {baseline.steps} steps, {baseline.cut} of them warm-up, on {baseline.world_size} ranks",
            f"  level        {levels} of {len(baseline.runs)} runs",
        ]
        for run in baseline.runs:
            times = f"{_ms(math.exp(run.log_median)):>10} {_ms(math.exp(run.log_mean)):>10}"
            lines.append(f"    block {run.block} slot {run.slot}  {times}")
    return "\n".join(lines)


def verify_page(check: BaselineCheck) -> str:
    """Return the text of a check of the store: one line for each problem, and then a line that counts the files."""
    counts = f"{check.sessions} sessions, {check.ledgers} ledgers, {check.anchors} anchors"
    counts += f", {count(check.calibrations, 'calibration')}" if check.calibrations else ""
    if not check.problems:
        return f"the store is sound: {counts}"
    return "\n".join([*map(printable, check.problems), f"{count(len(check.problems), 'problem')} in {counts}"])


def anchor_page(anchors: Sequence[Anchor]) -> str:
    if not anchors:
        return "there is no anchor; set one with 'regbot baseline anchor WORKLOAD --to COMMIT --why TEXT'"
    paragraphs = []
    for anchor in anchors:
        lines = [
            f"{anchor.workload}  {anchor.variant}  anchor {short_commit(anchor.commit)}",
            f"  class      {printable(anchor.node_class)}",
            f"  moved      {anchor.moved} by {printable(anchor.who)}: {printable(anchor.why)}",
            f"  before     {short_commit(anchor.previous) if anchor.previous else 'none'}",
        ]
        if anchor.evidence is not None:  # the slowdown that was measured since the anchor before
            evidence = anchor.evidence
            interval = f"{evidence.estimate_pct:+.1f}% [{evidence.low_pct:+.1f}, {evidence.high_pct:+.1f}]"
            lines.append(f"  absorbed   {interval} in {evidence.pairs} pairs")
        if anchor.accepted is not None:
            accepted = anchor.accepted
            lines.append(
                f"  accepted   {accepted.slowdown_pct:+.1f}% by {printable(accepted.who)}: {printable(accepted.why)}"
            )
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


def added_page(added: BaselineAddition) -> str:
    return "\n".join(
        [*(f"warning: {warning}" for warning in added.warnings), *(f"stored {file}" for file in added.files)]
    )


def format_environment(key: EnvironmentKey) -> str:
    """Return the known fields of an environment with their values, then the names of the unknown fields."""
    words = []
    for name, value in key.model_dump().items():
        if value is not None:
            is_hash = name in ("packages", "variables", "model")
            words.append(f"{name} {short_commit(value) if is_hash else printable(value)}")
    if key.unknown:
        words.append(f"unknown: {', '.join(key.unknown)}")
    return "; ".join(words)


def matching_classes(
    store: Store, workload: str, variant: str | None, node_class: str | None
) -> list[tuple[str, str, str]]:
    """Return workload, variant and node class of all timed sessions that match the filters, without
    duplicates. None for ``variant`` or ``node_class`` matches all.
    """
    classes: dict[tuple[str, str, str], None] = {}
    for folder in store.class_folders():
        for session in store.read_sessions(folder).values():
            is_match = variant in (None, session.variant) and node_class in (None, session.node_class)
            if session.tier == "timed" and session.workload == workload and is_match:
                classes[session.workload, session.variant, session.node_class] = None
    return list(classes)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"
