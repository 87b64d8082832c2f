"""Files of step times -> a verdict with one workload, ``files``: did throughput change?

Paired files are judged by the test that judges a check's own sessions. Unpaired files get Welch's interval at the same
error, or the normal one where the noise is given; what nodes and sessions add to all runs of an arm is in it, and the
verdict says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Literal

from regbot.compare.answer import withheld
from regbot.compare.cut import left_out, same_steps
from regbot.compare.paired import paired_section
from regbot.compare.read import StepFile, read_steps
from regbot.compare.trust import faults, warnings
from regbot.compare.unpaired import unpaired_section
from regbot.compare.whole import lacks
from regbot.config import ConfigError
from regbot.records.run import Arm
from regbot.records.verdict import Throughput, Validity, Verdict, WorkloadVerdict, overall
from regbot.text import printable

WORKLOAD = "files"

MOST_LACKS = 4
"""Files that do not tell of a whole run, named one by one."""


@dataclass(frozen=True)
class Comparison:
    """What ``regbot compare`` was given. Files of an arm are in session order."""

    base: Sequence[Path]
    head: Sequence[Path]
    paired: bool = False
    noise_pct: float | None = None
    """Known standard deviation of the log-ratio of one pair, in percent of a log unit."""
    skip: int | None = None
    """Leading steps to leave out; None for those before the steady state."""
    tokens_per_step: float | None = None
    """Of one step on one rank, for logs of torchtitan."""


def compare(asked: Comparison) -> Verdict:
    """The verdict. Raises ConfigError for what was asked, RecordError for a file that cannot be read."""
    _check(asked)
    base, head = (
        [read_steps(path, asked.skip, asked.tokens_per_step) for path in paths] for paths in (asked.base, asked.head)
    )
    if asked.tokens_per_step is not None and not any(f.log and f.log.format == "torchtitan" for f in (*base, *head)):
        raise ConfigError("--tokens-per-step is for step lines of torchtitan, and no file has them; leave it out")
    found = list(faults(base, head, asked.paired))
    remarks: list[str] = []
    if found:
        section = Throughput(status="INVALID", reasons=["the files cannot be compared"])
    else:
        base, head = same_steps(base, head, asked.paired)
        section, remarks = _section(base, head, asked)
    entry = WorkloadVerdict(
        name=WORKLOAD,
        sharding=None,
        throughput=section,
        validity=Validity(status="INVALID" if found else "PASS", reasons=[printable(fault)[:4000] for fault in found]),
    )
    return Verdict(
        verdict=overall([entry]),
        base=_arm("base", asked.base),
        head=_arm("head", asked.head),
        workloads=[entry],
        warnings=[printable(warning)[:4000] for warning in (*warnings(base, head), *remarks)],
    )


def _section(base: Sequence[StepFile], head: Sequence[StepFile], asked: Comparison) -> tuple[Throughput, list[str]]:
    """The throughput section of files that can be compared, and warnings."""
    known_sd = None if asked.noise_pct is None else asked.noise_pct / 100
    section, remarks = (paired_section if asked.paired else unpaired_section)(base, head, known_sd)
    used = [*base[: section.pairs], *head[: section.pairs]] if asked.paired else [*base, *head]
    lacking = [f"{file.name} {what}" for file in used for what in lacks(file)]
    if section.status == "PASS" and lacking:
        section = withheld(section, lacking[:MOST_LACKS])
    return section.model_copy(update={"reasons": [*section.reasons, left_out(used)]}), remarks


def _check(asked: Comparison) -> None:
    if not asked.base or not asked.head:
        raise ConfigError("both arms need a file: --base FILE... --head FILE...")
    if asked.paired and len(asked.base) != len(asked.head):
        raise ConfigError(
            f"--paired pairs the i-th base file with the i-th head file, and there are {len(asked.base)} base and "
            f"{len(asked.head)} head files; give as many of each, or leave --paired out"
        )
    if asked.noise_pct is not None and not (isfinite(asked.noise_pct) and asked.noise_pct > 0):
        raise ConfigError(f"--noise {asked.noise_pct:g}: it is a standard deviation in percent, above 0")
    if asked.skip is not None and asked.skip < 0:
        raise ConfigError(f"--skip {asked.skip}: steps to leave out cannot be fewer than 0")
    if asked.tokens_per_step is not None and not (isfinite(asked.tokens_per_step) and asked.tokens_per_step > 0):
        raise ConfigError(f"--tokens-per-step {asked.tokens_per_step:g}: a step has some tokens; give a number above 0")
    seen: dict[Path, Path] = {}
    for path in (*asked.base, *asked.head):
        place = path.resolve()
        if place in seen:
            also = f" (also as {printable(str(seen[place]))})" if seen[place] != path else ""
            raise ConfigError(
                f"{printable(str(path))}: is given twice{also}; one file is one run, and a run counts once"
            )
        seen[place] = path


def _arm(name: Literal["base", "head"], paths: Sequence[Path]) -> Arm:
    """No commit stands behind files: the revision is their names."""
    names = ", ".join(printable(str(path)) for path in paths)
    shown = names if len(names) <= 500 else f"{names[:460]} ... ({len(paths)} files)"
    return Arm(name=name, revision=shown, commit="0" * 40, tree="0" * 40)
