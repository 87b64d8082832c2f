"""Can the answer be trusted? Which runs answer for a workload, and every reason not to believe them.

A comparison is made only of two runs that ended well, of the commits that were asked about, with a counter that was
proven to see, counted in the same way. Everything else is INVALID with the reason; only a head that breaks twice where
base runs is FAIL, because there the pull request has shown what it does.
"""

from collections.abc import Iterator
from typing import NamedTuple

from regbot.config import FRAMEWORKS, GEOMETRY_KEYS, LIBRARY_DISPATCHERS
from regbot.judge.backends import DISPATCHER, backend_warnings, dispatcher_problems
from regbot.ledgers.cells import EXPERT_AXIS, moves_tokens
from regbot.preflight import Conflict, conflicts, facts_of
from regbot.records.ledger import Ledger, Scalar
from regbot.records.run import Arm, Outcome, Run
from regbot.records.session import Session
from regbot.records.verdict import Validity

BROKEN: frozenset[Outcome] = frozenset({"crashed", "hung", "no_record", "short", "diverged"})
"""Outcomes that the code under test causes; bad_record and refused say that regbot could not measure it. A skipped run
shows nothing of its own: what hung before it answers for that."""

ENDED: dict[Outcome, str] = {
    "ok": "ran",
    "crashed": "crashed",
    "hung": "ran into its time limit",
    "no_record": "ended without a record",
    "bad_record": "left a record that cannot be used",
    "refused": "cannot be measured",
    "skipped": "was not measured",
    "short": "ended with fewer steps than were asked for",
    "diverged": "did not train",
    "lost": "lost its node",
}


class Examined(NamedTuple):
    """The answer for one workload. ``base`` and ``head`` are given exactly where validity is PASS."""

    validity: Validity
    base: Run | None = None
    head: Run | None = None
    warnings: tuple[str, ...] = ()


def examine(session: Session, workload: str) -> Examined:
    """The runs to compare for one planned entry, or why there are none."""
    header = session.header
    if workload in header.untraced:
        return _untraced(session, workload)
    ours, theirs = (_static_runs(session, workload, arm) for arm in (header.base, header.head))
    missing = [arm.name for arm, runs in ((header.base, ours), (header.head, theirs)) if not runs]
    if missing:
        return _invalid([f"{workload} was planned, but there is no run of {' and none of '.join(missing)}"])
    base, head = _last_usable(ours), _last_usable(theirs)
    if base.outcome == "ok" and head.outcome in BROKEN:
        return Examined(_head_broke(theirs))
    if failed := [run for run in (base, head) if run.outcome != "ok"]:
        return _invalid([failure(run) for run in failed])

    problems = [
        *(problem for run, arm in ((base, header.base), (head, header.head)) for problem in distrust(run, arm)),
        *_incomparable(base, head),
        *([] if _left_to_the_timed_half(session, base, head) else dispatcher_problems(base, head)),
        *_nothing_measured(base, head),
        *_conflicts(base, head, "invalid"),
    ]
    warnings = (
        *_conflicts(base, head, "warning"),
        *environment_warnings(base, head),
        *backend_warnings(base, head),
        *_own_warnings(base, head),
    )
    if not problems and any(dispatcher_problems(base, head)):
        warnings += ("the trace is of the dispatcher that stands in for the one asked for, which needs GPUs",)
    if problems:
        return _invalid(problems, warnings)
    return Examined(Validity(status="PASS", reasons=[_proof(base, head)]), base, head, warnings)


def _untraced(session: Session, workload: str) -> Examined:
    """A command: the timed half alone answers for it, and where that has nothing, nobody does."""
    if not any((run.tier, run.workload) == ("timed", workload) for run in session.runs):
        return _invalid([f"{workload} is a command, and nothing of it was timed"])
    known = "a command's step log was read; neither its collectives nor the code that it ran are known"
    return Examined(Validity(status="PASS", reasons=[known]), warnings=(known,))


def _left_to_the_timed_half(session: Session, base: Run, head: Run) -> bool:
    """A dispatcher of a GPU library cannot run where tensors have no values: the trace is of what stands in for it.

    Whether it runs is then for the timed runs to show; where nothing is timed it stays unshown.
    """
    asked = {run.backends[DISPATCHER].requested for run in (base, head) if DISPATCHER in run.backends}
    return bool(session.header.timed) and bool(asked & {*LIBRARY_DISPATCHERS})


