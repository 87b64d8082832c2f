"""The ranks of one run, read together: what they claim of their steps, and whether that can be true.

Step times are held against the times that the system gave three files, which rank 0 made before its first step, after
its warm-up and after its last. A clock that is wrong or was replaced shows. Who controls the process can forge the
files too: against that helps only that wall time, which the engine takes, and step times are shown side by side.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from regbot.records.ledger import Ledger
from regbot.records.run import Backend, CodeProof, Outcome, RankSteps, RawRun, Timing

CLOCK_TOLERANCE, STEADY_TOLERANCE = 0.05, 0.02
"""How far a guest's step times may be from the harness's clock, all of them together and those after the warm-up, which
decide; or CLOCK_TOLERANCE_S, where that is more."""
CLOCK_TOLERANCE_S = 0.25
"""File times are a few milliseconds coarse, and a process that is to make a file may have to wait for a busy disk or
core."""

BEGUN, STEADY, ENDED = "steps.begun", "steps.steady", "steps.ended"
"""The files that mark the steps; see ``regbot_guest.probe``."""


@dataclass(frozen=True)
class Marks:
    """Seconds by the harness's clock; None where a mark is missing."""

    total_s: float | None
    steady_s: float | None


def read_marks(folder: Path) -> Marks:
    """The spans between the marks, by the times of their last change, which the supervisor has kept as those of their
    modification: a guest can set the latter, but the supervisor does it when the guest is dead."""
    times: dict[str, int] = {}
    for name in (BEGUN, STEADY, ENDED):
        mark = folder / name
        if mark.is_file() and not mark.is_symlink():
            times[name] = mark.lstat().st_mtime_ns
    return Marks(_span(times, BEGUN), _span(times, STEADY))


def _span(times: Mapping[str, int], begin: str) -> float | None:
    if begin not in times or ENDED not in times:
        return None
    return max(0.0, (times[ENDED] - times[begin]) / 1e9)


def unbelievable(ranks: Mapping[int, RankSteps | None], asked: int, cut: int, marks: Marks) -> str:
    """Why the ranks' accounts of their steps cannot be true, '' where they can."""
    believed: dict[int, RankSteps] = {}
    for rank, steps in ranks.items():
        if steps is None:
            return f"rank {rank} has no step times"
        lengths = {len(steps.step_s), len(steps.cpu_s), len(steps.wait_s), len(steps.memory_bytes)}
        if len(lengths) != 1:
            return f"rank {rank} tells of different numbers of steps in one record"
        if len(steps.step_s) > asked:
            return f"rank {rank} claims {len(steps.step_s)} steps, but {asked} were asked for"
        if any(seconds <= 0 for seconds in steps.step_s):
            return f"rank {rank} claims a step that took no time"
        believed[rank] = steps
    if len({len(steps.step_s) for steps in believed.values()}) != 1:
        return "the ranks claim different numbers of steps"
    if marks.total_s is None or (marks.steady_s is None and asked > cut):
        return "a mark of the first or the last step is missing, so the step times cannot be checked"
    for rank, steps in believed.items():
        if fault := _off(sum(steps.step_s), marks.total_s, CLOCK_TOLERANCE):
            return f"rank {rank} claims {fault}"
        if marks.steady_s is None or len(steps.step_s) <= cut:
            continue
        if fault := _off(sum(steps.step_s[cut:]), marks.steady_s, STEADY_TOLERANCE):
            return f"after its warm-up rank {rank} claims {fault}"
    return ""


def _off(claimed_s: float, seen_s: float, tolerance: float) -> str:
    if abs(claimed_s - seen_s) <= max(CLOCK_TOLERANCE_S, tolerance * seen_s):
        return ""
    return (
        f"{claimed_s:.3g} s for its steps, and by the system's clock they took {seen_s:.3g} s: its clock is wrong or "
        "was replaced"
    )


