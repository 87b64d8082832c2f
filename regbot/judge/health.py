"""Judge the health of the node during timed runs: decide which runs are void, and describe what affected the arms.

Only a cause outside the code under test makes a run void: a hardware fault, another process on the run's GPUs, or a
slowdown by the hardware in both arms. If a GPU is throttled in the runs of one arm only, this is a warning about that
arm, because the heat and power of its code are part of the cost. A run on a CPU is never void because of the node: if
the machine is shared and noisy, the interval over pairs includes the noise, and warnings explain it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regbot.records.health import ClockReason, GpuUsage, SampleRange
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
"""Significance level of the two-sided Fisher's exact test. With four runs of each arm, the test is significant only if
all runs of one arm and no run of the other are throttled. With three runs of each arm, the test is never
significant."""

BUSY_SHARE = 0.1
"""Other work counts as affecting step times if it uses at least this share of the cores' time."""
STEAL_SHARE = 0.02
"""Stolen time counts as affecting step times if the hypervisor gives at least this share of the cores' time to other
machines."""
SLOW_CORES = 0.9
"""Cores count as slow in a run if their clock, divided by the highest clock of any run, is below this value."""


def describe_outside_cause(run: Run) -> str:
    """Return the causes in a run's record that make the run void, '' if there are none. These causes lie outside the
    code under test.

    A hardware slowdown during the run is not among them, because the arm itself may cause it. ``find_slowed_blocks``
    compares the runs of both arms for this purpose.
    """
    if run.health is None:
        return ""
    return clip("; ".join(cause.text for cause in run.health.causes if cause.outside), 2000)


def find_slowed_blocks(runs: Sequence[Run]) -> dict[tuple[int, int], str]:
    """Return the blocks in which the hardware slowed down a GPU in runs of both arms.

    A key is the number and the attempt of a block. Its value is the reason why the runs of the block are void; it names
    a GPU of head's run. A slowdown in one arm only may be caused by that arm, so it makes no run void.
    """
    causes_by_block: dict[tuple[int, int], dict[str, str]] = {}
    for run in runs:
        is_in_block = run.position is not None and run.position.block > 0  # block 0 has the warm launches
        if run.position is not None and is_in_block and (cause := _hardware_slowdown(run)):
            causes_by_block.setdefault((run.position.block, run.attempt), {})[run.arm.name] = cause
    return {
        block: f"in runs of both arms of a block {cause_by_arm['head']}; look at the node's cooling and power supply"
        for block, cause_by_arm in causes_by_block.items()
        if cause_by_arm.keys() == {"base", "head"}
    }


def describe_node_effects(runs: Sequence[Run]) -> list[str]:
    """Return warnings that say how the node affected the runs of one entry. Warm launches are left out. These warnings
    make no run void."""
    runs_that_count = [run for run in runs if run.health is not None and not _is_warm(run)]
    return [
        *_driver_errors(runs_that_count),
        *_throttling_of_an_arm(runs_that_count),
        *_low_clock_settings(runs_that_count),
        *_processor_load(runs_that_count),
    ]


def _is_warm(run: Run) -> bool:
    """Whether the run is a warm launch, which fills compiler caches and is discarded.

    The first of the runs of head alone is a warm launch. Records call the order of these runs ``head``, and the first
    has slot 0. In a session with pairs, the warm launches are block 0.
    """
    if run.position is None:
        return False
    return run.position.slot == 0 if run.position.order == "head" else run.position.block == 0


def _hardware_slowdown(run: Run) -> str:
    """Return which GPU of the run its hardware slowed down, and why; '' if none."""
    if run.health is None:
        return ""
    during = run.health.during
    for gpu in during.gpus:
        # Older records do not give the number of samples of each GPU.
        samples = during.samples if gpu.samples is None else gpu.samples
        for reason in HARDWARE_REASONS:
            slowed_share = gpu.reasons.get(reason, 0.0)
            if slowed_share >= SLOWED_SHARE and round(slowed_share * samples) >= SLOWED_SAMPLES:
                return f"GPU {gpu.index} was slowed down by its hardware ({reason})"
    return ""