def not_comparable(base: Ledger, head: Ledger) -> str | None:
    """Why two ledgers cannot be compared at all, whatever they came from."""
    if base.source != head.source:
        return f"were counted in different ways: {base.source!r} in base, {head.source!r} in head"
    if None not in (base.device, head.device) and base.device != head.device:
        return f"are of programs for different devices: {base.device} in base, {head.device} in head"
    if base.scope != head.scope:
        return f"cover different things: scope {base.scope!r} in base, {head.scope!r} in head"
    if base.scope == "whole" and base.steps != head.steps:
        return f"cover different numbers of steps: {base.steps} in base, {head.steps} in head"
    for word, ours, theirs in (
        ("workload", base.workload, head.workload),
        ("variant", base.variant, head.variant),
        ("world size", base.world_size, head.world_size),
        ("rank", base.rank, head.rank),
    ):
        if ours is not None and theirs is not None and ours != theirs:
            return f"are of another {word}: {ours} in base, {theirs} in head"
    if sorted(base.patches) != sorted(head.patches):
        only = sorted(set(base.patches) ^ set(head.patches))
        return f"were traced with different replacements: {'; '.join(only[:3])}"
    return None


def changed_config(base: Ledger, head: Ledger) -> dict[str, tuple[Scalar, Scalar]]:
    """Keys of the resolved configuration that differ, base before head; None where an arm does not have the key."""
    keys = sorted(base.config.keys() | head.config.keys())
    both = {key: (base.config.get(key), head.config.get(key)) for key in keys}
    return {key: pair for key, pair in both.items() if pair[0] != pair[1]}


def _static_runs(session: Session, workload: str, arm: Arm) -> list[Run]:
    return [r for r in session.runs if (r.tier, r.workload, r.arm.name) == ("static", workload, arm.name)]


def _last_usable(runs: list[Run]) -> Run:
    return next((run for run in reversed(runs) if run.outcome == "ok"), runs[-1])


def _head_broke(runs: list[Run]) -> Validity:
    """Base ran, head did not: shown by two attempts, suspected by one."""
    failures = {run.attempt: run for run in runs if run.outcome in BROKEN}
    last = failure(runs[-1])
    if len(failures) < 2:
        return Validity(status="INVALID", reasons=[f"{last}; base ran. It was not tried twice: run the check again"])
    return Validity(status="FAIL", reasons=[f"{last}, in each of {len(failures)} attempts; base ran"])


def failure(run: Run) -> str:
    """What became of a run that did not end well."""
    reason = f": {run.reason}" if run.reason else ""
    return f"{run.arm.name} {ENDED[run.outcome]}{reason}"


def distrust_code(run: Run, planned: Arm) -> Iterator[str]:
    """Reasons not to believe that a run is of the code that was asked about."""
    name = run.arm.name
    same_commit = run.arm.commit == planned.commit or run.joined is not None  # a message may be another one
    if not same_commit or (run.arm.tree, run.arm.overrides) != (planned.tree, planned.overrides):
        yield f"{name} was run at {run.arm.commit[:12]}, not at the planned {planned.commit[:12]} with its overrides"
    if run.adapter == "command":
        return  # nothing of regbot runs inside it; the verdict says so
    if run.code is None:
        yield f"{name} does not prove which code it ran; the record has no code proof"
    else:
        if run.adapter in FRAMEWORKS and not run.code.watched and not run.code.foreign:
            yield (
                f"{name} ran an installed {run.adapter} and nothing of its commit; set 'source_roots' to the folder "
                "that holds the sources"
            )
        for package, path in sorted(run.code.foreign.items()):
            yield f"{name} imported {package} from {path} outside its worktree; uninstall it or fix 'source_roots'"


def distrust(run: Run, planned: Arm) -> Iterator[str]:
    """Reasons not to believe one run."""
    name, ledger = run.arm.name, run.ledger
    yield from distrust_code(run, planned)
    if ledger is None:
        yield f"{name} has no ledger: a ledger that could not see is not 0"
        return
    if ledger.liveness is None:
        yield f"{name}: the counter was not proven alive: a ledger that could not see is not 0"
    elif not ledger.liveness.proven:
        seen = ledger.liveness
        yield (
            f"{name}: the counter missed collectives ({seen.seen} of {seen.planted} planted ones seen, sequence "
            f"numbers advanced by {seen.sequence_advance} for {seen.sequence_counted} counted): a ledger that could "
            "not see is not 0"
        )
    for word, of_ledger, of_run in (
        ("workload", ledger.workload, run.workload),
        ("variant", ledger.variant, run.variant),
    ):
        if of_ledger is not None and of_ledger != of_run:
            yield f"{name}: the ledger is of {word} {of_ledger!r}, the run of {of_run!r}"


