"""``regbot baseline list|show|add|verify|anchor``: what each does, and the page that it prints."""

import getpass
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from regbot.baselines.intake import Intake, distil
from regbot.baselines.names import class_folder
from regbot.baselines.store import BaselineError, Store
from regbot.baselines.verify import verify
from regbot.records.baseline import (
    Acceptance,
    Anchor,
    Baseline,
    BaselineAdded,
    BaselineCheck,
    BaselineGroup,
    BaselineListing,
    EnvironmentKey,
    MoveEvidence,
    utc,
)
from regbot.records.session import read_session
from regbot.text import printable

SHORTEST_HASH = 6


@dataclass(frozen=True)
class Move:
    """What ``anchor --to`` was given. ``commit`` may be the beginning of one."""

    workload: str
    commit: str
    who: str
    why: str
    variant: str | None = None
    node_class: str | None = None
    evidence: MoveEvidence | None = None
    accepted: Acceptance | None = None


def default_who() -> str:
    """Who runs this: the actor of the workflow, else the user of this machine."""
    name = os.environ.get("GITHUB_ACTOR")
    if not name:
        try:
            name = getpass.getuser()
        except (OSError, KeyError):  # a container whose user has no name
            name = f"user {os.getuid()}"
    return printable(name)[:500]


def add(store: Store, session: Path, asked: Intake, now: datetime | None = None) -> BaselineAdded:
    """Store one arm of a session file. What is returned is on the disk. Raises RecordError, OSError."""
    distilled = distil(read_session(session), asked, now or datetime.now(UTC))
    files = store.add(distilled.baselines, distilled.ledgers)
    unknown = sorted({name for baseline in distilled.baselines for name in baseline.environment.unknown})
    return BaselineAdded(
        files=[str(path) for path in files],
        warnings=[f"of the environment not known and taken to be always the same: {', '.join(unknown)}"]
        if unknown
        else [],
    )


def listing(store: Store) -> BaselineListing:
    """All groups of stored sessions; one session of each is read whole. Raises BaselineError."""
    groups = []
    for folder in store.groups():
        span, paths = store.index.span(folder), store.index.named(folder, most=1)
        if span is None or not paths:
            continue
        first = store.session(paths[0])
        anchor = store.anchor(first.workload, first.variant, first.node_class)
        groups.append(
            BaselineGroup(
                workload=first.workload,
                variant=first.variant,
                tier=first.tier,
                node_class=first.node_class,
                environment=first.environment,
                folder=str(folder),
                sessions=span.sessions,
                first=span.first,
                last=span.last,
                anchor=anchor.commit if anchor else None,
            )
        )
    return BaselineListing(groups=groups)


def find(store: Store, name: str) -> tuple[PurePosixPath, Baseline]:
    """The stored session whose file's hash begins with ``name``. Raises BaselineError."""
    start = PurePosixPath(name).name.removesuffix(".json")
    if len(start) < SHORTEST_HASH:
        raise BaselineError(
            store.root, f"{name!r} is too short", f"give {SHORTEST_HASH} characters of the hash or more"
        )
    paths = [path for group in store.groups() for path in store.index.named(group, start)]
    if len(paths) != 1:
        what = (
            f"{len(paths)} stored sessions begin with {start!r}"
            if paths
            else f"no stored session begins with {start!r}"
        )
        raise BaselineError(store.root, what, "see 'regbot baseline list', and the files in its folders")
    return paths[0], store.session(paths[0])


def verified(store: Store, now: datetime | None = None) -> BaselineCheck:
    """Read the whole store and tell every problem. Raises BaselineError where there is no store."""
    return verify(store, now or datetime.now(UTC))


def anchors(store: Store, workload: str, variant: str | None = None, node_class: str | None = None) -> list[Anchor]:
    """The anchors of a workload, of the variant and class asked for. Raises BaselineError."""
    return [
        anchor
        for name, found_variant, found_class in _classes(store, workload, variant, node_class)
        if (anchor := store.anchor(name, found_variant, found_class)) is not None
    ]


def move_anchor(store: Store, move: Move, now: datetime | None = None) -> Anchor:
    """Make a commit the anchor of one class: one of which a session is stored there. Raises BaselineError, OSError."""
    classes = _classes(store, move.workload, move.variant, move.node_class)
    if len(classes) != 1:
        names = "; ".join(f"{variant} on {node_class}" for _, variant, node_class in classes)
        raise BaselineError(
            store.root,
            f"there are {len(classes)} variants and classes of {move.workload}: {names}"
            if classes
            else f"no timed session of {move.workload} is stored for what was asked",
            "name one with --variant and --class" if classes else "add a session of the commit first",
        )
    ((workload, variant, node_class),) = classes
    found = {}
    for group in store.folders(class_folder(workload, variant, node_class)):
        for commit, path in store.index.commits(group, move.commit.lower()):
            if commit not in found:
                found[commit] = store.session(path).tree
    if len(found) != 1:
        what = f"{len(found)} commits with stored sessions begin with {move.commit!r}"
        raise BaselineError(store.root, what, "give more of it" if found else "add a session of that commit first")
    ((commit, tree),) = found.items()
    path = store.move_anchor(
        Anchor(
            workload=workload,
            variant=variant,
            node_class=node_class,
            commit=commit,
            tree=tree,
            moved=utc(now or datetime.now(UTC)),
            who=move.who,
            why=move.why,
            previous=None,
            evidence=move.evidence,
            accepted=move.accepted,
        )
    )
    return store.read_anchor(path)


