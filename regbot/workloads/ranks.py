"""Combine the records of one run's ranks, and check whether their claims about steps can be true.

Rank 0 creates three files, called marks: before its first step, after its warm-up, and after its last step. The ranks'
step times are compared with the times that the system recorded for these files. This detects a clock that is wrong or
was replaced. It does not detect code that controls the process, because this code can create the files at other times.
So the report also shows the engine's wall time beside the step times.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import linear_regression

from regbot.records.ledger import Ledger
from regbot.records.run import Backend, CodeProof, Outcome, RawRun, Timing
from regbot.records.text.clip import clip_label, clip_message

CLOCK_TOLERANCE, STEADY_TOLERANCE = 0.05, 0.02
"""Allowed relative deviation of a guest's step times from the system's clock. CLOCK_TOLERANCE is for the sum of all
steps. STEADY_TOLERANCE is for the steps after the warm-up. It is smaller, because the verdict uses these steps. A
deviation of CLOCK_TOLERANCE_S is always allowed."""
CLOCK_TOLERANCE_S = 0.25
"""Allowed deviation in seconds. File times are exact to a few milliseconds, and a busy disk or core can delay the
creation of a file."""

BEGUN, STEADY, ENDED = "steps.begun", "steps.steady", "steps.ended"
"""Names of the files that mark the beginning of the steps, the end of the warm-up, and the end of the steps. See
``regbot_guest.probe``."""


def read_marks(folder: Path) -> dict[str, float]:
    """Return the seconds from each mark in ``folder`` to ``ENDED``, from the modification times of the files.

    In a sandbox, these are the change times in the guest, which it cannot set.
    """
    marks = [folder / name for name in (BEGUN, STEADY, ENDED)]
    times = {mark.name: mark.lstat().st_mtime for mark in marks if mark.is_file() and not mark.is_symlink()}
    return {name: max(0.0, times[ENDED] - time) for name, time in times.items()} if ENDED in times else {}


def find_step_fault(timing: Timing) -> str:
    """Return why the ranks' step times cannot be true by the system's clock; '' if they can."""
    num_steps, requested = len(timing.step_s), timing.requested_steps
    if num_steps > requested:
        return f"the ranks claim {num_steps} steps, but {requested} were requested"
    has_steady_steps = requested > timing.cut
    if timing.harness_s is None or (timing.harness_steady_s is None and has_steady_steps):
        return "a mark of the first or the last step is missing, so the step times cannot be checked"
    for rank, steps in timing.ranks.items():
        for place, step_s, measured_s, tolerance in (
            ("", steps.step_s, timing.harness_s, CLOCK_TOLERANCE),
            ("after its warm-up ", steps.step_s[timing.cut :], timing.harness_steady_s, STEADY_TOLERANCE),
        ):
            if measured_s is None or (place and not step_s):
                continue
            if abs(sum(step_s) - measured_s) > max(CLOCK_TOLERANCE_S, tolerance * measured_s):
                claim = f"{place}rank {rank} claims {sum(step_s):.3g} s for its steps"
                measured = f"by the system's clock they took {measured_s:.3g} s"
                return f"{claim}, but {measured}: its clock is wrong or was replaced"
    return ""


def training_outcome(raws: Mapping[int, RawRun], requested: int) -> tuple[Outcome, str]:
    completed = min(len(raw.steps.step_s) for raw in raws.values() if raw.steps is not None)
    if completed < requested:
        return "short", f"ended without an error after {completed} of {requested} steps"
    if any(len(raw.loss) != requested for raw in raws.values()):
        return "bad_record", f"does not report one loss for each of {requested} steps on every rank; it was not used"
    losses = mean_loss([raw.loss for raw in raws.values()])
    if None in losses:
        first = losses.index(None) + 1
        return "diverged", f"its loss is not finite in {losses.count(None)} of {requested} steps, first in step {first}"
    if skipped := max(raw.skipped_steps for raw in raws.values()):
        return "diverged", f"the optimizer skipped {skipped} of {requested} steps: weights did not change in them"
    return "ok", ""


def mean_loss(ranks: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Return the mean loss over ranks for each step; None if a rank's loss is not finite in this step."""
    means = []
    for losses in zip(*ranks, strict=False):
        known = [loss for loss in losses if loss is not None]
        mean = sum(known) / len(losses)
        means.append(mean if len(known) == len(losses) and math.isfinite(mean) else None)
    return means


