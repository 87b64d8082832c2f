"""The findings, each with all its workloads, and the next steps for the reader of a report.

Every state of a check (``state.py``) has its own steps, the most useful first. "Maintainer:" begins a step that the
author of the change cannot take. ``check.decisive`` are the workloads that cause the state.
"""

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from regbot.records.text.clip import short_commit
from regbot.records.text.percentages import round_up_percent
from regbot.records.verdict import GRAVITY, Finding, Throughput, WorkloadVerdict
from regbot.report.hints import HINTS
from regbot.report.markdown import Name, UntrustedText, Words, visible
from regbot.report.notes import list_names
from regbot.report.quantities import size
from regbot.report.source_lines import find_first_in_diff, name_place
from regbot.report.state import Check, State
from regbot.report.throughput import is_gate_contradicted
from regbot.stats.arm_luck import MIN_ALLOCATIONS

MAX_FINDING_STEPS = 2
"""Largest number of steps that each point to one finding. The findings themselves are listed above the steps."""
MAX_RULES = 4
"""Largest number of ``--expect`` rules in a command or a step."""
MAX_WORKLOADS = 4
"""A command names at most this many workloads. A command for more workloads names none and checks all."""
COMMAND_CHARACTERS = 160
"""Largest length of a value in a command. Longer values are left out of the command."""

REPORT = Name("report.html")
_RETIME = "Repeat the timing on a quiet node of the same class:"
_UNSAFE_IN_DOUBLE_QUOTES = set('"$`\\!\n')
"""Characters with a meaning for a shell even within double quotes."""


@dataclass(frozen=True)
class NextStep:
    """One step that the reader can take, with its commands."""

    words: Words
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class SharedFinding:
    """One finding with every workload that has the same finding."""

    finding: Finding
    """The finding of the first of these workloads."""
    workloads: tuple[str, ...]
    modules: tuple[str, ...]
    """Modules of the finding in any of the workloads."""
    text: Words
    """Explanation of the finding. If the workloads differ in it, it is that of the first one, as an example."""


def share_findings(workloads: Iterable[WorkloadVerdict]) -> list[SharedFinding]:
    """Return the findings of all workloads, the gravest first. Findings with the same status, pattern, axis and
    declared reason are merged."""
    groups: dict[tuple[str, ...], list[tuple[str, Finding]]] = {}  # values: workload names and findings
    for entry in workloads:
        for finding in entry.findings:
            key = (finding.status, finding.pattern, finding.axis, finding.accepted or "")
            groups.setdefault(key, []).append((entry.name, finding))
    shared = []
    for group in groups.values():
        workload, first = group[0]
        is_same = all(finding.text == first.text for _, finding in group)
        shared.append(
            SharedFinding(
                finding=first,
                workloads=tuple(dict.fromkeys(name for name, _ in group)),
                modules=tuple(dict.fromkeys(module for _, finding in group for module in finding.modules)),
                text=(*(() if is_same else ("For example ", Name(workload), ": ")), UntrustedText(first.text)),
            )
        )
    return sorted(shared, key=lambda item: GRAVITY.index(item.finding.status))


def advise_next_steps(check: Check) -> list[NextStep]:
    """Return the next steps for the reader, the most useful first; [] for a state without steps, such as a PASS."""
    only_unmeasured_workloads_are_open = check.state is State.UNCONCERNED or check.is_passing_but_unproven
    if check.verdict.verdict == "INCONCLUSIVE" and only_unmeasured_workloads_are_open:
        return [
            NextStep(
                (
                    "No action is needed: by default this verdict blocks nothing. Maintainer: ",
                    Name("regbot baseline refresh"),
                    " on main stores which files the base loads. With that, such a change can be a PASS.",
                )
            )
        ]
    return _STEPS[check.state](check) if check.state in _STEPS else []


def _advise_on_sharding(check: Check) -> list[NextStep]:
    """If throughput fails too, the steps are still about sharding, because sharding is measured exactly and usually
    explains the change in step time."""
    return [*_list_finding_steps(check), _build_reproduction_step(check), *_list_declaration_steps(check)]


def _advise_on_slowdown(check: Check) -> list[NextStep]:
    ratios = "" if _is_stored_comparison(check) else ", the ratio of every pair"
    where = f" to see where a step now spends more time. It shows every run{ratios} and the time of every rank."
    return [
        NextStep(("Look at the step times in ", REPORT, where)),
        *_list_loss_steps(check),
        *_list_finding_steps(check),
        _build_retiming_step(check),
        *_list_declaration_steps(check),
    ]


