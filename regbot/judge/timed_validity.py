"""Judge the validity of the timed runs of a workload: failures, repeated blocks, and reasons to distrust the runs.

A block that fails in both attempts ends the session. The result is FAIL only if head failed, and base ran and never
failed. Every other case is INVALID.
"""

from collections.abc import Iterator, Mapping, Sequence

from regbot.judge.backends import DISPATCHER, uncertain_dispatcher
from regbot.judge.health import describe_outside_cause, find_slowed_blocks
from regbot.judge.pairs import describe_mismatch, is_head_only, is_sound, is_warm
from regbot.judge.validity import BROKEN, describe_failure, distrust_code
from regbot.records.run import Run
from regbot.records.session import SessionHeader, TimedPlan
from regbot.records.text.clip import clip_message
from regbot.records.verdict import Status, Validity


def judge_failures(runs: Sequence[Run]) -> Validity | None:
    """Return the validity if a run was refused, a block failed in both attempts or was not repeated, or the last node
    was lost; else None. Runs of earlier sessions are not looked at, because a session takes over only sound runs."""
    for run in runs:
        if run.outcome == "refused":
            return make_validity("INVALID", [describe_failure(run)])
    runs = [run for run in runs if not run.is_from_earlier_session]
    slowed = find_slowed_blocks(runs)  # blocks in which the hardware slowed down both arms
    # The warm launches of every draw of compiler caches are block 0, so a block is identified by its number and draw.
    runs_by_block: dict[tuple[int, int | None], list[Run]] = {}
    for run in runs:
        if run.position is not None and run.outcome != "lost":  # losing a node is not a failure of the code
            runs_by_block.setdefault((run.position.block, run.position.draw), []).append(run)
    for block_runs in runs_by_block.values():
        failures = [run for run in block_runs if not is_sound(run) or _is_slowed(run, slowed)]
        if not failures:
            continue
        first_failure = failures[0]
        if later_failures := [run for run in failures if run.attempt > first_failure.attempt]:
            return _judge_repeated_failure(first_failure, later_failures[0], runs, slowed)
        if not any(run.attempt > first_failure.attempt for run in block_runs):
            failure_text = _describe_failure_in_session(first_failure, slowed)
            return make_validity("INVALID", [f"{failure_text}. It was not tried twice: go on with --resume"])
    if runs and runs[-1].outcome == "lost":  # the session lost its node, and no other node was available
        return make_validity("INVALID", [f"{runs[-1].reason}; go on with --resume"])
    return None


SlowedBlocks = Mapping[tuple[int, int], str]
"""Reasons by block and attempt, for the blocks in which the hardware slowed down both arms (``find_slowed_blocks``)."""


def _judge_repeated_failure(
    first_failure: Run, second_failure: Run, runs: Sequence[Run], slowed: SlowedBlocks
) -> Validity:
    """Judge a block that failed in both attempts. It is a FAIL if only head failed, on a healthy node, and base
    ran."""
    failures = (first_failure, second_failure)
    base_ran = any(run.outcome == "ok" and run.arm.name == "base" for run in runs)
    base_failed = any(run.outcome not in ("ok", "lost") and run.arm.name == "base" for run in runs)
    node_at_fault = any(describe_outside_cause(run) for run in failures)
    # ``BROKEN``: the outcomes that the code under test causes, such as a crash.
    is_head_broken = all(run.arm.name == "head" and run.outcome in BROKEN for run in failures)
    if is_head_broken and not base_failed and not node_at_fault:
        base_text = "base ran" if base_ran else "base was not reached"
        reason = f"in both attempts, {describe_failure(second_failure)}; {base_text}"
        return make_validity("FAIL" if base_ran else "INVALID", [reason])
    reasons = dict.fromkeys(_describe_failure_in_session(run, slowed) for run in failures)
    return make_validity("INVALID", list(reasons))


def describe_run_failure(run: Run) -> str:
    """Return what was wrong with one run, judged without the other runs of its block."""
    return _describe_failure_in_session(run, slowed={})


def _is_slowed(run: Run, slowed: SlowedBlocks) -> bool:
    return run.position is not None and (run.position.block, run.attempt) in slowed


def _describe_failure_in_session(run: Run, slowed: SlowedBlocks) -> str:
    if cause := describe_outside_cause(run):
        return f"{run.arm.name} ran on a node that was not fit: {cause}"
    if run.outcome == "ok" and run.position is not None:
        return f"the node was not fit {slowed.get((run.position.block, run.attempt), '')}".rstrip()
    return describe_failure(run)