def timing_of(raws: Mapping[int, RawRun], requested: int, cut: int, marks: Mapping[str, float]) -> Timing:
    """Combine the timings of all ranks into one. The step time is that of the slowest rank.

    The growth of memory is stored for the rank where it is largest, up or down. Raises ValidationError if the ranks'
    claims are inconsistent.
    """
    ranks = {str(rank): raw.steps for rank, raw in sorted(raws.items())}
    known_steps = [steps for steps in ranks.values() if steps is not None]
    memory = [steps.memory_bytes[cut:] for steps in known_steps]
    memory_slopes = [linear_regression(range(len(sizes)), sizes).slope if len(sizes) > 1 else 0.0 for sizes in memory]
    counts_by_rank = [raw.tokens_per_expert for raw in raws.values()]
    have_same_experts = len({len(counts) for counts in counts_by_rank}) == 1
    dropped_tokens = [raw.dropped_tokens for raw in raws.values()]
    cut = min(cut, requested)
    return Timing.model_validate(
        {
            "asked": requested,
            "cut": cut,
            "method": f"the first {cut} steps",
            "clock": raws[0].clock,
            "step_s": [max(seconds) for seconds in zip(*(steps.step_s for steps in known_steps), strict=False)],
            "ranks": ranks,  # None for a rank without step times is invalid
            "harness_s": marks.get(BEGUN),
            "harness_steady_s": marks.get(STEADY),
            "memory_peak_bytes": max((steps.peak_bytes for steps in known_steps), default=0),
            "memory_slope_bytes": max(memory_slopes, key=abs, default=0.0),
            "tokens_per_expert": list(map(sum, zip(*counts_by_rank, strict=True))) if have_same_experts else [],
            "dropped_tokens": None if None in dropped_tokens else sum(count or 0 for count in dropped_tokens),
            "skipped_steps": max(raw.skipped_steps for raw in raws.values()),
        }
    )


def ledger_of(ledgers: Sequence[Ledger]) -> Ledger:
    """Return the ledger of the first rank, with a digest of the entries of every other rank."""
    first, *others = ledgers
    return first.model_copy(update={"rank_digests": {str(ledger.rank): digest(ledger) for ledger in others}})


def digest(ledger: Ledger) -> str:
    """Return the SHA-256 of a ledger's entries, in any order and without their source lines."""
    entries = sorted(entry.model_dump_json() for entry in ledger.without_lines().entries)
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def backends_of(ranks: Sequence[Mapping[str, Backend]]) -> dict[str, Backend]:
    """Combine the backends that all ranks report. If ranks executed different ones, all of them are listed."""
    combined: dict[str, Backend] = {}
    for name, backend in sorted(ranks[0].items()):
        executed = sorted({backends[name].executed for backends in ranks if name in backends})
        if len(executed) > 1:
            evidence = clip_message(f"ranks differ: {', '.join(executed)}")
            backend = backend.model_copy(update={"executed": clip_label(" | ".join(executed)), "evidence": evidence})
        if all(name in backends for backends in ranks):
            combined[name] = backend
    return combined


def code_of(proofs: Sequence[CodeProof | None]) -> CodeProof | None:
    """Combine the ranks' proofs of the code that they ran. A file that is foreign on one rank counts as foreign.

    Return None if a rank has no proof, or if two ranks loaded different contents of one file.
    """
    merged = CodeProof(watched={}, foreign={}, files={})
    for proof in proofs:
        if proof is None or any(merged.files.get(name, found) != found for name, found in proof.files.items()):
            return None
        merged = CodeProof(
            watched={**proof.watched, **merged.watched},
            foreign={**proof.foreign, **merged.foreign},
            files={**proof.files, **merged.files},
        )
    return merged