def _incomparable(base: Run, head: Run) -> Iterator[str]:
    """Reasons why two believable runs do not measure the same thing."""
    if base.ledger is None or head.ledger is None:
        return
    if reason := not_comparable(base.ledger, head.ledger):
        yield f"not comparable: the ledgers {reason}"
    for word, ours, theirs in (
        ("shape", base.shape, head.shape),
        ("variant", base.variant, head.variant),
    ):
        if ours != theirs:
            yield f"not comparable: {word} {ours} in base, {theirs} in head"
    for key, (was, now) in changed_config(base.ledger, head.ledger).items():
        if key in GEOMETRY_KEYS:
            yield f"not comparable: {key} is {was!r} in base, {now!r} in head, and the shape fixes it"


def _nothing_measured(base: Run, head: Run) -> Iterator[str]:
    """A MoE step that moves no tokens between expert-parallel ranks says nothing of how its experts are sharded,
    however much FSDP gathers around it. One arm that does is enough: that the other does not is a finding."""
    if base.ledger is None or head.ledger is None:
        return
    arms = ((base, base.ledger), (head, head.ledger))
    if any("dense" in run.variant.split("-") or ledger.config.get("mlp") == "dense" for run, ledger in arms):
        return
    ranks = max(ledger.axes[EXPERT_AXIS].size if EXPERT_AXIS in ledger.axes else 1 for _, ledger in arms)
    if ranks > 1 and not any(moves_tokens(entry) for _, ledger in arms for entry in ledger.entries):
        yield (
            f"neither arm moves payload between the {ranks} ranks of {EXPERT_AXIS}: nothing expert-parallel was "
            "measured. Check that the layer uses mesh['ep'] that build_layer receives"
        )


def _conflicts(base: Run, head: Run, severity: str) -> Iterator[str]:
    """Preflight rules that apply to the configuration a framework resolved, of one severity; told once where both arms
    have them. One that only base has is a warning: head repairs it."""
    found: dict[str, dict[str, Conflict]] = {}
    for run in (base, head):
        if run.adapter in FRAMEWORKS and run.ledger is not None:
            for conflict in conflicts(run.ledger.config, facts_of(run)):
                found.setdefault(conflict.rule.id, {})[run.arm.name] = conflict
    for arms in found.values():
        repaired = "head" not in arms
        told = arms["base" if repaired else "head"]
        if severity == ("warning" if repaired else told.rule.severity):
            whose = " of base, repaired in head" if repaired else "" if "base" in arms else " of head"
            yield f"preflight{whose}: {told.rule.what} ({told.values}); {told.rule.fix}"


def environment_warnings(base: Run, head: Run) -> Iterator[str]:
    """What differs between the software of two runs."""
    ours, theirs = base.environment, head.environment
    if ours is None or theirs is None:
        return
    if ours.torch != theirs.torch:
        yield f"torch is {ours.torch} in base, {theirs.torch} in head; a difference may come from there"
    for word, was, now in (("toolkit", ours.toolkit, theirs.toolkit), ("NCCL", ours.nccl, theirs.nccl)):
        if was != now:
            yield f"{word} is {was or 'unknown'} in base, {now or 'unknown'} in head; a difference may come from there"
    if ours.packages != theirs.packages:
        yield "the installed packages differ between base and head; a difference may come from there"
    if ours.variables != theirs.variables:
        yield "variables of the environment differ between base and head; a difference may come from there"


def _own_warnings(base: Run, head: Run) -> Iterator[str]:
    """What the runs themselves warn of; said once where both arms say it."""
    said = [[*run.warnings, *(run.ledger.warnings if run.ledger else [])] for run in (base, head)]
    for warning in dict.fromkeys([*said[0], *said[1]]):
        arms = [run.arm.name for run, theirs in zip((base, head), said, strict=True) if warning in theirs]
        yield warning if len(arms) == 2 else f"{arms[0]}: {warning}"


def _proof(base: Run, head: Run) -> str:
    seen = " and ".join(str(run.ledger.liveness.seen) for run in (base, head) if run.ledger and run.ledger.liveness)
    return f"both arms ran their own commit's code; the counter saw every planted collective ({seen})"


def _invalid(reasons: list[str], warnings: tuple[str, ...] = ()) -> Examined:
    return Examined(Validity(status="INVALID", reasons=[reason[:4000] for reason in reasons]), warnings=warnings)
