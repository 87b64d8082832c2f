"""The verdict on files of step times, with one workload, ``files``: did throughput change?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from regbot.check.compare.faults import faults, find_omissions, find_other_work, warnings
from regbot.check.compare.launches import Order, find_order
from regbot.check.compare.run_files import StepFile, read_steps
from regbot.check.compare.sections import paired_section, unpaired_section, withhold_pass
from regbot.check.compare.steady_cut import align_steps, describe_left_out
from regbot.records.config import ConfigError
from regbot.records.run import Arm
from regbot.records.text.clip import clip, clip_message
from regbot.records.text.printable import printable
from regbot.records.verdict import Throughput, Validity, Verdict, WorkloadVerdict, compute_overall_status

WORKLOAD = "files"
"""Name of the one workload in the verdict."""

NO_COMMIT = "0" * 40
"""Stands for the commit and the tree of an arm, because files have neither."""

MAX_OMISSIONS = 4
"""Maximum number of omissions that the verdict names."""


@dataclass(frozen=True)
class ComparisonOptions:
    """Inputs of ``regbot compare``. The files of an arm are in the order in which they ran."""

    base: Sequence[Path]
    head: Sequence[Path]
    paired: bool = False
    order: Order = "unknown"
    """Order of the runs in pairs, if no start times show it."""
    noise_pct: float | None = None
    """Standard deviation of the log-ratio of one pair, times 100, as the user gave it; None if not given."""
    skip: int | None = None
    """Number of leading steps to leave out; None for the steps before the steady state."""
    tokens_per_step: float | None = None
    """Tokens of one step on one rank, for logs of torchtitan."""


def compare(options: ComparisonOptions) -> Verdict:
    """Raises ConfigError for wrong options, RecordError for an unreadable file."""
    _check_options(options)
    base, head = (
        [read_steps(path, options.skip, options.tokens_per_step) for path in paths]
        for paths in (options.base, options.head)
    )
    all_faults = list(faults(base, head, options.paired))
    section_warnings: list[str] = []
    if all_faults:
        section = Throughput(status="INVALID", reasons=["the files cannot be compared"])
    else:
        base, head = align_steps(base, head, options.paired)
        section, section_warnings = _throughput_section(base, head, options)
    reasons = [clip_message(printable(fault)) for fault in all_faults]
    validity = Validity(status="INVALID" if all_faults else "PASS", reasons=reasons)
    # Files of step times have no ledger.
    entry = WorkloadVerdict(name=WORKLOAD, sharding=None, throughput=section, validity=validity)
    return Verdict(
        verdict=compute_overall_status([entry]),
        base=_arm("base", options.base),
        head=_arm("head", options.head),
        workloads=[entry],
        warnings=[clip_message(printable(warning)) for warning in (*warnings(base, head), *section_warnings)],
    )


def _throughput_section(
    base: Sequence[StepFile], head: Sequence[StepFile], options: ComparisonOptions
) -> tuple[Throughput, list[str]]:
    given_sd = None if options.noise_pct is None else options.noise_pct / 100
    if options.paired:
        order = find_order(base, head, options.order)
        section, section_warnings = paired_section(base, head, given_sd, order)
        used = [*base[: section.pairs], *head[: section.pairs]]  # later pairs were not needed for the decision
    else:
        section, section_warnings = unpaired_section(base, head, given_sd)
        used = [*base, *head]
    omissions = [f"{file.name} {omission}" for file in used for omission in find_omissions(file)]
    omissions += find_other_work(base, head)
    if section.status == "PASS" and omissions:
        section = withhold_pass(section, omissions[:MAX_OMISSIONS])
    return section.model_copy(update={"reasons": [*section.reasons, describe_left_out(used)]}), section_warnings


def _check_options(options: ComparisonOptions) -> None:
    if options.paired and len(options.base) != len(options.head):
        raise ConfigError(
            f"--paired pairs the i-th base file with the i-th head file, but there are {len(options.base)} base and "
            f"{len(options.head)} head files",
            "give the same number of each, or leave out --paired",
        )
    paths = [path.resolve() for path in (*options.base, *options.head)]
    for path in paths:
        if paths.count(path) > 1:
            advice = "one file is one run, and each run counts once"
            raise ConfigError(f"{printable(str(path))}: is given twice", advice)


def _arm(name: Literal["base", "head"], paths: Sequence[Path]) -> Arm:
    revision = clip(", ".join(printable(str(path)) for path in paths), 500)
    return Arm(name=name, revision=revision, commit=NO_COMMIT, tree=NO_COMMIT)