def _advise_on_undecided_times(check: Check) -> list[NextStep]:
    """Return the step for the first cause that applies. A cause that makes further pairs useless comes first."""
    sections = [entry.throughput for entry in check.decisive if entry.throughput]
    if any(map(is_gate_contradicted, sections)):  # calibration shows that the gate errs too often on this node class
        text = (
            "It is not known whether head is slower, and more pairs on this node class decide nothing. Maintainer: "
            "find out what disturbs its nodes, and run 'regbot calibrate' again. Or use a node of another class:"
        )
        return [NextStep((text,), (_build_timed_command(check),))]
    if _is_stored_comparison(check):
        return [_build_retiming_step(check)]
    if any(map(_is_unfinished, sections)):
        text = (
            "The session ended too early to decide. Continue it with the same 'regbot check' command and --resume. "
            "Or start a new session with more minutes:"
        )
        return [NextStep((text,), (_build_timed_command(check, ("--budget MINUTES",)),))]
    if any(section.pass_withheld for section in sections):  # head has more slow launches than base
        end = " has their steps and the health of the node. If you repeat the timing, its pairs are added to these:"
        return [_build_retiming_step(check, ("Find out why these runs of head were slow. ", REPORT, end))]
    if any(section.decision_without_luck for section in sections):  # no calibration has measured the luck of an arm
        text = (
            f"Maintainer: run 'regbot calibrate' on {MIN_ALLOCATIONS} days or nodes of this class, and commit the "
            "stored files (baselines/) to main. Or repeat the check. It recompiles, and adds its pairs to these:"
        )
        return [_build_retiming_step(check, (text,))]
    threshold = check.session.header.throughput.threshold_pct
    worst_mde = max((section.mde_full_pct or 0.0 for section in sections), default=0.0)
    if worst_mde > threshold:  # even a full session cannot detect a slowdown of the threshold
        text = (
            f"This machine is too noisy to detect a slowdown of {size(threshold)}. Even a full session can only detect "
            f"{round_up_percent(worst_mde)} or more. Repeat the timing on a quieter node of the same class, with "
            "nothing else running:"
        )
        return [_build_retiming_step(check, (text,))]
    start = "The change is too close to the threshold for these pairs. "
    return [_build_retiming_step(check, (start, REPORT, f" shows every pair. {_RETIME}"))]


def _is_unfinished(section: Throughput) -> bool:
    """Return whether the session has fewer pairs than a full session, which would detect a smaller slowdown. If the
    smallest detectable slowdown of either is unknown, the session counts as unfinished."""
    session_mde, full_mde = section.mde_pct, section.mde_full_pct
    return session_mde is None or full_mde is None or full_mde < session_mde


def _advise_on_training(check: Check) -> list[NextStep]:
    """Only timed runs show that head trains differently, so the reproduction is timed too."""
    return [
        *_list_loss_steps(check),
        *_list_finding_steps(check),
        _build_reproduction_step(check, timed=True),
        *_list_declaration_steps(check),
    ]


def _advise_on_failed_runs(check: Check) -> list[NextStep]:
    """Return a hint on the cause where the log rarely shows it, then the log and how to reproduce the failure."""
    hint: Words = _HINTS_BY_STATE.get(check.state, ())
    if check.state is State.DOUBTFUL_CRASH and check.is_unsupported:
        hint = ("Maintainer: update regbot. If its newest version fails too, report the reason above.",)
    elif any(run.outcome == "short" for entry in check.decisive for run in entry.failed):
        causes = "the number of steps, the amount of data, an exit without an error"
        hint = (f"Look for what ends the training loop early: {causes}.",)
    reproduction = _build_reproduction_step(check, timed=check.only_breaks_when_timed)
    return [*([NextStep(hint)] if hint else []), *_list_log_steps(check), reproduction]


_HINTS_BY_STATE: dict[State, Words] = {
    State.NEITHER_RUNS: ("Maintainer: the base fails too, so look first at the base and at this machine.",),
    State.BASE_BREAKS: (
        "If this pull request adds ",
        Name("regbot.toml"),
        " or the code that it names, add both to the main branch first, in a pull request of their own. ",
        "Otherwise fix the reason above on the main branch.",
    ),
    State.FOREIGN_CODE: (
        "Maintainer: remove the installed copy of the package. If the package is then not found, add its folder in ",
        "the checkout to ",
        Name("source_roots"),
        " in regbot.toml, or build it in the checkout.",
    ),
    State.DOUBTFUL_CRASH: (
        "If the reason above names no remedy, run the head on real ranks, to see whether it crashes there too.",
    ),
}