def _driver_errors(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the driver errors (Xid) that the code under test itself causes, by arm. An error with another cause
    (``outside``) makes its run void, and is in the reason for that."""
    for arm in ("base", "head"):
        arm_runs = [run for run in runs if run.arm.name == arm]
        texts_by_run = [
            {cause.text for cause in run.health.causes if cause.kind == "xid" and not cause.outside}
            for run in arm_runs
            if run.health
        ]
        for text in sorted(set().union(*texts_by_run)):
            yield f"{arm}: {text} ({_run_count(sum(text in texts for texts in texts_by_run), len(arm_runs))})"


def _throttling_of_an_arm(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a warning for each cause that throttles most runs of one arm and few of the other (``LIMITED_ARM_SHARE``),
    if this difference is significant (``ALPHA``)."""
    runs_by_arm = {arm: [run for run in runs if run.arm.name == arm and _gpus(run)] for arm in ("base", "head")}
    if not all(runs_by_arm.values()):
        return
    for cause, reasons in THROTTLE_REASONS.items():
        # For each run, the most throttled GPU; None if no GPU of the run was throttled.
        worst_by_arm = {
            arm: [_worst_throttling(run, reasons) for run in arm_runs] for arm, arm_runs in runs_by_arm.items()
        }
        for arm, other_arm in (("head", "base"), ("base", "head")):
            # Numbers of throttled runs and of all runs, of this arm and of the other.
            throttled, total = _count_throttled(worst_by_arm[arm]), len(worst_by_arm[arm])
            other_throttled, other_total = _count_throttled(worst_by_arm[other_arm]), len(worst_by_arm[other_arm])
            only_this_arm = throttled >= LIMITED_ARM_SHARE * total and other_throttled <= OTHER_ARM_SHARE * other_total
            if only_this_arm and fisher(throttled, total, other_throttled, other_total) <= ALPHA:
                worst = max((gpu for gpu in worst_by_arm[arm] if gpu is not None), key=lambda gpu: gpu.share)
                other_mhz = _median_clock(runs_by_arm[other_arm], worst.gpu)
                other_clock_text = f" against {other_mhz:.0f} of {other_arm}" if other_mhz is not None else ""
                clock_text = f", at {worst.sm_mhz.median:.0f} MHz{other_clock_text}" if worst.sm_mhz is not None else ""
                yield (
                    f"{arm} is throttled by {cause} on its GPUs in {_run_count(throttled, total)}, {other_arm} in "
                    f"{_run_count(other_throttled, other_total)} (GPU {worst.gpu}: {100 * worst.share:.0f}% of the "
                    f"time{clock_text}): {arm} causes this, so it is part of its cost"
                )


@dataclass(frozen=True)
class _Throttling:
    """Throttling of one GPU in one run."""

    gpu: int
    """Index of the GPU on its node."""
    share: float
    """Share of the run's samples that show the most frequent clock reason, in [0, 1]."""
    sm_mhz: SampleRange | None
    """Clock of the streaming multiprocessors during the run."""


def _count_throttled(worst_by_run: Sequence[_Throttling | None]) -> int:
    return sum(worst is not None for worst in worst_by_run)


def _worst_throttling(run: Run, reasons: Sequence[ClockReason]) -> _Throttling | None:
    """Return the most throttled GPU of a run, None if no GPU was throttled in ``THROTTLED_SHARE`` of the samples.
    ``reasons`` are the clock reasons of one cause."""
    by_gpu = [
        _Throttling(gpu.index, max(gpu.reasons.get(reason, 0.0) for reason in reasons), gpu.sm_mhz)
        for gpu in _gpus(run)
    ]
    worst = max(by_gpu, key=lambda throttling: throttling.share)
    return worst if worst.share >= THROTTLED_SHARE else None


def _median_clock(runs: Sequence[Run], index: int) -> float | None:
    """Return the median clock, in MHz and over ``runs``, of the GPU with this index; None if no run has its clock."""
    clocks_mhz = [
        gpu.sm_mhz.median for run in runs for gpu in _gpus(run) if gpu.index == index and gpu.sm_mhz is not None
    ]
    return sorted(clocks_mhz)[len(clocks_mhz) // 2] if clocks_mhz else None


def _low_clock_settings(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a warning if the settings of the node keep the clocks low.

    These settings slow down both arms alike, so the ratio of the arms stays right and no run is void. That is why
    ``Cause.outside`` is false for this cause: a cause with ``outside`` makes its run void.
    """
    causes_by_run = [
        [cause for cause in run.health.causes if cause.kind == "low_clock" and not cause.outside]
        for run in runs
        if run.health
    ]
    if causes_of_slow_runs := [causes for causes in causes_by_run if causes]:
        first_cause, slow_runs = causes_of_slow_runs[0][0], _run_count(len(causes_of_slow_runs), len(runs))
        yield (
            f"{first_cause.text}, in {slow_runs}: this slows down both arms, and their times cannot be compared with "
            "nodes that have other settings"
        )


def _processor_load(runs: Sequence[Run]) -> Iterator[str]:
    """Yield one sentence for each kind of load on the processors: other work, stolen time, low clocks."""
    cpu_by_run = [run.health.during.cpu for run in runs if run.health is not None]
    other_shares = [cpu.other_share or 0.0 for cpu in cpu_by_run]
    if high_shares := [share for share in other_shares if share >= BUSY_SHARE]:
        yield (
            f"other work used up to {100 * max(high_shares):.0f}% of the cores during "
            f"{_run_count(len(high_shares), len(runs))}"
        )
    steal_shares = [cpu.steal_share or 0.0 for cpu in cpu_by_run]
    if high_shares := [share for share in steal_shares if share >= STEAL_SHARE]:
        yield (
            f"the hypervisor gave up to {100 * max(high_shares):.0f}% of the cores' time to other machines during "
            f"{_run_count(len(high_shares), len(runs))}"
        )
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
    """Return a phrase such as ``2 of 8 runs``."""
    return f"{number} of {count(total, 'run')}"
