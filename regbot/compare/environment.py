"""Warnings about differences between the environments of step logs. Most logs contain little about their environment.

The facts come from the lines above the first step, as printed by Megatron-LM (arguments.py), MaxText (max_utils.py,
maxtext_utils.py), torchtitan (train.py, device_memory), NCCL (NCCL_DEBUG=VERSION) and NVIDIA's containers. Two more
facts come from the steps: the work of a step (TFLOP/s times seconds, as the framework counts FLOPs), and the peak
memory in golden values of Megatron. Run records contain more facts, and ``regbot.judge`` compares them.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median

from regbot.compare.grouping import join_names
from regbot.compare.run_files import StepFile
from regbot.logs import LINE_FORMATS, LogError, StepLogFile
from regbot.text.clip import clip
from regbot.text.printable import printable

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
"""Name of a fact -> pattern of the log line that states the fact. The group of the pattern is the value."""

HEAD_LINES = 50_000
"""Maximum number of lines that are searched for facts above the first step. Megatron prints a few thousand."""

MAX_WORK_RATIO = 1.05
"""If the work of a step differs between two files by more than this ratio, a warning says so."""
MIN_TFLOPS = 5.0
"""Smallest TFLOP/s that is compared. Logs print TFLOP/s in steps of 0.1, so rounding dominates smaller values."""

PEAK_METRIC = "mem-max-allocated-bytes"
"""Name of the peak memory in Megatron's golden values."""
MAX_PEAK_BYTES = 2**60
"""Larger values are no peak memory."""
FACT_CHARACTERS = 200
"""Largest length of a value of a fact."""


def warnings(base: Sequence[StepFile], head: Sequence[StepFile]) -> Iterator[str]:
    """Yield a warning for each difference in environment, work per step or peak memory. If no file contains facts about
    its environment, yield a warning about that.
    """
    files = [*base, *head]
    facts_by_file = {file.name: _read_facts(file.path) for file in files if file.log is not None}  # of logs only
    for fact in FACTS:
        files_by_value: dict[str, list[str]] = {}
        for name, facts in facts_by_file.items():
            if fact in facts:
                files_by_value.setdefault(facts[fact], []).append(name)
        if len(files_by_value) > 1:
            yield (
                f"the {fact} differs: "
                + ", ".join(f"{value} in {join_names(names)}" for value, names in files_by_value.items())
                + "; this can cause a difference in step time"
            )
    yield from _work_warnings(files)
    yield from _peak_warnings(base, head)
    has_only_run_records = all(file.run is not None for file in files)  # these always state their environment
    if not has_only_run_records and not any(facts_by_file.values()):
        yield (
            "the files do not name their node, software or commit; if base and head ran on other nodes or with other "
            "software, the estimate includes the effect of that"
        )


def _read_facts(path: Path) -> dict[str, str]:
    """Return the facts in the lines above the first step of a log. The first value of a fact counts."""
    facts: dict[str, str] = {}
    try:
        for line in islice(StepLogFile(path).lines(), HEAD_LINES):
            if any(line_format.recognises(line.text) for line_format in LINE_FORMATS):
                break  # this is the line of the first step
            for fact, pattern in FACTS.items():
                if fact not in facts and (match := pattern.search(line.text)):
                    facts[fact] = clip(printable(match.group(1)).rstrip(" ,"), FACT_CHARACTERS)
    except LogError:
        pass  # The facts are optional, and the steps of this file have been read before.
    return facts


def _work_warnings(files: Sequence[StepFile]) -> Iterator[str]:
    """Yield a warning if the files differ in the work of a step: the TFLOP per device, as the frameworks count them."""
    work_by_file: dict[str, float] = {}  # file name -> median TFLOP of a step
    for file in files:
        steps = file.log.timed[file.cut :] if file.log is not None else ()
        # ``tflops`` is a rate, in TFLOP per second and device.
        step_work = [step.tflops * step.seconds for step in steps if step.tflops and step.seconds]
        if step_work and median(step.tflops or 0.0 for step in steps) >= MIN_TFLOPS:
            work_by_file[file.name] = median(step_work)
    if work_by_file and max(work_by_file.values()) > MAX_WORK_RATIO * min(work_by_file.values()):
        smallest = min(work_by_file, key=lambda name: work_by_file[name])
        largest = max(work_by_file, key=lambda name: work_by_file[name])
        yield (
            f"the work of a step differs: {work_by_file[largest]:.4g} TFLOP per device in {largest}, "
            f"{work_by_file[smallest]:.4g} in {smallest}; the batch, the devices or the way of counting differ"
        )


def _peak_warnings(base: Sequence[StepFile], head: Sequence[StepFile]) -> Iterator[str]:
    """Yield a warning if base and head have no value of peak memory in common. In that case code, routing or
    environment differ, and not only the step times."""
    base_peaks, head_peaks = ({_peak_bytes(file) for file in arm} - {0} for arm in (base, head))  # 0: unknown
    if base_peaks and head_peaks and not base_peaks & head_peaks:
        yield (
            f"base and head differ in more than their times: the peak of memory is {_format_bytes(base_peaks)} in base "
            f"and {_format_bytes(head_peaks)} in head, so code, routing or environment (software, node) are not the "
            "same"
        )


def _format_bytes(peaks: set[int]) -> str:
    return f"{min(peaks):,} bytes" if len(peaks) == 1 else f"{min(peaks):,} to {max(peaks):,} bytes"


def _peak_bytes(file: StepFile) -> int:
    """Return the largest peak memory in Megatron's golden values, in bytes; 0 if the file has none."""
    if file.log is None or file.log.format != "golden":
        return 0
    try:
        document = json.loads(StepLogFile(file.path).document().decode("utf-8-sig"))
    except (LogError, ValueError, RecursionError):
        return 0
    metric = document.get(PEAK_METRIC) if isinstance(document, dict) else None
    values = metric.get("values") if isinstance(metric, dict) else None
    peaks = values.values() if isinstance(values, dict) else ()
    plausible_peaks = [int(value) for value in peaks if isinstance(value, int | float) and 0 < value < MAX_PEAK_BYTES]
    return max(plausible_peaks, default=0)