def list_failures(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a warning for every failed run, even if a repeat succeeded."""
    slowed = find_slowed_blocks(runs)  # blocks in which the hardware slowed down both arms
    for run in runs:
        if run.position is not None and (not is_sound(run) or _is_slowed(run, slowed)):
            if is_head_only(run):
                block = "the runs of head alone"
            elif run.position.block == 0:
                block = "the warm launches"
            else:
                block = f"block {run.position.block}"
            failure = _describe_failure_in_session(run, slowed)
            yield f"an attempt at {block} does not count, because a run failed: {failure}"


def _pair_mismatches(runs: Sequence[Run]) -> Iterator[str]:
    first_runs: dict[tuple[object, ...], Run] = {}
    for run in runs:
        if run.position is None or is_head_only(run):
            continue
        pair_number = run.position.slot // 2  # slots 0 and 1 of a block are its first pair
        # ``joined`` is the earlier session that the run comes from. ``draw`` numbers the compiler caches of a session.
        pair = (run.joined, run.position.draw, run.position.block, run.attempt, pair_number)
        if pair in first_runs and (mismatch := describe_mismatch(first_runs[pair], run)):
            yield mismatch
        first_runs.setdefault(pair, run)


def distrust_timed(header: SessionHeader, plan: TimedPlan, runs: Sequence[Run]) -> Iterator[str]:
    """Yield the reasons to distrust the timed runs, without duplicates: each must execute the planned commit with the
    planned settings, and those of one arm the same dispatcher, environment and code."""
    good_runs = [run for run in runs if run.outcome == "ok"]
    reasons: dict[str, None] = {}  # used as an ordered set
    for run in good_runs:
        planned = header.base if run.arm.name == "base" else header.head
        reasons |= dict.fromkeys(distrust_code(run, planned))
        reasons |= dict.fromkeys(_differences_from_plan(run, plan))
    runs_that_count = [run for run in good_runs if not is_warm(run)]
    for run in runs_that_count[1:]:  # runs of different pairs may be on different nodes of one class
        if mismatch := describe_mismatch(runs_that_count[0], run, same_pair=False):
            reasons[f"the runs cannot be compared: {mismatch}"] = None
    reasons |= dict.fromkeys(
        f"the runs cannot be compared: {mismatch}" for mismatch in _pair_mismatches(runs_that_count)
    )
    for arm in (header.base, header.head):
        arm_runs = [run for run in good_runs if run.arm.name == arm.name]
        requested = arm.overrides.get("dispatcher", plan.dispatcher)
        reasons |= dict.fromkeys(uncertain_dispatcher(arm_runs, str(requested)) if arm_runs else ())
        if len({run.environment.model_dump_json() for run in arm_runs if run.environment is not None}) > 1:
            reasons[f"{arm.name}: its software environment changed during the session"] = None
        first_digests: dict[str, str] = {}
        for run in arm_runs:
            digests = run.code.files if run.code is not None else {}
            for path, digest in digests.items():
                if first_digests.setdefault(path, digest) != digest:
                    reasons[f"{arm.name}: the code of {path} changed between runs"] = None
    yield from reasons


def _differences_from_plan(run: Run, plan: TimedPlan) -> Iterator[str]:
    name = run.arm.name
    if run.variant != plan.variant:
        yield f"{name} timed the variant {run.variant}, but {plan.variant} was planned"
    if run.timing is None or is_warm(run):  # a warm launch may have fewer steps than planned
        return
    ranks = plan.world_size if run.timing.clock == "log" else len(run.timing.ranks)  # a step log covers all ranks
    has_planned_steps = run.timing.requested_steps == len(run.timing.step_s) == plan.steps
    if not has_planned_steps or run.timing.cut != plan.cut or ranks != plan.world_size:
        yield (
            f"{name} timed {len(run.timing.step_s)} steps, {run.timing.cut} of them warm-up, on "
            f"{ranks} ranks; planned were {plan.steps} steps, {plan.cut} of them warm-up, on "
            f"{plan.world_size} ranks"
        )


def collect_run_warnings(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(warning for run in runs for warning in run.warnings))


def find_last_good(runs: Sequence[Run], arm: str) -> Run | None:
    """Return the last good run of ``arm``, if possible one that shows which dispatcher it executed."""
    good_runs = [run for run in runs if run.arm.name == arm and run.outcome == "ok"]
    runs_with_dispatcher = [run for run in good_runs if DISPATCHER in run.backends]
    candidates = runs_with_dispatcher or good_runs
    return candidates[-1] if candidates else None


def make_validity(status: Status, reasons: Sequence[str]) -> Validity:
    return Validity(status=status, reasons=[clip_message(reason) for reason in reasons])
