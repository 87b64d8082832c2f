"""Judge the health of the node during timed runs: decide which runs are void, and describe what affected the arms.

Only a cause outside the code under test makes a run void: a hardware fault, another process on the run's GPUs, or a
slowdown by the hardware in both arms. Throttling in one arm only is a warning about that arm, because the heat and
power of its code are part of the cost. Noise on a shared CPU voids nothing: the interval over pairs includes it.
"""

from collections.abc import Iterator, Sequence

from regbot.records.health import ClockReason, GpuUsage
from regbot.records.run import Run
from regbot.records.text.clip import clip
from regbot.records.text.words import count
from regbot.stats.unpaired import fisher

SLOWED_SHARE, SLOWED_SAMPLES = 0.05, 2
"""A hardware slowdown counts if at least ``SLOWED_SHARE`` of a run's samples and at least ``SLOWED_SAMPLES`` samples
show it. A single sample may come from a change of the clock."""
HARDWARE_REASONS: tuple[ClockReason, ...] = ("hw_thermal", "hw_power_brake", "hw_slowdown")
"""NVML clock reasons of a slowdown by the hardware."""

THROTTLE_REASONS: dict[str, tuple[ClockReason, ...]] = {
    "its power limit": ("sw_power_cap", "board_limit"),
    "heat": ("sw_thermal", "hw_thermal"),
    "a power brake": ("hw_power_brake",),
    "a hardware slowdown": ("hw_slowdown",),
}
"""NVML clock reasons by cause of throttling. The keys are the words for the cause in a warning."""
THROTTLED_SHARE = 0.1
"""A run counts as throttled if one of its GPUs is throttled in at least this share of the samples."""
LIMITED_ARM_SHARE, OTHER_ARM_SHARE = 0.75, 0.25
"""Throttling is attributed to an arm if it occurs in at least ``LIMITED_ARM_SHARE`` of that arm's runs and in at most
``OTHER_ARM_SHARE`` of the other arm's runs."""
ALPHA = 0.05
"""Significance level of the two-sided Fisher's exact test. With three runs of each arm, it is never significant."""

BUSY_SHARE = 0.1
"""Other work counts as affecting step times if it uses at least this share of the cores' time."""
STEAL_SHARE = 0.02
"""Stolen time counts as affecting step times if the hypervisor gives at least this share of the cores' time to other
machines."""
SLOW_CORES = 0.9
"""Cores count as slow in a run if their clock, divided by the highest clock of any run, is below this value."""


def describe_outside_cause(run: Run) -> str:
    """Return the causes in a run's record that make the run void, '' if there are none. They lie outside the code under
    test. A hardware slowdown during the run is not among them, because the arm itself may cause it
    (``find_slowed_blocks``)."""
    if run.health is None:
        return ""
    return clip("; ".join(cause.text for cause in run.health.causes if cause.outside), 2000)


def find_slowed_blocks(runs: Sequence[Run]) -> dict[tuple[int, int], str]:
    """Return the blocks in which the hardware slowed down a GPU in runs of both arms, by number and attempt, with the
    reason why their runs are void. A slowdown in one arm only may be caused by that arm, so it makes no run void."""
    causes_by_block: dict[tuple[int, int], dict[str, str]] = {}
    for run in runs:
        # Block 0 has the warm launches.
        if run.position is not None and run.position.block > 0 and (cause := _hardware_slowdown(run)):
            causes_by_block.setdefault((run.position.block, run.attempt), {})[run.arm.name] = cause
    return {
        block: f"in runs of both arms of a block {cause_by_arm['head']}; look at the node's cooling and power supply"
        for block, cause_by_arm in causes_by_block.items()
        if cause_by_arm.keys() == {"base", "head"}
    }


def describe_node_effects(runs: Sequence[Run]) -> list[str]:
    """Return warnings that say how the node affected the runs of one entry, without warm launches. These warnings make
    no run void."""
    known_runs = [run for run in runs if run.health is not None]
    return [
        *_driver_errors(known_runs),
        *_throttling_of_an_arm(known_runs),
        *_low_clock_settings(known_runs),
        *_processor_load(known_runs),
    ]


def _hardware_slowdown(run: Run) -> str:
    for gpu in _gpus(run):
        assert run.health is not None
        samples = run.health.during.samples if gpu.samples is None else gpu.samples
        for reason in HARDWARE_REASONS:
            slowed_share = gpu.reasons.get(reason, 0.0)
            if slowed_share >= SLOWED_SHARE and round(slowed_share * samples) >= SLOWED_SAMPLES:
                return f"GPU {gpu.index} was slowed down by its hardware ({reason})"
    return ""