def _advise_on_missing_dispatcher(check: Check) -> list[NextStep]:
    start = "Maintainer: repeat the timing on a node that has the dispatcher ("
    return [_build_retiming_step(check, (start, Name("regbot doctor"), " says what is missing):"))]


def _advise_on_missing_times(check: Check) -> list[NextStep]:
    words = "Repeat the timing when the cause is fixed, or on another node of the same class:"
    return [*_list_log_steps(check), _build_retiming_step(check, (words,))]


_STEPS: dict[State, Callable[[Check], list[NextStep]]] = {
    State.SHARDING_FAIL: _advise_on_sharding,
    State.THROUGHPUT_FAIL: _advise_on_slowdown,
    State.HEAD_BREAKS: _advise_on_failed_runs,
    State.NEITHER_RUNS: _advise_on_failed_runs,
    State.BASE_BREAKS: _advise_on_failed_runs,
    State.FOREIGN_CODE: _advise_on_failed_runs,
    State.DOUBTFUL_CRASH: _advise_on_failed_runs,
    State.ENVIRONMENT: _advise_on_missing_dispatcher,
    State.UNTIMED: _advise_on_missing_times,
    State.UNMEASURED: _advise_on_failed_runs,
    State.TRAINS_DIFFERENTLY: _advise_on_training,
    State.REVIEW: _advise_on_sharding,
    State.INCONCLUSIVE: _advise_on_undecided_times,
}
"""State of a check -> function that returns its steps. States that are not listed have no steps."""


def _list_finding_steps(check: Check) -> list[NextStep]:
    """Return a step for each finding that is FAIL or REVIEW: which line in the diff to look at, and what to look for.
    Without a line, the step names the module, and outside of modules the changed files that the workloads loaded."""
    steps = []
    for item in share_findings(check.verdict.workloads):
        if item.finding.status in ("FAIL", "REVIEW"):
            modules = list(filter(None, item.modules))[:1]
            sections = [entry for entry in check.entries if entry.name in item.workloads]
            files = dict.fromkeys(path for section in sections for path in section.changed_files)
            line = find_first_in_diff([item.finding])
            place = (name_place(line),) if line is not None else list_names(modules or list(files))
            place = place or (Name(f"axis {item.finding.axis}"),)
            hint = HINTS.get(item.finding.pattern, "find the line that changes how its tensors are placed or exchanged")
            steps.append(NextStep(("Look at ", *place, f" in this diff: {hint}.")))
    return list(dict.fromkeys(steps))[:MAX_FINDING_STEPS]


def _list_loss_steps(check: Check) -> list[NextStep]:
    """Return the step that compares the losses; [] if no workload trains differently."""
    # The validity section is REVIEW exactly if head trains differently.
    if all(entry.verdict.validity.status != "REVIEW" for entry in check.entries):
        return []
    accept = ". If the difference is intended, a reviewer accepts it, on GitHub with "
    return [NextStep(("Compare the losses step by step in ", REPORT, accept, Name("/regbot accept"), "."))]


def _list_log_steps(check: Check) -> list[NextStep]:
    """Return the step that points to the logs of failed runs; [] if no failed run has a log."""
    runs = [run for entry in (*check.with_status("FAIL"), *check.with_status("INVALID")) for run in entry.failed]
    return [NextStep(("Read the end of the log, folded below.",))] if any(run.log_tail for run in runs) else []


def _build_reproduction_step(check: Check, timed: bool = False) -> NextStep:
    """Return the step that repeats the check of the first decisive workload, with timed runs if ``timed``."""
    first_decisive = [entry.name for entry in check.decisive[:1]]
    if timed:
        return NextStep(("Reproduce it:",), (check_command(check, first_decisive),))
    place: Words = ("on your machine",)
    if check.session.header.command == "demo":  # ``regbot demo`` makes a repository of its own
        place = ("in the demo's ", Name("repository"), " folder")
    command = check_command(check, first_decisive, ("--no-timing",))
    return NextStep(("Reproduce it ", *place, ", no GPU needed:"), (command,))


