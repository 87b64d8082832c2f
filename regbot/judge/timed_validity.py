"""Judge the validity of the timed runs of a workload: failures, repeated blocks, and reasons to distrust the runs.

A block that fails in both attempts ends the session. The result is FAIL only if head failed, and base ran and never
failed. Every other case is INVALID.
"""

from collections.abc import Iterator, Sequence

from regbot.judge.backends import DISPATCHER, uncertain_dispatcher
from regbot.judge.health import describe_outside_cause, find_slowed_blocks
from regbot.judge.pairs import describe_mismatch, is_head_only, is_sound, is_warm, pair_key
from regbot.judge.validity import BROKEN, describe_failures, distrust_code, make_validity
from regbot.records.run import Run
from regbot.records.session import SessionHeader, TimedPlan
from regbot.records.verdict import Validity


def judge_failures(runs: Sequence[Run]) -> Validity | None:
    """Return the validity if a run was refused, a block failed in both attempts or was not repeated, or the last node
    was lost; else None. Runs of earlier sessions are not looked at, because a session takes over only sound runs."""
    for run in runs:
        if run.outcome == "refused":
            return make_validity("INVALID", *describe_failures([run]))
    runs = [run for run in runs if not run.is_from_earlier_session]
    # The warm launches of every draw of compiler caches are block 0, so a block is identified by its number and draw.
    blocks: dict[tuple[int, int | None], list[tuple[Run, str]]] = {}
    for run, fault in zip(runs, _describe_faults(runs), strict=True):
        if run.position is not None and run.outcome != "lost":  # losing a node is not a failure of the code
            blocks.setdefault((run.position.block, run.position.draw), []).append((run, fault))
    for block_runs in blocks.values():
        failures = [(run, fault) for run, fault in block_runs if fault]
        if not failures:
            continue
        first_run, first_fault = failures[0]
        if repeated := [(run, fault) for run, fault in failures if run.attempt > first_run.attempt]:
            second_run, second_fault = repeated[0]
            base_runs = [run for run in runs if run.arm.name == "base" and run.outcome != "lost"]
            is_base_sound = all(run.outcome == "ok" for run in base_runs)
            if is_base_sound and _is_fault_of_head(first_run) and _is_fault_of_head(second_run):
                base_text = "base ran" if base_runs else "base was not reached"
                reason = f"in both attempts, {second_fault}; {base_text}"
                return make_validity("FAIL" if base_runs else "INVALID", reason)
            return make_validity("INVALID", *dict.fromkeys((first_fault, second_fault)))
        if not any(run.attempt > first_run.attempt for run, _ in block_runs):
            return make_validity("INVALID", f"{first_fault}. It was not tried twice: go on with --resume")
    if runs and runs[-1].outcome == "lost":  # the session lost its node, and no other node was available
        return make_validity("INVALID", f"{runs[-1].reason}; go on with --resume")
    return None


def _is_fault_of_head(run: Run) -> bool:
    return run.arm.name == "head" and run.outcome in BROKEN and not describe_outside_cause(run)


def _describe_faults(runs: Sequence[Run]) -> list[str]:
    """Return what was wrong with each run: its outcome, the fault of its node, or the slowdown of its block; '' for a
    run that may count."""
    slowed = find_slowed_blocks(runs)  # why the hardware slowed down both arms, by block and attempt
    faults = []
    for run in runs:
        slowdown = slowed.get((run.position.block, run.attempt), "") if run.position is not None else ""
        fault = "" if is_sound(run) else describe_run_failure(run)
        faults.append(fault or (f"the node was not fit {slowdown}" if slowdown else ""))
    return faults


def describe_run_failure(run: Run) -> str:
    """Return what was wrong with a run that is not sound: its outcome, or the fault of its node."""
    if cause := describe_outside_cause(run):
        return f"{run.arm.name} ran on a node that was not fit: {cause}"
    return describe_failures([run])[0]


def list_failures(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a warning for every failed run, even if a repeat succeeded."""
    for run, fault in zip(runs, _describe_faults(runs), strict=True):
        if fault and run.position is not None:
            block = "the warm launches" if run.position.block == 0 else f"block {run.position.block}"
            block = "the runs of head alone" if is_head_only(run) else block
            yield f"an attempt at {block} does not count, because a run failed: {fault}"


def distrust_timed(header: SessionHeader, plan: TimedPlan, runs: Sequence[Run]) -> Iterator[str]:
    """Yield the reasons to distrust the timed runs: each must execute the planned commit with the
    planned settings, and those of one arm the same dispatcher, environment and code."""
    good_runs = [run for run in runs if run.outcome == "ok"]
    for run in good_runs:
        yield from distrust_code(run, header.base if run.arm.name == "base" else header.head)
        name = run.arm.name
        if run.variant != plan.variant:
            yield f"{name} timed the variant {run.variant}, but {plan.variant} was planned"
        if run.timing is not None and not is_warm(run):  # a warm launch may have fewer steps than planned
            steps, cut = len(run.timing.step_s), run.timing.cut
            # A step log covers all ranks.
            ranks = plan.world_size if run.timing.clock == "log" else len(run.timing.ranks)
            planned = (plan.steps, plan.steps, plan.cut, plan.world_size)
            if (run.timing.requested_steps, steps, cut, ranks) != planned:
                yield (
                    f"{name} timed {steps} steps, {cut} of them warm-up, on {ranks} ranks; planned were {plan.steps} "
                    f"steps, {plan.cut} of them warm-up, on {plan.world_size} ranks"
                )
    runs_that_count = [run for run in good_runs if not is_warm(run)]
    # Runs of different pairs may be on different nodes of one class.
    mismatches = [describe_mismatch(runs_that_count[0], run, same_pair=False) for run in runs_that_count[1:]]
    first_runs: dict[tuple[object, ...], Run] = {}
    for run in runs_that_count:
        if (key := pair_key(run)) is not None and not is_head_only(run):
            # ``joined`` is the earlier session that the run comes from. ``draw`` numbers the compiler caches.
            first_run = first_runs.setdefault((run.joined, run.position and run.position.draw, key), run)
            mismatches.append(describe_mismatch(first_run, run) if first_run is not run else "")
    yield from (f"the runs cannot be compared: {mismatch}" for mismatch in mismatches if mismatch)
    for arm in (header.base, header.head):
        arm_runs = [run for run in good_runs if run.arm.name == arm.name]
        if arm_runs:
            yield from uncertain_dispatcher(arm_runs, str(arm.overrides.get("dispatcher", plan.dispatcher)))
        if len({run.environment.model_dump_json() for run in arm_runs if run.environment is not None}) > 1:
            yield f"{arm.name}: its software environment changed during the session"
        first_digests: dict[str, str] = {}
        for run in arm_runs:
            for path, digest in (run.code.files if run.code is not None else {}).items():
                if first_digests.setdefault(path, digest) != digest:
                    yield f"{arm.name}: the code of {path} changed between runs"


def find_last_good(runs: Sequence[Run], arm: str) -> Run | None:
    """Return the last good run of ``arm``, if possible one that shows which dispatcher it executed."""
    good_runs = [run for run in runs if run.arm.name == arm and run.outcome == "ok"]
    return max(reversed(good_runs), key=lambda run: DISPATCHER in run.backends, default=None)
