"""What changed, told once for all workloads that share it, and what a reader can do next."""

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from regbot.records.verdict import Finding, Throughput
from regbot.report.hints import HINTS
from regbot.report.markdown import Name, Said, Words, visible
from regbot.report.quantities import at_most, size
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


def next_steps(check: Check) -> list[Step]:
    """What a reader can do now, most useful first. A PASS without findings needs nothing."""
    return _STEPS[check.state](check) if check.state in _STEPS else []


def _sharding_changed(check: Check) -> list[Step]:
    return [*_look(check), _reproduce(check), *_declare(check)]


def _both_fail(check: Check) -> list[Step]:
    """The sharding first: it is exact, and a change of it usually explains the time."""
    return [*_look(check), _reproduce(check), *_time_again(check), *_declare(check)]


def _slower(check: Check) -> list[Step]:
    """The times first; what else waits for a person is not lost behind them."""
    return [_look_at_times(), *_look_at_losses(check), *_look(check), *_time_again(check), *_declare(check)]


def _undecided(check: Check) -> list[Step]:
    if any(_unfinished(entry.throughput) for entry in check.decisive if entry.throughput):
        words = "Pairs are left to run. Go on where it ended with --resume, or give it more minutes with --budget:"
        return [Step((words,), (_timed_command(check),))]
    return [_quieter(check), *_time_again(check)]


def _unfinished(section: Throughput) -> bool:
    """Whether a full session would have more pairs than this one had."""
    here, full = section.mde_pct, section.mde_full_pct
    return here is None or full is None or full < here


def _trains_differently(check: Check) -> list[Step]:
    return [*_look_at_losses(check), *_look(check), _reproduce(check, timed=True), *_declare(check)]


def _broken(check: Check) -> list[Step]:
    return [*_read_log(check), _reproduce(check, timed=_breaks_when_timed(check))]


def _neither_runs(check: Check) -> list[Step]:
    words = "Read the end of the logs below. The base fails too, so look first at the base and at this machine."
    return [Step((words,)), _reproduce(check, timed=_breaks_when_timed(check))]


def _base_breaks(check: Check) -> list[Step]:
    """Most often the pull request that brings regbot in: what it adds, its base cannot have."""
    words: Words = (
        "There is nothing to compare with until the base can be measured. If this pull request adds ",
        Name("regbot.toml"),
        " or the code that it names, commit both to the main branch first, then open pull requests. Otherwise mend ",
        "the base.",
    )
    return [Step(words), *_read_log(check), _reproduce(check, timed=_breaks_when_timed(check))]


def _foreign_code(check: Check) -> list[Step]:
    words: Words = (
        "Make the package importable from the checkout: name its folder in ",
        Name("source_roots"),
        " of regbot.toml, or build it in the checkout, and remove the installed copy that shadows it.",
    )
    return [Step(words), _reproduce(check)]


def _environment(check: Check) -> list[Step]:
    words = "Install the dispatcher that was asked for on this machine, or time on a node that has it: "
    said = Step((words, Name("regbot doctor"), " says what is missing."))
    return [said, *_time_again(check, "Time it where the dispatcher is:")]


def _untimed(check: Check) -> list[Step]:
    return [*_read_log(check), *_time_again(check, "Time it again:")]


_STEPS: dict[State, Callable[[Check], list[Step]]] = {
    State.SHARDING_FAIL: _sharding_changed,
    State.BOTH_FAIL: _both_fail,
    State.THROUGHPUT_FAIL: _slower,
    State.HEAD_BREAKS: _broken,
    State.NEITHER_RUNS: _neither_runs,
    State.BASE_BREAKS: _base_breaks,
    State.FOREIGN_CODE: _foreign_code,
    State.NO_RECORD: _broken,
    State.ENVIRONMENT: _environment,
    State.UNTIMED: _untimed,
    State.UNMEASURED: _broken,
    State.TRAINS_DIFFERENTLY: _trains_differently,
    State.REVIEW: _sharding_changed,
    State.INCONCLUSIVE: _undecided,
}


