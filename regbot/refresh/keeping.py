"""Stored of a night: main's session, the anchor's beside it, and an anchor that was accepted or is the first."""

from dataclasses import replace
from datetime import datetime

from regbot.baselines import Intake, Store
from regbot.baselines.intake import distil
from regbot.baselines.store import BaselineError
from regbot.judge.pairs import timed_runs
from regbot.records.baseline import Anchor, MoveEvidence, utc
from regbot.records.run import Arm
from regbot.refresh.site import Measured, Options
from regbot.refresh.stored import release
from regbot.trees import plain_name


def keep(measured: Measured, options: Options, head: Arm, store: Store, now: datetime) -> list[str]:
    """Store what the night allows: main's session, the anchor's beside it, and an anchor that was accepted or is the
    first. Returns why nothing could be, where it could not."""
    night, tonight = measured.night, measured.tonight
    if night.series is None or tonight is None:
        return []
    origin = str(options.out / plain_name(measured.task.entry) / "session.jsonl")
    timed = timed_runs(measured.checked.session, measured.task.entry)
    if other := {run.node.node_class for run in timed if run.node is not None} - {measured.node_class}:
        was = f"it was timed on {', '.join(sorted(other))}, and its anchor is of {measured.node_class}"
        return [f"{measured.task.entry}: not stored: {was}; make the engine take nodes of one class (docs/slurm.md)"]
    again = tonight.commit == head.commit
    asked = Intake(
        origin=origin,
        who=options.who,
        why=options.why,
        arm="head",
        workloads=measured.entries,
        series=night.series,
        against=tonight,
    )
    try:
        both = [distil(measured.checked.session, asked, now)]
        if not again:  # one commit beside itself: its sessions would count it twice
            both.append(
                distil(measured.checked.session, replace(asked, arm="base", series="anchor", against=None), now)
            )
        if night.series == "rolling":
            release(store, both[0].baselines)
        for distilled in both:
            kept = [each for each in distilled.baselines if each.tier == "timed" or night.series == "rolling"]
            named = {each.ledger for each in kept}
            store.add(kept, {digest: ledger for digest, ledger in distilled.ledgers.items() if digest in named})
        if measured.anchor is None or night.accepted is not None:
            store.move_anchor(_anchor(measured, options, head, now))
    except BaselineError as error:
        return [f"{measured.task.entry}: not stored: {error}"[:4000]]
    return []


def _anchor(measured: Measured, options: Options, head: Arm, now: datetime) -> Anchor:
    night, tonight = measured.night, measured.night.tonight
    evidence = None
    if measured.anchor is not None and tonight is not None:
        evidence = MoveEvidence(
            estimate_pct=tonight.estimate_pct,
            low_pct=tonight.low_pct,
            high_pct=tonight.high_pct,
            pairs=max(1, night.pairs),
        )
    return Anchor(
        workload=measured.task.entry,
        variant=measured.task.variant.name,
        node_class=measured.node_class,
        commit=head.commit,
        tree=head.tree,
        moved=utc(now),
        who=options.who,
        why=options.why if measured.anchor is not None else "the first anchor",
        previous=None,
        evidence=evidence,
        accepted=night.accepted,
    )
