"""Judge the health of the node during timed runs: decide which runs are void, and describe what affected the arms.

Only a cause outside the code under test makes a run void: a hardware fault, another process on the run's GPUs, or a
slowdown by the hardware in both arms. If a GPU is throttled in the runs of one arm only, this is a finding about that
arm, because the heat and power of its code are part of the cost. A run on a CPU is never void because of the node: if
the machine is shared and noisy, the interval over pairs includes the noise, and the findings explain it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regbot.records.health import ClockReason, GpuUsage, SampleRange
from regbot.records.run import Run
from regbot.stats.unpaired import fisher
from regbot.text.clip import clip
from regbot.text.words import count

SLOWED_SHARE, SLOWED_SAMPLES = 0.05, 2
"""A hardware slowdown counts if at least this share and at least this number of a run's samples show it. A single
sample may come from a change of the clock."""
HARDWARE_REASONS: tuple[ClockReason, ...] = ("hw_thermal", "hw_power_brake", "hw_slowdown")
"""NVML clock reasons of a slowdown by the hardware."""

THROTTLE_REASONS: dict[str, tuple[ClockReason, ...]] = {
    "its power limit": ("sw_power_cap", "board_limit"),
    "heat": ("sw_thermal", "hw_thermal"),
    "a power brake": ("hw_power_brake",),
    "a hardware slowdown": ("hw_slowdown",),
}
"""NVML clock reasons by cause of throttling. The keys are the words for the cause in a finding."""
THROTTLED_SHARE = 0.1
"""A run counts as throttled if one of its GPUs is throttled in at least this share of the samples."""
LIMITED_ARM_SHARE, OTHER_ARM_SHARE = 0.75, 0.25
"""Throttling is attributed to an arm if it occurs in at least the first share of that arm's runs and in at most the
second share of the other arm's runs."""
ALPHA = 0.05
"""Level of the two-sided Fisher's exact test. With four runs of each arm, the test is significant only if all runs of
one arm and no run of the other are throttled. With three runs of each arm, the test is never significant."""

BUSY_SHARE = 0.1
"""Other work counts as affecting step times if it uses at least this share of the cores' time."""
STEAL_SHARE = 0.02
"""Stolen time counts as affecting step times if the hypervisor gives at least this share of the cores' time to other
machines."""
SLOW_CORES = 0.9
"""Cores count as slow in a run if their clock, divided by the highest clock of any run, is below this value."""


def describe_outside_cause(run: Run) -> str:
    """Return the causes in a run's record that make the run void, '' if there are none. Such causes lie outside the
    code under test.

    A cause that shows only in several runs together is found by ``find_slowed_blocks``.
    """
    if run.health is None:
        return ""
    return clip("; ".join(cause.text for cause in run.health.causes if cause.outside), 2000)


def find_slowed_blocks(runs: Sequence[Run]) -> dict[tuple[int, int], str]:
    """Return the blocks in which the hardware slowed down a GPU in runs of both arms.

    A key is the number and the attempt of a block. Its value is the reason why the runs of the block are void. A
    slowdown in one arm only may be caused by that arm, so it makes no run void.
    """
    slowed: dict[tuple[int, int], dict[str, str]] = {}
    for run in runs:
        if run.position is not None and run.position.block > 0 and (cause := _hardware_slowdown(run)):
            slowed.setdefault((run.position.block, run.attempt), {})[run.arm.name] = cause
    return {
        block: f"in runs of both arms of a block {cause_by_arm['head']}; look at the node's cooling and power supply"
        for block, cause_by_arm in slowed.items()
        if len(cause_by_arm) == 2
    }


def health_findings(runs: Sequence[Run]) -> list[str]:
    """Return sentences on how the node affected the runs of one entry. Warm launches are left out. These findings make
    no run void."""
    counted = [run for run in runs if run.health is not None and not _is_warm(run)]
    return [
        *_driver_errors(counted),
        *_throttling_of_an_arm(counted),
        *_low_clock_settings(counted),
        *_processor_load(counted),
    ]


def _is_warm(run: Run) -> bool:
    """Whether the run is a warm launch, which warms up the node and is discarded."""
    if run.position is None:
        return False
    return run.position.slot == 0 if run.position.order == "screen" else run.position.block == 0


def _hardware_slowdown(run: Run) -> str:
    if run.health is None:
        return ""
    during = run.health.during
    for gpu in during.gpus:
        samples = during.samples if gpu.samples is None else gpu.samples
        for reason in HARDWARE_REASONS:
            share = gpu.reasons.get(reason, 0.0)
            if share >= SLOWED_SHARE and round(share * samples) >= SLOWED_SAMPLES:
                return f"GPU {gpu.index} was slowed down by its hardware ({reason})"
    return ""


