"""What changed, told once for all workloads that share it, and what a reader can do next."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from regbot.ledgers import catalogue
from regbot.records.verdict import Finding
from regbot.report.markdown import Name, Said, Words, visible
from regbot.report.state import Check, State

SHORT = 12
"""Hexadecimal digits of a short commit: enough for repositories of any size seen so far."""

RULES_SHOWN = 4
COMMAND_CHARACTERS = 160


@dataclass(frozen=True)
class Step:
    """One thing to do next, and the command that does it."""

    words: Words
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class SharedFinding:
    """One finding with every workload that has it."""

    finding: Finding
    workloads: tuple[str, ...]
    modules: tuple[str, ...]
    text: Words


def findings(check: Check) -> list[SharedFinding]:
    """Every finding once, the gravest first, with the workloads that have it."""
    groups: dict[tuple[str, str, str, str], list[tuple[str, Finding]]] = {}
    for entry in check.entries:
        for finding in entry.findings:
            key = (finding.status, finding.pattern, finding.axis, finding.accepted or "")
            groups.setdefault(key, []).append((entry.name, finding))
    gravity = {"FAIL": 0, "INVALID": 1, "REVIEW": 2, "INCONCLUSIVE": 3, "PASS": 4}
    return [
        SharedFinding(
            finding=group[0][1],
            workloads=_once(name for name, _ in group),
            modules=_once(module for _, finding in group for module in finding.modules),
            text=_text(group),
        )
        for _, group in sorted(groups.items(), key=lambda item: gravity[item[0][0]])
    ]


def _text(group: list[tuple[str, Finding]]) -> Words:
    """The explanation; where it has other numbers in other workloads, that of the first, and whose it is."""
    workload, finding = group[0]
    if len({other.text for _, other in group}) == 1:
        return (Said(finding.text),)
    return ("For example ", Name(workload), ": ", Said(finding.text))


def _once(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


_HINTS = {
    catalogue.MAPPED_TWICE: "find what maps the expert axis a second time: a dispatcher that is no longer chosen, a "
    "placement or sharding rule that names the axis for both tokens and experts",
    catalogue.AXIS_LOST: "find which placement or mesh no longer names the expert axis, so that experts are replicated",
    catalogue.AXIS_GAINED: "find which placement or mesh now names the expert axis",
    catalogue.DISPATCHER_OFF: "find why the dispatcher that was asked for is not the one that ran: an import that "
    "fails, a capability check, a default that changed",
    catalogue.RECOMPUTES: "find which checkpoint policy now recomputes the dispatch, and save its output instead",
    catalogue.RESHARDS: "find where parameters are now freed after forward (reshard_after_forward)",
    catalogue.KEEPS_GATHERED: "find where parameters are no longer freed after forward, and check peak memory",
    catalogue.GRADIENT_LOST: "find which parameters left the reduction group: they now train on fewer ranks' gradients",
    catalogue.WIDENED: "find the cast that is missing before the exchange",
    catalogue.COUNTS_ADDED: "find the token counts that are exchanged again instead of being reused",
}
"""Where to look first, by the pattern's name."""


def next_steps(check: Check) -> list[Step]:
    """What a reader can do now, most useful first. A PASS without findings needs nothing."""
    if check.state in (State.SHARDING_FAIL, State.REVIEW):
        return [*_look(check), _reproduce(check), *_declare(check)]
    if check.state in (State.HEAD_FAILS, State.THROUGHPUT_FAIL, State.INCONCLUSIVE):
        return [*_read_log(check), _reproduce(check)] if check.state is State.HEAD_FAILS else [_reproduce(check)]
    if check.state is State.FOREIGN_CODE:
        return [
            Step(
                (
                    "Make the package importable from the checkout: name its folder in ",
                    Name("source_roots"),
                    " of regbot.toml, or build it in the checkout, and remove the installed copy that shadows it.",
                )
            ),
            _reproduce(check),
        ]
    if check.state is State.BOTH_FAIL:
        return [
            Step(
                ("Read the end of the logs below. The base fails too, so look first at the base and at this machine.",)
            ),
            _reproduce(check),
        ]
    if check.state in (State.NO_RECORD, State.UNMEASURED):
        return [*_read_log(check), _reproduce(check)]
    return []


def _look(check: Check) -> list[Step]:
    steps = []
    for item in findings(check):
        if item.finding.status not in ("FAIL", "REVIEW"):
            continue
        where = Name(item.modules[0]) if item.modules else Name(f"axis {item.finding.axis}")
        hint = _HINTS.get(item.finding.pattern, "find what changed how its tensors are placed or exchanged")
        steps.append(Step(("Look at ", where, f" in this diff: {hint}.")))
    return steps[:2]


def _read_log(check: Check) -> list[Step]:
    runs = [run for entry in (*check.of("FAIL"), *check.of("INVALID")) for run in (entry.head, entry.base) if run]
    logged = any(run.outcome != "ok" and run.log_tail for run in runs)
    return [Step(("Read the end of the log, folded below.",))] if logged else []


def _reproduce(check: Check) -> Step:
    worst = next((entry for entry in check.entries if entry.status == check.verdict.verdict), None)
    return Step(("Reproduce it on your machine, no GPU needed:",), (command(check, worst.name if worst else None),))


def _declare(check: Check) -> list[Step]:
    rules = [
        f"{item.finding.pattern}@{item.finding.axis}@{name}: why this is meant"
        for item in findings(check)
        if item.finding.status in ("FAIL", "REVIEW")
        for name in (item.workloads if len(item.workloads) < len(check.entries) else ("*",))
    ]
    rules = [rule for rule in rules if _typable(rule)]
    shown = tuple(f"--expect {_quoted(rule)}" for rule in rules[:RULES_SHOWN])
    more = f" ({len(rules) - RULES_SHOWN} more rules of this form)" if len(rules) > RULES_SHOWN else ""
    return [Step((f"Or, if it is meant, declare it{more}; it is then shown as accepted:",), shown)] if shown else []


def command(check: Check, workload: str | None) -> str:
    """The command that repeats this check, for a shell."""
    parts = [
        "regbot check",
        f"--base {check.verdict.base.commit[:SHORT]}",
        f"--head {check.verdict.head.commit[:SHORT]}",
    ]
    for arm in (check.verdict.base, check.verdict.head):
        settings = [f"{key}={value}" for key, value in arm.overrides.items()]
        parts += [f"--{arm.name}-set {shlex.quote(setting)}" for setting in settings if _typable(setting)]
    if workload is not None and _typable(workload):
        parts.append(f"--workload {shlex.quote(workload)}")
    return " ".join(parts)


def _typable(word: str) -> bool:
    """Whether a person could type it: a command must not be cut, nor hold what cannot be seen."""
    return visible(word, COMMAND_CHARACTERS) == word


def _quoted(rule: str) -> str:
    """In double quotes where that is safe, which reads better and lets the reason be edited in place."""
    return f'"{rule}"' if not set(rule) & set('"$`\\!\n') else shlex.quote(rule)
