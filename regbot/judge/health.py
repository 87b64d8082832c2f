"""Was the node fit for a comparison? From the runs of a session: what voids a run, and what is a finding about an arm.

A run is void only for what the code under test cannot have done: a fault of the hardware, somebody else on its GPUs, a
slowdown that meets both arms alike. A GPU that is held back whenever one arm runs, and not when the other does, tells
of that arm: its heat and its power are part of what it costs. On a CPU nothing is void: a shared machine is noisy, the
interval over pairs says how much, and here stands why.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regbot.records.health import GpuDuring, Reason, Span
from regbot.records.run import Run

SLOWED_SHARE, SLOWED_SAMPLES = 0.05, 2
"""Of the samples of a run, for a hardware slowdown to count: one sample may be a change of clocks."""
HARDWARE: tuple[Reason, ...] = ("hw_thermal", "hw_power_brake", "hw_slowdown")

HELD_BACK: dict[str, tuple[Reason, ...]] = {
    "its power limit": ("sw_power_cap", "board_limit"),
    "heat": ("sw_thermal", "hw_thermal"),
    "a power brake": ("hw_power_brake",),
    "a hardware slowdown": ("hw_slowdown",),
}
"""What can hold a GPU back while it computes, and how NVML shows it."""
HELD_SHARE = 0.1
"""Of the samples of a run on any of its GPUs, for the run to count as held back."""
MOST_RUNS, FEW_RUNS = 0.75, 0.25
"""Shares of an arm's runs: what follows an arm is in at least the one of its runs and at most the other of the other's.
"""
ALPHA = 0.05
"""Of Fisher's exact test, two-sided. Four runs of each arm, all against none, is the least that passes it."""

BUSY_SHARE = 0.1
"""Of the cores' time: other work that shows in step times."""
STEAL_SHARE = 0.02
SLOW_CORES = 0.9
"""Of the clock of the session's fastest run."""


def outside_cause(run: Run) -> str:
    """Why a run shows nothing of its arm, told by its own record; '' where nothing does. See ``slowed_blocks`` too."""
    if run.health is None:
        return ""
    return "; ".join(cause.text for cause in run.health.causes if cause.outside)[:2000]


def slowed_blocks(runs: Sequence[Run]) -> dict[tuple[int, int], str]:
    """Blocks in which the hardware slowed down a GPU in runs of both arms: block and attempt -> why its runs are void.

    In one arm only it may be that arm's doing.
    """
    slowed: dict[tuple[int, int], dict[str, str]] = {}
    for run in runs:
        if run.position is not None and run.position.block > 0 and (why := _hardware_slowdown(run)):
            slowed.setdefault((run.position.block, run.attempt), {})[run.arm.name] = why
    return {
        block: f"in runs of both arms of a block {why['head']}; look at the node's cooling and power supply"
        for block, why in slowed.items()
        if len(why) == 2
    }


def health_findings(runs: Sequence[Run]) -> list[str]:
    """What the node did to the runs of one entry, in sentences; warm launches aside. None of it voids a run."""
    counted = [run for run in runs if run.health is not None and not _warm(run)]
    return [*_own_faults(counted), *_follows_an_arm(counted), *_settings(counted), *_processors(counted)]


def fisher(hits: int, of: int, others: int, of_others: int) -> float:
    """Two-sided p of Fisher's exact test of ``hits`` of ``of`` against ``others`` of ``of_others``: the smaller tail,
    doubled."""
    total, all_hits = of + of_others, hits + others

    def chance(count: int) -> float:
        return math.comb(of, count) * math.comb(of_others, all_hits - count) / math.comb(total, all_hits)

    low, high = max(0, all_hits - of_others), min(of, all_hits)
    tails = (sum(map(chance, range(low, hits + 1))), sum(map(chance, range(hits, high + 1))))
    return min(1.0, 2 * min(tails))


def _warm(run: Run) -> bool:
    """A discarded launch: shorter than the others, on a node that still has to get warm."""
    if run.position is None:
        return False
    return run.position.slot == 0 if run.position.order == "screen" else run.position.block == 0


def _hardware_slowdown(run: Run) -> str:
    if run.health is None:
        return ""
    during = run.health.during
    for gpu in during.gpus:
        for reason in HARDWARE:
            share = gpu.reasons.get(reason, 0.0)
            if share >= SLOWED_SHARE and round(share * during.samples) >= SLOWED_SAMPLES:
                return f"GPU {gpu.index} was slowed down by its hardware ({reason})"
    return ""