def _causes(run: Run, kind: str) -> list[str]:
    causes = run.health.causes if run.health is not None else []
    return [cause.text for cause in causes if cause.kind == kind and not cause.outside]


def _driver_errors(runs: Sequence[Run]) -> Iterator[str]:
    for arm in ("base", "head"):
        texts_by_run = [_causes(run, "xid") for run in runs if run.arm.name == arm]
        for text in sorted(set().union(*texts_by_run)):
            yield f"{arm}: {text} ({_run_count(sum(text in texts for texts in texts_by_run), len(texts_by_run))})"


def _throttling_of_an_arm(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a warning for each cause that throttles most runs of one arm and few of the other (``LIMITED_ARM_SHARE``),
    if this difference is significant (``ALPHA``)."""
    gpus_by_arm = {arm: [_gpus(run) for run in runs if run.arm.name == arm and _gpus(run)] for arm in ("base", "head")}
    if not all(gpus_by_arm.values()):
        return
    for cause, reasons in THROTTLE_REASONS.items():

        def share_of(gpu: GpuUsage, reasons: Sequence[ClockReason] = reasons) -> float:
            return max(gpu.reasons.get(reason, 0.0) for reason in reasons)

        # The most throttled GPU of each throttled run.
        throttled_by_arm = {
            arm: [gpu for gpu in (max(gpus, key=share_of) for gpus in arm_runs) if share_of(gpu) >= THROTTLED_SHARE]
            for arm, arm_runs in gpus_by_arm.items()
        }
        for arm, other in (("head", "base"), ("base", "head")):
            throttled, total = len(throttled_by_arm[arm]), len(gpus_by_arm[arm])
            other_throttled, other_total = len(throttled_by_arm[other]), len(gpus_by_arm[other])
            only_this_arm = throttled >= LIMITED_ARM_SHARE * total and other_throttled <= OTHER_ARM_SHARE * other_total
            if not only_this_arm or fisher(throttled, total, other_throttled, other_total) > ALPHA:
                continue
            gpu = max(throttled_by_arm[arm], key=share_of)
            clock = f", at {gpu.sm_mhz.median:.0f} MHz" if gpu.sm_mhz is not None else ""
            same_gpus = (same for gpus in gpus_by_arm[other] for same in gpus if same.index == gpu.index)
            other_mhz = sorted(same.sm_mhz.median for same in same_gpus if same.sm_mhz is not None)
            if clock and other_mhz:
                clock += f" against {other_mhz[len(other_mhz) // 2]:.0f} of {other}"
            yield (
                f"{arm} is throttled by {cause} on its GPUs in {_run_count(throttled, total)}, {other} in "
                f"{_run_count(other_throttled, other_total)} (GPU {gpu.index}: {100 * share_of(gpu):.0f}% of the "
                f"time{clock}): {arm} causes this, so it is part of its cost"
            )


def _low_clock_settings(runs: Sequence[Run]) -> Iterator[str]:
    if slow_runs := [texts for texts in (_causes(run, "low_clock") for run in runs) if texts]:
        yield (
            f"{slow_runs[0][0]}, in {_run_count(len(slow_runs), len(runs))}: this slows down both arms, and their "
            "times cannot be compared with nodes that have other settings"
        )


def _processor_load(runs: Sequence[Run]) -> Iterator[str]:
    cpu_by_run = [run.health.during.cpu for run in runs if run.health is not None]
    for field, limit, sentence in (
        ("other_share", BUSY_SHARE, "other work used up to {:.0f}% of the cores during {}"),
        (
            "steal_share",
            STEAL_SHARE,
            "the hypervisor gave up to {:.0f}% of the cores' time to other machines during {}",
        ),
    ):
        shares = [getattr(cpu, field) for cpu in cpu_by_run]
        if high_shares := [share for share in shares if share is not None and share >= limit]:
            yield sentence.format(100 * max(high_shares), _run_count(len(high_shares), len(runs)))
    clocks_mhz = [cpu.mhz.median for cpu in cpu_by_run if cpu.mhz is not None]
    if slow_mhz := [mhz for mhz in clocks_mhz if mhz < SLOW_CORES * max(clocks_mhz)]:
        slowest, fastest = f"{min(slow_mhz):.0f}", f"{max(slow_mhz):.0f}"
        clock = slowest if slowest == fastest else f"{slowest} to {fastest}"
        yield (
            f"the cores ran at only {clock} MHz in {_run_count(len(slow_mhz), len(runs))}, and at up to "
            f"{max(clocks_mhz):.0f} MHz in the others"
        )


def _gpus(run: Run) -> Sequence[GpuUsage]:
    return run.health.during.gpus if run.health is not None else []


def _run_count(number: int, total: int) -> str:
    return f"{number} of {count(total, 'run')}"