def _build_retiming_step(check: Check, words: Words = (_RETIME,)) -> NextStep:
    """Return the step that repeats the timing. It asks for the same node class, because times are not compared across
    classes. ``words`` introduce the command."""
    budget = check.session.header.budget_min
    flags = (f"--budget {budget:g}",) if budget is not None else ()
    if _is_stored_comparison(check):
        words = (
            "Time base and head in pairs on a quiet node of the same class, to see whether head or the node is slower:",
        )
        flags = ("--gate pairs", *flags)
    return NextStep(words, (_build_timed_command(check, flags),))


def _is_stored_comparison(check: Check) -> bool:
    """Return whether head was compared with stored sessions only, so that base was not timed."""
    sections = [entry.throughput for entry in check.decisive if entry.throughput is not None]
    return bool(sections) and all(section.by == "stored" for section in sections)


def _build_timed_command(check: Check, flags: Sequence[str] = ()) -> str:
    return check_command(check, [entry.name for entry in check.decisive], flags)


def _list_declaration_steps(check: Check) -> list[NextStep]:
    """Return the step that declares the findings as intended, with the ``--expect`` options; [] without findings.

    A rule has the form "pattern@axis@workload: reason". The workload "*" stands for all workloads. It is used if all
    configured workloads ran and have the finding. A workload did not run if the change does not concern it, or if an
    option excluded it (``left_out``).
    """
    ran_all = not check.unconcerned and not check.session.header.left_out
    rules = [
        f"{item.finding.pattern}@{item.finding.axis}@{name}: why this is intended"
        for item in share_findings(check.verdict.workloads)
        if item.finding.status in ("FAIL", "REVIEW")
        for name in (("*",) if ran_all and len(item.workloads) == len(check.entries) else item.workloads)
    ]
    rules = [rule for rule in rules if _is_typable(rule)]
    is_all_sharding = all(finding.amounts is None for entry in check.entries for finding in entry.findings)
    of_what = " of the sharding" if is_all_sharding else ""
    options = tuple(f"--expect {_quote_rule(rule)}" for rule in rules[:MAX_RULES])
    if not options:
        return []
    more_note = f" ({len(rules) - MAX_RULES} more rules of this form)" if len(rules) > MAX_RULES else ""
    noun, comments = "this option", "a comment"
    if len(options) > 1:
        noun, comments = f"these options{more_note}", "one comment for each option,"
    star_note: Words = (" (", Name("*"), " stands for all workloads)") if any("@*:" in rule for rule in options) else ()
    words: Words = (
        f"If the change is intended, declare it with {noun} of 'regbot check'. On GitHub, post {comments} with ",
        Name("/regbot expect"),
        " and the text between the quotes",
        *star_note,
        f". regbot then accepts this change{of_what}, and still judges the step time:",
    )
    return [NextStep(words, options)]


def check_command(check: Check, workloads: Sequence[str], flags: Sequence[str] = ()) -> str:
    """Return the shell command that repeats this check with the same arms and declarations.

    ``workloads``: the workloads to check. If there are none, or more than ``MAX_WORKLOADS``, the command checks all.
    ``flags``: further options. Settings and rules that are too long, or have invisible characters, are left out.
    """
    base, head = check.verdict.base, check.verdict.head
    parts = [f"regbot check --base {short_commit(base.commit)} --head {short_commit(head.commit)}"]
    for arm in (base, head):
        settings = [f"{key}={value}" for key, value in arm.overrides.items()]
        parts += [f"--{arm.name}-set {shlex.quote(setting)}" for setting in settings if _is_typable(setting)]
    if len(workloads) <= MAX_WORKLOADS and all(map(_is_typable, workloads)):
        parts += [f"--workload {shlex.quote(workload)}" for workload in workloads]
    declared = [rule for rule in check.session.header.expectations if _is_typable(rule)]
    parts += [f"--expect {_quote_rule(rule)}" for rule in declared[:MAX_RULES]]
    return " ".join([*parts, *flags])


def _is_typable(word: str) -> bool:
    """Return whether a word is short enough and has no invisible characters, so that it can be part of a command."""
    return visible(word, COMMAND_CHARACTERS) == word


def _quote_rule(rule: str) -> str:
    """Return the rule, quoted for a shell, in double quotes where they are safe: the reason is then easy to edit."""
    is_safe = not set(rule) & _UNSAFE_IN_DOUBLE_QUOTES
    return f'"{rule}"' if is_safe else shlex.quote(rule)