def _own_faults(runs: Sequence[Run]) -> Iterator[str]:
    """Errors of the driver that code causes, by arm."""
    for arm in ("base", "head"):
        own = [run for run in runs if run.arm.name == arm]
        told = [{c.text for c in run.health.causes if c.kind == "xid" and not c.outside} for run in own if run.health]
        for text in sorted(set().union(*told)):
            yield f"{arm}: {text} ({_of(sum(text in each for each in told), len(own))})"


def _follows_an_arm(runs: Sequence[Run]) -> Iterator[str]:
    arms = {name: [run for run in runs if run.arm.name == name and _gpus(run)] for name in ("base", "head")}
    if not all(arms.values()):
        return
    for words, reasons in HELD_BACK.items():
        held = {name: [_held_back(run, reasons) for run in own] for name, own in arms.items()}
        for name, other in (("head", "base"), ("base", "head")):
            hits, others = sum(map(bool, held[name])), sum(map(bool, held[other]))
            of, of_others = len(held[name]), len(held[other])
            apart = hits >= MOST_RUNS * of and others <= FEW_RUNS * of_others
            if apart and fisher(hits, of, others, of_others) <= ALPHA:
                worst = max((each for each in held[name] if each), key=lambda each: each.share)
                usual = _clock(arms[other], worst.gpu)
                clocks = f" against {usual:.0f} of {other}" if usual is not None else ""
                at = f", at {worst.sm_mhz.median:.0f} MHz{clocks}" if worst.sm_mhz is not None else ""
                yield (
                    f"{name} is held back by {words} on its GPUs in {_of(hits, of)}, {other} in "
                    f"{_of(others, of_others)} (GPU {worst.gpu}: {100 * worst.share:.0f}% of the time{at}): that comes "
                    f"with {name} and is part of what it costs"
                )


@dataclass(frozen=True)
class _Held:
    gpu: int
    share: float
    sm_mhz: Span | None


def _held_back(run: Run, reasons: Sequence[Reason]) -> _Held | None:
    """The GPU of a run that was held back most, None where none was."""
    found = [
        _Held(gpu.index, max(gpu.reasons.get(reason, 0.0) for reason in reasons), gpu.sm_mhz) for gpu in _gpus(run)
    ]
    worst = max(found, key=lambda each: each.share)
    return worst if worst.share >= HELD_SHARE else None


def _clock(runs: Sequence[Run], index: int) -> float | None:
    found = [gpu.sm_mhz.median for run in runs for gpu in _gpus(run) if gpu.index == index and gpu.sm_mhz is not None]
    return sorted(found)[len(found) // 2] if found else None


def _settings(runs: Sequence[Run]) -> Iterator[str]:
    """Clocks that are low by the node's settings: the same for both arms, and not what another node has."""
    low = [[c for c in run.health.causes if c.kind == "low_clock" and not c.outside] for run in runs if run.health]
    if hits := [causes for causes in low if causes]:
        yield (
            f"{hits[0][0].text}, in {_of(len(hits), len(runs))}: both arms are slower for it, and their times compare "
            "with no node that is set otherwise"
        )


def _processors(runs: Sequence[Run]) -> Iterator[str]:
    """What the processors were kept busy with, one sentence for each kind."""
    during = [run.health.during.cpu for run in runs if run.health is not None]
    other = [each.other_share or 0.0 for each in during]
    if hits := [share for share in other if share >= BUSY_SHARE]:
        yield f"other work used up to {100 * max(hits):.0f}% of the cores during {_of(len(hits), len(runs))}"
    steal = [each.steal_share or 0.0 for each in during]
    if hits := [share for share in steal if share >= STEAL_SHARE]:
        yield (
            f"the hypervisor gave up to {100 * max(hits):.0f}% of the cores' time to other machines during "
            f"{_of(len(hits), len(runs))}"
        )
    clocks = [each.mhz.median for each in during if each.mhz is not None]
    if slow := [mhz for mhz in clocks if mhz < SLOW_CORES * max(clocks)]:
        yield (
            f"the cores were clocked at {min(slow):.0f} MHz and more in {_of(len(slow), len(runs))}, at up to "
            f"{max(clocks):.0f} in the others"
        )


def _gpus(run: Run) -> Sequence[GpuDuring]:
    return run.health.during.gpus if run.health is not None else []


def _of(number: int, total: int) -> str:
    return f"{number} of {total} run{'s' * (total != 1)}"
