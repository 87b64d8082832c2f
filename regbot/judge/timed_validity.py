"""Can the timed runs of a workload be trusted? What broke, what a repeat made good, and every reason not to believe.

A block that failed in both attempts ends a session. It is the head's fault only where the base has run and never failed
itself; everything else leaves the workload INVALID.
"""

from collections.abc import Iterator, Mapping, Sequence

from regbot.judge.backends import unsettled
from regbot.judge.health import outside_cause, slowed_blocks
from regbot.judge.pairs import is_screen, is_warm, sound, unlike
from regbot.judge.validity import BROKEN, distrust_code, failure
from regbot.records.run import Run
from regbot.records.session import SessionHeader, TimedPlan
from regbot.records.verdict import Status, Validity


def broken(runs: Sequence[Run]) -> Validity | None:
    """What a block that failed in both attempts shows; None where every failure was made good by a repeat.

    Runs of earlier sessions are there because they counted.
    """
    for run in runs:
        if run.outcome == "refused":
            return validity_of("INVALID", [failure(run)])
    runs = [run for run in runs if run.joined is None]
    slowed = slowed_blocks(runs)
    blocks: dict[int, list[Run]] = {}
    for run in runs:
        if run.position is not None and run.outcome != "lost":  # lost nodes are nobody's failure
            blocks.setdefault(run.position.block, []).append(run)
    for block in blocks.values():
        failures = [run for run in block if not sound(run) or _slowed(run, slowed)]
        if not failures:
            continue
        first = failures[0]
        if again := [run for run in failures if run.attempt > first.attempt]:
            return _twice(first, again[0], runs, slowed)
        if not any(run.attempt > first.attempt for run in block):
            return validity_of("INVALID", [f"{_failure(first, slowed)}. It was not tried twice: go on with --resume"])
    if runs and runs[-1].outcome == "lost":  # and no other nodes were had
        return validity_of("INVALID", [f"{runs[-1].reason}; go on with --resume"])
    return None


Slowed = Mapping[tuple[int, int], str]
"""Blocks and attempts in which the hardware slowed down both arms, and how that is known."""


def _twice(first: Run, second: Run, runs: Sequence[Run], slowed: Slowed) -> Validity:
    """One block, two attempts, a failure in each. It is the head's where only the head fails, on a healthy node, and
    the base has run."""
    base_ran = any(run.outcome == "ok" and run.arm.name == "base" for run in runs)
    base_failed = any(run.outcome not in ("ok", "lost") and run.arm.name == "base" for run in runs)
    of_the_node = any(outside_cause(run) for run in (first, second))
    only_head = {first.arm.name, second.arm.name} == {"head"} and {first.outcome, second.outcome} <= BROKEN
    if only_head and not base_failed and not of_the_node:
        ran = "base ran" if base_ran else "base was not reached"
        return validity_of("FAIL" if base_ran else "INVALID", [f"{failure(second)}, in each of 2 attempts; {ran}"])
    return validity_of("INVALID", list(dict.fromkeys(_failure(run, slowed) for run in (first, second))))


def failure_of(run: Run) -> str:
    """What was wrong with one run by itself."""
    return _failure(run, {})


def _slowed(run: Run, slowed: Slowed) -> bool:
    return run.position is not None and (run.position.block, run.attempt) in slowed


def _failure(run: Run, slowed: Slowed) -> str:
    """What was wrong with a run: how it ended, or what the node did to it."""
    if why := outside_cause(run):
        return f"{run.arm.name} met a node that was not fit: {why}"
    if run.outcome == "ok" and run.position is not None:
        return f"the node was not fit {slowed.get((run.position.block, run.attempt), '')}".rstrip()
    return failure(run)


def setbacks(runs: Sequence[Run]) -> Iterator[str]:
    """Failures, each told: also one that a repeat has made good."""
    slowed = slowed_blocks(runs)
    for run in runs:
        if run.position is not None and (not sound(run) or _slowed(run, slowed)):
            block = f"block {run.position.block}" if run.position.block else "the warm launches"
            block = "the screen" if is_screen(run) else block
            yield f"a timed run in {block} ended its block: {_failure(run, slowed)}"


def _unlike_pairs(runs: Sequence[Run]) -> Iterator[str]:
    """What differs between the two runs of a pair."""
    first: dict[tuple[str | None, int, int, int], Run] = {}
    for run in runs:
        if run.position is None or is_screen(run):
            continue
        key = (run.joined, run.position.block, run.attempt, run.position.slot // 2)
        if key in first and (why := unlike(first[key], run)):
            yield why
        first.setdefault(key, run)


def distrust_timed(header: SessionHeader, plan: TimedPlan, runs: Sequence[Run]) -> Iterator[str]:
    """Reasons not to believe the runs that ended well, each told once."""
    good = [run for run in runs if run.outcome == "ok"]
    told: dict[str, None] = {}
    for run in good:
        planned = header.base if run.arm.name == "base" else header.head
        told |= dict.fromkeys(distrust_code(run, planned))
        told |= dict.fromkeys(_not_as_planned(run, plan))
    counted = [run for run in good if not is_warm(run)]
    for run in counted[1:]:
        if why := unlike(counted[0], run, of_one_pair=False):
            told[f"the runs cannot be compared: {why}"] = None
    told |= dict.fromkeys(f"the runs cannot be compared: {why}" for why in _unlike_pairs(counted))
    for arm in (header.base, header.head):
        own = [run for run in good if run.arm.name == arm.name]
        asked = arm.overrides.get("dispatcher", plan.dispatcher)
        told |= dict.fromkeys(unsettled(own, str(asked)) if own else ())
        if len({run.environment.model_dump_json() for run in own if run.environment is not None}) > 1:
            told[f"{arm.name}: its software changed during the session"] = None
        files: dict[str, str] = {}
        for run in own:
            for path, digest in run.code.files.items() if run.code is not None else ():
                if files.setdefault(path, digest) != digest:
                    told[f"{arm.name}: {path} was not the same code in all runs"] = None
    yield from told


def _not_as_planned(run: Run, plan: TimedPlan) -> Iterator[str]:
    name = run.arm.name
    if run.variant != plan.variant:
        yield f"{name} timed the variant {run.variant}, and {plan.variant} was planned"
    if run.timing is None or is_warm(run):
        return
    ranks = plan.world_size if run.timing.clock == "log" else len(run.timing.ranks)  # a log is one account of them all
    found = (run.timing.asked, run.timing.cut, ranks, len(run.timing.step_s))
    if found != (plan.steps, plan.cut, plan.world_size, plan.steps):
        yield (
            f"{name} timed {len(run.timing.step_s)} steps, {run.timing.cut} of them warm-up, on "
            f"{len(run.timing.ranks)} ranks; {plan.steps}, {plan.cut} and {plan.world_size} were planned"
        )


def own_warnings(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(warning for run in runs for warning in run.warnings))


def last_good(runs: Sequence[Run], arm: str) -> Run | None:
    return next((run for run in reversed(runs) if run.arm.name == arm and run.outcome == "ok"), None)


def validity_of(status: Status, reasons: Sequence[str]) -> Validity:
    return Validity(status=status, reasons=[reason[:4000] for reason in reasons])
