"""What step logs tell of where they were made: what differs is said, and most files tell nothing.

Read from the lines above the first step, as they are printed by Megatron-LM (arguments.py), MaxText (max_utils.py,
maxtext_utils.py), torchtitan (train.py, device_memory), NCCL (NCCL_DEBUG=VERSION) and NVIDIA's containers. Two more
things show in the steps themselves: the work of a step, because TFLOP/s times seconds is what a framework counts of it,
and in golden values of Megatron the peak of memory. Run records tell more, and ``regbot.judge`` compares them.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median

from regbot.compare.read import StepFile
from regbot.compare.said import named
from regbot.logs import LINES, LogError, LogFile
from regbot.text import printable

FACTS = {
    "parallelism": re.compile(r"\busing (world size: \d+, data-parallel size: .*)"),
    "JAX": re.compile(r"\bSystem Information: Jax Version: (\S+)"),
    "backend of JAX": re.compile(r"\bSystem Information: Jax Backend: (\S.*)"),
    "number of devices": re.compile(r"\bNum_devices: (\d+)"),
    "torchtitan": re.compile(r"\btorchtitan version: ([^\s(]+)"),
    "device": re.compile(r"\b(?:CUDA|XPU) capacity: (\S.*?) with [\d.]+GiB"),
    "device mesh": re.compile(r"\bBuilding \d+-D device mesh with (\S.*)"),
    "PyTorch": re.compile(r"^\W*PyTorch Version (\S+)"),
    "container": re.compile(r"^\W*NVIDIA Release (\S+)"),
    "NCCL": re.compile(r"\bNCCL version (\d\S*)"),
}

HEAD_LINES = 50_000
"""Lines above the first step that are looked at: Megatron prints some thousand."""

SAME_WORK = 1.05
LEAST_TFLOPS = 5.0
"""Printed to 0.1: below this, rounding is too much of it."""

PEAK = "mem-max-allocated-bytes"


def warnings(base: Sequence[StepFile], head: Sequence[StepFile]) -> Iterator[str]:
    """What differs between the files beside their times, and that most of it cannot be known from them."""
    files = [*base, *head]
    told = {file.name: _facts(file.path) for file in files if file.log is not None}
    for fact in FACTS:
        values: dict[str, list[str]] = {}
        for name, facts in told.items():
            if fact in facts:
                values.setdefault(facts[fact], []).append(name)
        if len(values) > 1:
            yield (
                f"the {fact} is not the same: "
                + ", ".join(f"{value} in {named(names)}" for value, names in values.items())
                + "; a difference may come from there"
            )
    yield from _work(files)
    yield from _peak(base, head)
    if any(file.run is None for file in files) and not any(told.values()):
        yield (
            "the files tell nothing of their environment (node, software) or commit: where base and head differ in "
            "it, that is in the estimate too"
        )


def _facts(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        for line in islice(LogFile(path).lines(), HEAD_LINES):
            if any(each.recognises(line.text) for each in LINES):
                break
            for fact, pattern in FACTS.items():
                if fact not in found and (seen := pattern.search(line.text)):
                    found[fact] = printable(seen.group(1)).rstrip(" ,")[:200]
    except LogError:  # it was readable a moment ago, and what it says of its steps is known
        return found
    return found


def _work(files: Sequence[StepFile]) -> Iterator[str]:
    """Files whose steps are not the same work, by the frameworks' own count of FLOPs per device."""
    work: dict[str, float] = {}
    for file in files:
        steps = file.log.timed[file.cut :] if file.log is not None else ()
        done = [each.tflops * each.seconds for each in steps if each.tflops and each.seconds]
        if done and median(each.tflops or 0.0 for each in steps) >= LEAST_TFLOPS:
            work[file.name] = median(done)
    if work and max(work.values()) > SAME_WORK * min(work.values()):
        least, most = min(work, key=lambda name: work[name]), max(work, key=lambda name: work[name])
        yield (
            f"a step is not the same work: {work[most]:.4g} TFLOP per device in {most}, {work[least]:.4g} in {least}; "
            "another batch, another number of devices, or counted in another way"
        )


def _peak(base: Sequence[StepFile], head: Sequence[StepFile]) -> Iterator[str]:
    """Peaks of memory that are others in all files of an arm than in all of the other one."""
    ours, theirs = ({peak for file in arm if (peak := _peak_bytes(file))} for arm in (base, head))
    if ours and theirs and not ours & theirs:
        yield (
            f"base and head differ in more than their times: the peak of memory is {_bytes(ours)} in base and "
            f"{_bytes(theirs)} in head, so code, routing or environment (software, node) are not the same"
        )


def _bytes(peaks: set[int]) -> str:
    return f"{min(peaks):,} bytes" if len(peaks) == 1 else f"{min(peaks):,} to {max(peaks):,} bytes"


def _peak_bytes(file: StepFile) -> int:
    """The largest value of Megatron's golden values; 0 where the file tells of none."""
    if file.log is None or file.log.format != "golden":
        return 0
    try:
        document = json.loads(LogFile(file.path).document().decode("utf-8-sig"))
    except (LogError, ValueError, RecursionError):
        return 0
    metric = document.get(PEAK) if isinstance(document, dict) else None
    values = metric.get("values") if isinstance(metric, dict) else None
    seen = values.values() if isinstance(values, dict) else ()
    return max((int(value) for value in seen if isinstance(value, int | float) and 0 < value < 2**60), default=0)
