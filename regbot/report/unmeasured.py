"""What a check did not measure, and the option that measures it."""

from collections.abc import Sequence
from typing import Literal

from regbot.records.session import SessionHeader
from regbot.records.verdict import Verdict
from regbot.report.markdown import Name, Words

TIMING_ADVICE: dict[Literal["check", "demo"], Words] = {
    "check": (" Leave out ", Name("--no-timing"), " to measure it."),
    "demo": (" Add ", Name("--timed"), " to measure it."),
}
"""By command: how to have base and head timed too."""

NAMES_SHOWN = 4


def unmeasured(verdict: Verdict, header: SessionHeader) -> list[Words]:
    """Return one sentence or two for each part that is missing: throughput, and workloads of the configuration."""
    parts: list[Words] = []
    if not any(entry.throughput for entry in verdict.workloads):
        excluded = not header.timing and verdict.verdict != "INVALID"  # what cannot be traced is not timed either
        parts.append(("Throughput: not measured.", *(TIMING_ADVICE[header.command] if excluded else ())))
    if header.left_out:
        parts.append(_left_out(header))
    return parts


def _left_out(header: SessionHeader) -> Words:
    """Name whole meshes where no shape was measured on them, else every entry."""
    measured, missing = _meshes(header.workloads), _meshes(header.left_out)
    if not set(measured) & set(missing):
        total = len(measured) + len(missing)
        rest: Words = ("; ", Name("--timed"), " adds ") if header.command == "demo" else ("; left out: ",)
        return (
            f"Sharding: traced on {len(measured)} of {total} meshes, ",
            *_names(measured),
            *rest,
            *_names(missing),
            ".",
        )
    total = len(header.workloads) + len(header.left_out)
    return (f"Measured: {len(header.workloads)} of {total} workloads; left out: ", *_names(header.left_out), ".")


def _meshes(entries: Sequence[str]) -> list[str]:
    """The meshes in the names of ``entries`` (``[label:]shape/mesh``), each once."""
    return list(dict.fromkeys(entry.rpartition("/")[2] for entry in entries))


def _names(names: Sequence[str]) -> Words:
    """``a``, ``b`` and 3 more."""
    words: list[str] = []
    for name in names[:NAMES_SHOWN]:
        words += [", ", Name(name)]
    more = (f" and {len(names) - NAMES_SHOWN} more",) if len(names) > NAMES_SHOWN else ()
    return (*words[1:], *more)