def _look(check: Check) -> list[Step]:
    steps = []
    for item in findings(check):
        if item.finding.status not in ("FAIL", "REVIEW"):
            continue
        where = Name(item.modules[0]) if item.modules else Name(f"axis {item.finding.axis}")
        hint = HINTS.get(item.finding.pattern, "find what changed how its tensors are placed or exchanged")
        steps.append(Step(("Look at ", where, f" in this diff: {hint}.")))
    return list(dict.fromkeys(steps))[:2]


def _look_at_times() -> Step:
    """Where in the report the wall that the step hit can be seen."""
    where = "every run, the ratio of every pair and each rank's time are drawn there"
    return Step((f"Look at the step times in the report ({where}): what differs tells what the step now waits for.",))


def _look_at_losses(check: Check) -> list[Step]:
    if all(entry.verdict.validity.status != "REVIEW" for entry in check.entries):
        return []
    words = "Compare the losses in the report, step by step, and ask whether the change is meant to train so."
    return [Step((words,))]


def _quieter(check: Check) -> Step:
    """What it would take to decide. The verdict knows what this node can show, so that nobody tries in vain."""
    threshold = check.session.header.throughput.threshold_pct
    full = [entry.throughput.mde_full_pct for entry in check.decisive if entry.throughput]
    known = [pct for pct in full if pct is not None]
    if known and max(known) > threshold:
        words = f"This machine is too noisy for {size(threshold)}: even all pairs of a full session can show only"
        return Step((f"{words} {at_most(max(known))} or more. Time it on a quieter node, with nothing else running.",))
    return Step(("The change lies too near to the threshold for these pairs. See the report for what they show.",))


def _read_log(check: Check) -> list[Step]:
    runs = [run for entry in (*check.of("FAIL"), *check.of("INVALID")) for run in entry.failed]
    return [Step(("Read the end of the log, folded below.",))] if any(run.log_tail for run in runs) else []


def _breaks_when_timed(check: Check) -> bool:
    """Whether what broke did so only in timed runs, so that a trace alone would not show it."""
    failed = [run for entry in check.decisive for run in entry.failed]
    return bool(failed) and all(run.tier == "timed" for run in failed)


def _reproduce(check: Check, timed: bool = False) -> Step:
    """The same check of the worst workload. What a trace shows needs no timed runs, and is over in minutes."""
    worst = next(iter(check.decisive), None)
    if timed:
        return Step(("Reproduce it:",), (command(check, worst.name if worst else None),))
    told = command(check, worst.name if worst else None, ("--no-timing",))
    where: Words = ("on your machine",)
    if check.session.header.command == "demo":
        where = ("in the demo's ", Name("repository"), " folder")
    return Step(("Reproduce it ", *where, ", no GPU needed:"), (told,))


def _time_again(check: Check, words: str = "Time it again, on a quiet node of the same kind:") -> list[Step]:
    """The timed half again, on the same kind of node: times are not compared across node classes."""
    budget = check.session.header.budget_min
    return [Step((words,), (_timed_command(check, (f"--budget {budget:g}",) if budget is not None else ()),))]


def _timed_command(check: Check, flags: Sequence[str] = ()) -> str:
    worst = check.slower if check.state is State.BOTH_FAIL else check.decisive
    return command(check, worst[0].name if worst else None, flags)


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


def command(check: Check, workload: str | None, flags: Sequence[str] = ()) -> str:
    """The command that repeats this check, for a shell: its arms, what was declared, and ``flags`` as they are."""
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
    declared = [rule for rule in check.session.header.expectations if _typable(rule)]
    parts += [f"--expect {_quoted(rule)}" for rule in declared[:RULES_SHOWN]]
    return " ".join([*parts, *flags])


def _typable(word: str) -> bool:
    """Whether a person could type it: a command must not be cut, nor hold what cannot be seen."""
    return visible(word, COMMAND_CHARACTERS) == word


def _quoted(rule: str) -> str:
    """In double quotes where that is safe, which reads better and lets the reason be edited in place."""
    return f'"{rule}"' if not set(rule) & set('"$`\\!\n') else shlex.quote(rule)
