"""Store the results of one night, and put what was stored into the record of a proposal.

A ``Baseline`` is one stored session.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import PurePosixPath

from regbot import __version__
from regbot.baselines import Intake, Store
from regbot.baselines.intake import distil
from regbot.baselines.names import ANCHOR, LEDGERS, class_folder
from regbot.baselines.store import ATTRIBUTES, BaselineError
from regbot.check.refresh.night import MeasuredNight
from regbot.records.baseline import Anchor, Baseline, MoveEvidence, format_time
from regbot.records.proposal import Proposal
from regbot.records.refresh import RefreshReport
from regbot.records.run import Arm

MAX_ERROR_CHARACTERS = 3500
"""Largest length of an error in the report. A warning of the report may have 4000 characters, and it also names the
workload."""


def store_night(measured: MeasuredNight, head: Arm, store: Store, who: str, why: str, now: datetime) -> str:
    """Store the session of main, the session of the anchor's commit, and a new anchor if there is one.

    There is a new anchor if the workload had none, or if a person accepted a slowdown. If the session of main is held
    back, only timed sessions are stored, and no traced sessions. Return why nothing could be stored; '' on success, or
    if the night has no session to store.
    """
    night = measured.night
    if night.series is None or measured.tonight is None:  # nothing was measured
        return ""
    session, verdict = measured.checked.session, measured.checked.verdict
    origin = f"{measured.checked.out}/session.jsonl"
    timed_runs = session.timed_runs(measured.task.entry)
    other_classes = {run.node.node_class for run in timed_runs if run.node is not None} - {measured.node_class}
    if other_classes:
        mismatch = f"it was timed on {', '.join(sorted(other_classes))}, but its anchor is of {measured.node_class}"
        return f"{mismatch}; configure the engine to use nodes of one class (docs/operator.md)"
    # An intake says where a session comes from, who stores it and why, and as what it is stored.
    main_intake = Intake(origin, who, why, "head", measured.entries, night.series, against=measured.tonight)
    is_withheld = night.series == "held"
    try:
        # Distilling a session gives the records that the store keeps of one arm.
        distilled_main = distil(session, verdict, main_intake, now)
        distilled_arms = [distilled_main]
        # Base is the anchor's commit. If main is this commit too, a second session would count it twice.
        if measured.tonight.commit != head.commit:
            anchor_intake = replace(main_intake, arm="base", series="anchor", against=None)
            distilled_arms.append(distil(session, verdict, anchor_intake, now))
        if not is_withheld:
            remove_withheld_copies(store, distilled_main.baselines)
        for distilled_arm in distilled_arms:
            baselines = [item for item in distilled_arm.baselines if item.tier == "timed" or not is_withheld]
            digests = {baseline.ledger for baseline in baselines}
            store.add(baselines, {key: ledger for key, ledger in distilled_arm.ledgers.items() if key in digests})
        if measured.anchor is None or night.accepted is not None:
            store.move_anchor(_make_anchor(measured, head, who, why, now))
    except BaselineError as error:
        return str(error)[:MAX_ERROR_CHARACTERS]
    return ""


def _make_anchor(measured: MeasuredNight, head: Arm, who: str, why: str, now: datetime) -> Anchor:
    night, slowdown = measured.night, measured.night.tonight
    evidence = None
    if measured.anchor is not None and slowdown is not None:
        # The record allows no 0.
        evidence = MoveEvidence(**slowdown.model_dump(), pairs=max(1, night.pairs))
    return Anchor(
        workload=measured.task.entry,
        variant=measured.task.variant.name,
        node_class=measured.node_class,
        commit=head.commit,
        tree=head.tree,
        moved=format_time(now),
        who=who,
        why=why if measured.anchor is not None else "the first anchor",
        previous=None,  # ``Store.move_anchor`` fills it in
        evidence=evidence,
        accepted=night.accepted,
    )


def build_proposal(store: Store, report: RefreshReport, written: Sequence[PurePosixPath], now: datetime) -> Proposal:
    """Build the proposal from the report and from the records in ``written``, the new and changed files of the store.

    ``now`` is the time of the proposal. Raises BaselineError.
    """
    ledger_paths = [path for path in written if path.parts[0] == LEDGERS]
    anchor_paths = [path for path in written if path.name == ANCHOR]
    others = {*ledger_paths, *anchor_paths, PurePosixPath(ATTRIBUTES)}
    session_paths = [path for path in written if path not in others]
    return Proposal(
        regbot=__version__,
        created=format_time(now),
        refreshed=report,
        sessions=[store.session(path) for path in session_paths],
        # The file of a ledger is named after its digest.
        ledgers=[store.ledger(path.stem) for path in ledger_paths],
        anchors=[store.read_anchor(path) for path in anchor_paths],
    )


def timed_sessions(store: Store, folder: PurePosixPath) -> list[Baseline]:
    """Load all timed sessions of a workload on a node class, oldest first. ``folder`` is the folder of the workload and
    node class. Raises BaselineError."""
    return [session for session in store.read_sessions(folder).values() if session.tier == "timed"]


def remove_withheld_copies(store: Store, accepted: Sequence[Baseline]) -> None:
    """Remove the stored copies of ``accepted`` sessions that were held back (series ``held``).

    The same session may be stored only once. The caller then stores the accepted sessions in the rolling reference.
    """
    session_ids = {baseline.session for baseline in accepted}
    for baseline in accepted:
        folder = class_folder(baseline.workload, baseline.variant, baseline.node_class)
        for path, stored in store.read_sessions(folder).items():
            if stored.session in session_ids and stored.series == "held":
                store.remove(path)


def store_files(store: Store) -> dict[PurePosixPath, bytes]:
    """Return the files of the store that a repository would track: their content by their path relative to the store.

    Only anchors and the git attributes can change. All other files never change once they are stored. They are not
    read, and their value is ``b""``.
    """
    if not store.root.is_dir():
        return {}
    files = {}
    for path in sorted(store.root.rglob("*")):
        relative_path = PurePosixPath(path.relative_to(store.root))
        is_hidden = any(part.startswith(".") and part != ATTRIBUTES for part in relative_path.parts)
        if path.is_file() and not is_hidden:
            files[relative_path] = path.read_bytes() if path.name in (ANCHOR, ATTRIBUTES) else b""
    return files