def trained(raws: Mapping[int, RawRun], asked: int) -> tuple[Outcome, str]:
    """Whether all steps were steps of training."""
    done = min(len(raw.steps.step_s) for raw in raws.values() if raw.steps is not None)
    if done < asked:
        return "short", f"ended without an error after {done} of {asked} steps"
    if any(len(raw.loss) != asked for raw in raws.values()):
        return "bad_record", f"does not tell one loss for each of {asked} steps on every rank; the run was not used"
    losses = mean_loss([raw.loss for raw in raws.values()])
    if None in losses:
        first = losses.index(None) + 1
        return "diverged", f"the loss is not finite in {losses.count(None)} of {asked} steps, first in step {first}"
    if skipped := max(raw.skipped_steps for raw in raws.values()):
        return "diverged", f"the optimizer skipped {skipped} of {asked} steps: weights did not change in them"
    return "ok", ""


def mean_loss(ranks: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Mean over ranks per step; None where any rank's is not finite."""
    return [_mean(step) for step in zip(*ranks, strict=False)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    mean = sum(known) / len(values)
    return mean if len(known) == len(values) and math.isfinite(mean) else None


def timing_of(raws: Mapping[int, RawRun], asked: int, cut: int, marks: Marks) -> Timing | None:
    """What all ranks say together; None where it makes no sense together."""
    ranks = {str(rank): raw.steps for rank, raw in sorted(raws.items()) if raw.steps is not None}
    experts = [raw.tokens_per_expert for raw in raws.values()]
    known = all(experts) and len({len(counts) for counts in experts}) == 1
    dropped = [raw.dropped_tokens for raw in raws.values()]
    try:
        return Timing(
            asked=asked,
            cut=min(cut, asked),
            method=f"the first {min(cut, asked)} steps",
            clock=raws[0].clock,
            step_s=[max(each) for each in zip(*(steps.step_s for steps in ranks.values()), strict=False)],
            ranks=ranks,
            harness_s=marks.total_s,
            harness_steady_s=marks.steady_s,
            memory_peak_bytes=max((steps.peak_bytes for steps in ranks.values()), default=0),
            memory_slope_bytes=max((slope(steps.memory_bytes[cut:]) for steps in ranks.values()), key=abs, default=0.0),
            tokens_per_expert=[sum(column) for column in zip(*experts, strict=True)] if known else [],
            dropped_tokens=sum(n for n in dropped if n is not None) if None not in dropped else None,
            skipped_steps=max(raw.skipped_steps for raw in raws.values()),
        )
    except ValidationError:
        return None


def slope(values: Sequence[float]) -> float:
    """Growth per step, by least squares; 0 for fewer than two steps."""
    n = len(values)
    if n < 2:
        return 0.0
    middle, mean = (n - 1) / 2, sum(values) / n
    return sum((i - middle) * (v - mean) for i, v in enumerate(values)) / sum((i - middle) ** 2 for i in range(n))


def ledger_of(ledgers: Sequence[Ledger]) -> Ledger:
    """Rank 0's ledger with a digest of every other rank's entries."""
    first, *others = ledgers
    return first.model_copy(update={"rank_digests": {str(ledger.rank): digest(ledger) for ledger in others}})


def digest(ledger: Ledger) -> str:
    """SHA-256 of a ledger's entries, whatever their order."""
    entries = sorted(entry.model_dump_json() for entry in ledger.entries)
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def backends_of(ranks: Sequence[Mapping[str, Backend]]) -> dict[str, Backend]:
    """What every rank executed; where ranks differ, that they do. Only what all ranks tell of."""
    found: dict[str, Backend] = {}
    for name in sorted(set.intersection(*(set(backends) for backends in ranks))) if ranks else ():
        executed = sorted({backends[name].executed for backends in ranks})
        first = ranks[0][name]
        if len(executed) > 1:
            said = f"ranks differ: {', '.join(executed)}"
            first = first.model_copy(update={"executed": " | ".join(executed)[:500], "evidence": said[:4000]})
        found[name] = first
    return found


def code_of(proofs: Sequence[CodeProof | None]) -> CodeProof | None:
    """One proof of all ranks; None where one has none. What is foreign on any rank is foreign."""
    given = [proof for proof in proofs if proof is not None]
    if len(given) != len(proofs) or not given:
        return None
    merged = given[0]
    for proof in given[1:]:
        if any(merged.files.get(name, value) != value for name, value in proof.files.items()):
            return None  # two ranks of one launch ran different code
        merged = CodeProof(
            watched={**proof.watched, **merged.watched},
            foreign={**proof.foreign, **merged.foreign},
            files={**proof.files, **merged.files},
        )
    return merged