def _driver_errors(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the driver errors (Xid) that the code under test itself causes, by arm."""
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
    """Yield a finding for each cause that throttles the GPUs of one arm and not those of the other."""
    arms = {name: [run for run in runs if run.arm.name == name and _gpus(run)] for name in ("base", "head")}
    if not all(arms.values()):
        return
    for cause, reasons in THROTTLE_REASONS.items():
        throttling = {name: [_worst_throttling(run, reasons) for run in arm_runs] for name, arm_runs in arms.items()}
        for name, other_arm in (("head", "base"), ("base", "head")):
            throttled, other_throttled = sum(map(bool, throttling[name])), sum(map(bool, throttling[other_arm]))
            total, other_total = len(throttling[name]), len(throttling[other_arm])
            only_this_arm = throttled >= LIMITED_ARM_SHARE * total and other_throttled <= OTHER_ARM_SHARE * other_total
            if only_this_arm and fisher(throttled, total, other_throttled, other_total) <= ALPHA:
                worst = max((gpu for gpu in throttling[name] if gpu), key=lambda gpu: gpu.share)
                other_mhz = _median_clock(arms[other_arm], worst.gpu)
                clocks = f" against {other_mhz:.0f} of {other_arm}" if other_mhz is not None else ""
                clock_text = f", at {worst.sm_mhz.median:.0f} MHz{clocks}" if worst.sm_mhz is not None else ""
                yield (
                    f"{name} is throttled by {cause} on its GPUs in {_run_count(throttled, total)}, {other_arm} in "
                    f"{_run_count(other_throttled, other_total)} (GPU {worst.gpu}: {100 * worst.share:.0f}% of the "
                    f"time{clock_text}): {name} causes this, so it is part of its cost"
                )


@dataclass(frozen=True)
class _Throttling:
    """Throttling of one GPU in one run. ``share`` is the share of samples with the most frequent reason."""

    gpu: int
    share: float
    sm_mhz: SampleRange | None


def _worst_throttling(run: Run, reasons: Sequence[ClockReason]) -> _Throttling | None:
    """Return the most throttled GPU of a run, None if no GPU was throttled."""
    gpus = [
        _Throttling(gpu.index, max(gpu.reasons.get(reason, 0.0) for reason in reasons), gpu.sm_mhz)
        for gpu in _gpus(run)
    ]
    worst = max(gpus, key=lambda throttling: throttling.share)
    return worst if worst.share >= THROTTLED_SHARE else None


def _median_clock(runs: Sequence[Run], index: int) -> float | None:
    clocks_mhz = [
        gpu.sm_mhz.median for run in runs for gpu in _gpus(run) if gpu.index == index and gpu.sm_mhz is not None
    ]
    return sorted(clocks_mhz)[len(clocks_mhz) // 2] if clocks_mhz else None


def _low_clock_settings(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a warning if the settings of the node keep the clocks low. Such settings affect both arms alike.

    ``Cause.outside`` is true if code under test cannot have caused a fault, so that the run is void. It is false for a
    clock that the settings keep low, because such a clock makes no run void.
    """
    causes_by_run = [
        [cause for cause in run.health.causes if cause.kind == "low_clock" and not cause.outside]
        for run in runs
        if run.health
    ]
    if hits := [causes for causes in causes_by_run if causes]:
        yield (
            f"{hits[0][0].text}, in {_run_count(len(hits), len(runs))}: this slows down both arms, and their times "
            "cannot be compared with nodes that have other settings"
        )


def _processor_load(runs: Sequence[Run]) -> Iterator[str]:
    """Yield one sentence for each kind of load on the processors: other work, stolen time, low clocks."""
    during = [run.health.during.cpu for run in runs if run.health is not None]
    other_shares = [cpu.other_share or 0.0 for cpu in during]
    if hits := [share for share in other_shares if share >= BUSY_SHARE]:
        yield f"other work used up to {100 * max(hits):.0f}% of the cores during {_run_count(len(hits), len(runs))}"
    steal_shares = [cpu.steal_share or 0.0 for cpu in during]
    if hits := [share for share in steal_shares if share >= STEAL_SHARE]:
        yield (
            f"the hypervisor gave up to {100 * max(hits):.0f}% of the cores' time to other machines during "
            f"{_run_count(len(hits), len(runs))}"
        )
    clocks_mhz = [cpu.mhz.median for cpu in during if cpu.mhz is not None]
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
