"""Sentences about the parts that a check did not measure, with the option that would measure them."""

from collections.abc import Sequence
from typing import Literal

from regbot.records.session import SessionHeader
from regbot.records.text.clip import clip
from regbot.records.verdict import Verdict, WorkloadVerdict
from regbot.report.markdown import Name, UntrustedText, Words

OTHER_OPERATORS = (
    "The collectives are the same, but the step of head runs other operators than that of base, such as another matrix "
    "product. Its speed may differ."
)
"""Sentence for a PASS that rests on the collectives alone."""

TIMING_ADVICE: dict[Literal["check", "demo"], Words] = {
    "check": (" ", Name("regbot check"), " without ", Name("--no-timing"), " measures it."),
    "demo": (" ", Name("regbot demo --timed"), " measures it."),
}
"""regbot command -> sentence with the option to leave out or to add, so that base and head are timed."""

MAX_NAMES = 4
MAX_REASONS = 4
REASON_CHARACTERS = 300


def list_unmeasured(verdict: Verdict, header: SessionHeader, *, has_other_operators: bool = False) -> list[Words]:
    """Return sentences about each part that was not measured: workloads without a changed file, throughput, and
    workloads that the options exclude.

    ``has_other_operators``: the collectives are the same in both arms, but the operators of a step differ.
    """
    parts: list[Words] = _describe_unconcerned(verdict)
    # An unconcerned workload was not run, because no changed file matches its paths.
    measured = [entry for entry in verdict.workloads if not entry.unconcerned]
    if measured and not any(entry.throughput for entry in measured):
        operators = (f" {OTHER_OPERATORS}",) if has_other_operators else ()
        parts.append((*_describe_untimed(measured, header), *operators))
    if header.left_out:
        parts.append(_describe_left_out(header))
    return parts


def _describe_untimed(measured: Sequence[WorkloadVerdict], header: SessionHeader) -> Words:
    """Return why nothing was timed.

    regbot times workloads of the adapter ``command``, and workloads whose traces it can compare. The option that turns
    timing on is named only if one of the workloads is of these two kinds.
    """
    sections = [entry.sharding for entry in measured if entry.sharding is not None]
    comparable = [section for section in sections if section.status != "INVALID"]
    has_command = any(entry.name in header.untraced for entry in measured)  # a command is timed and never traced
    if not comparable and not has_command:
        return ("Throughput: not measured, because no workload has usable traces of both base and head.",)
    if header.timing:  # timing was on, so there is no option to name
        return ("Throughput: not measured.",)
    # If the programs of a step are identical, the code may be identical too. Then there is nothing to time.
    if header.command == "check" and not has_command and all(section.identical_program for section in comparable):
        return (
            "Throughput: not measured. ",
            Name("regbot check"),
            " without ",
            Name("--no-timing"),
            " measures it, unless code, packages and configuration are the same.",
        )
    return ("Throughput: not measured.", *TIMING_ADVICE[header.command])


def _describe_unconcerned(verdict: Verdict) -> list[Words]:
    """Return sentences about the unconcerned workloads, which were not run because no changed file matches their paths.

    Workloads with the same reason share a sentence. For some of them, stored runs prove that the change cannot affect
    them.
    """
    groups: dict[tuple[bool, str], list[str]] = {}  # whether proven, and the reason -> names of workloads
    for entry in verdict.workloads:
        if entry.unconcerned:
            proven = entry.validity.status == "PASS"
            groups.setdefault((proven, "; ".join(entry.validity.reasons)), []).append(entry.name)
    parts: list[Words] = [
        (
            "Not measured: ",
            *_list_names(names),
            ". ",
            _explain_unconcerned(len(names), proven),
            UntrustedText(clip(reason, REASON_CHARACTERS)),
            ".",
        )
        for (proven, reason), names in list(groups.items())[:MAX_REASONS]
    ]
    rest = sum(len(names) for names in list(groups.values())[MAX_REASONS:])
    return [*parts, *([(f"Not measured for other reasons: {rest} more workloads.",)] if rest else [])]


def _explain_unconcerned(workloads: int, proven: bool) -> str:
    """Return why this number of workloads was not measured. The text ends with "because", and the reason follows."""
    these, them = ("this workload", "it") if workloads == 1 else ("these workloads", "them")
    effect = (
        f"proven that the change cannot affect {them}" if proven else f"not known whether the change affects {them}"
    )
    return f"No changed file matches the paths of {these}. It is {effect}, because "


def _describe_left_out(header: SessionHeader) -> Words:
    """Return a sentence about the entries that the options exclude.

    If nothing was measured on the meshes of these entries, the sentence names the meshes. Otherwise it names the
    entries.
    """
    measured, missing = _list_meshes(header.workloads), _list_meshes(header.left_out)
    if not set(measured) & set(missing):
        connector: Words = ("; ", Name("--timed"), " also traces ") if header.command == "demo" else ("; left out: ",)
        return (
            "Sharding: traced only on ",
            "the mesh " if len(measured) == 1 else "the meshes ",
            *_list_names(measured),
            *connector,
            *_list_names(missing),
            ".",
        )
    total = len(header.workloads) + len(header.left_out)
    return (f"Checked: {len(header.workloads)} of {total} workloads; left out: ", *_list_names(header.left_out), ".")


def _list_meshes(entries: Sequence[str]) -> list[str]:
    """Return the meshes in the names of ``entries`` (``[label:]shape/mesh``), without duplicates."""
    return list(dict.fromkeys(entry.rpartition("/")[2] for entry in entries))


def _list_names(names: Sequence[str]) -> Words:
    """Return a list of names: ``a``, ``b`` and 3 more."""
    words: list[str] = []
    for name in names[:MAX_NAMES]:
        words += [", ", Name(name)]
    more = (f" and {len(names) - MAX_NAMES} more",) if len(names) > MAX_NAMES else ()
    return (*words[1:], *more)  # words[0] is the separator before the first name