def list_page(found: BaselineListing) -> str:
    """A paragraph for each group."""
    if not found.groups:
        return "no session is stored; add one with 'regbot baseline add SESSION'"
    parts = []
    for group in found.groups:
        lines = [
            f"{group.workload}  {group.variant}  {group.tier}",
            f"  class        {printable(group.node_class)}",
            f"  environment  {environment_words(group.environment)}",
            f"  sessions     {group.sessions}, {group.first} to {group.last}",
            f"  anchor       {group.anchor[:12] if group.anchor else 'none'}",
            f"  folder       {group.folder}",
        ]
        parts.append("\n".join(lines[:4] + lines[5:] if group.tier == "static" else lines))
    return "\n\n".join(parts)


def show_page(path: PurePosixPath, found: Baseline) -> str:
    """One stored session in full: where it comes from, and every run."""
    from_ = found.provenance
    lines = [
        f"{found.workload}  {found.variant}  {found.tier}, serves the {found.series} reference",
        f"  file         {path}",
        f"  measured     {found.measured} at {found.commit[:12]} ({printable(from_.revision)})",
        f"  class        {printable(found.node_class)}",
        f"  node         {printable(from_.node or 'any')}",
        f"  environment  {environment_words(found.environment)}",
        f"  dispatcher   {printable(found.executed or 'not seen')}",
        f"  ledger       {found.ledger or 'none'}",
        f"  stored by    {printable(from_.who)}: {printable(from_.why)}",
    ]
    if found.runs:
        level = found.level_s
        lines += [
            f"  timed        {found.steps} steps, {found.cut} of them warm-up, on {found.world_size} ranks",
            f"  level        {_ms(level['median'])} median, {_ms(level['mean'])} mean of {len(found.runs)} runs",
        ]
        for run in found.runs:
            times = f"{_ms(math.exp(run.log_median)):>10} {_ms(math.exp(run.log_mean)):>10}"
            lines.append(f"    block {run.block} slot {run.slot}  {times}")
    return "\n".join(lines)


def verify_page(found: BaselineCheck) -> str:
    """The problems, one a line, or that there is none."""
    held = f"{found.sessions} sessions, {found.ledgers} ledgers, {found.anchors} anchors"
    held += f", {found.calibrations} calibration{'s' * (found.calibrations > 1)}" if found.calibrations else ""
    notes = [f"note: {printable(note)}" for note in found.notes]
    if not found.problems:
        return "\n".join([*notes, f"the store is sound: {held}"])
    count = len(found.problems)
    return "\n".join([*notes, *map(printable, found.problems), f"{count} problem{'s' * (count > 1)} in {held}"])


def anchor_page(found: Sequence[Anchor]) -> str:
    """A paragraph for each anchor."""
    if not found:
        return "there is no anchor; set one with 'regbot baseline anchor WORKLOAD --to COMMIT --why TEXT'"
    parts = []
    for anchor in found:
        lines = [
            f"{anchor.workload}  {anchor.variant}  anchor {anchor.commit[:12]}",
            f"  class      {printable(anchor.node_class)}",
            f"  moved      {anchor.moved} by {printable(anchor.who)}: {printable(anchor.why)}",
            f"  before     {anchor.previous[:12] if anchor.previous else 'none'}",
        ]
        if anchor.evidence is not None:
            seen = anchor.evidence
            interval = f"{seen.estimate_pct:+.1f}% [{seen.low_pct:+.1f}, {seen.high_pct:+.1f}]"
            lines.append(f"  absorbed   {interval} in {seen.pairs} pairs")
        if anchor.accepted is not None:
            taken = anchor.accepted
            lines.append(f"  accepted   {taken.slowdown_pct:+.1f}% by {printable(taken.who)}: {printable(taken.why)}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def added_page(found: BaselineAdded) -> str:
    """The files, one a line, after what is to be known of them."""
    return "\n".join([*(f"warning: {each}" for each in found.warnings), *(f"stored {file}" for file in found.files)])


def environment_words(key: EnvironmentKey) -> str:
    """Every field of an environment, the unknown ones stated."""
    known = [
        f"{name} {value[:12] if name in ('packages', 'variables') else printable(value)}"
        for name, value in key.model_dump().items()
        if value is not None
    ]
    return "; ".join([*known, *([f"unknown: {', '.join(key.unknown)}"] if key.unknown else [])])


def _classes(store: Store, workload: str, variant: str | None, node_class: str | None) -> list[tuple[str, str, str]]:
    """Workload, variant and class of all timed sessions that fit what was asked."""
    found: dict[tuple[str, str, str], None] = {}
    for group in store.groups():
        for path in store.index.named(group, most=1):
            told = store.glance(path)
            key = (str(told["workload"]), str(told["variant"]), str(told["node_class"]))
            fits = key[0] == workload and variant in (None, key[1]) and node_class in (None, key[2])
            if told["tier"] == "timed" and fits:
                found[key] = None
    return list(found)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"
