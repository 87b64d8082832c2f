"""Prepare the findings and the next steps for the reader of a report.

A finding that several workloads have in common appears once. Every state of a check (``state.py``) has its own function
that returns the steps, the most useful first. "Maintainer:" begins a step that the author of the change cannot take.
``check.entries`` are the workloads that were run, and ``check.decisive`` are those that cause the state.
"""

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from regbot.ledgers.catalogue import ALL_TO_ALL_REPLACED, AXIS_LOST, BYTES_UP
from regbot.records.text.clip import short_commit
from regbot.records.text.percentages import round_up_percent
from regbot.records.verdict import GRAVITY, Finding, Throughput
from regbot.report.hints import HINTS
from regbot.report.markdown import Name, UntrustedText, Words, visible
from regbot.report.quantities import size
from regbot.report.state import Check, State
from regbot.report.throughput import is_gate_contradicted

DISPATCHER_KEYS = ("dispatcher", "moe_token_dispatcher_type", "moe_flex_dispatcher_backend")
"""Configuration keys that choose a dispatcher. Frameworks may put the name of a section before them."""
DISPATCHER_PATTERNS = (ALL_TO_ALL_REPLACED, AXIS_LOST, BYTES_UP)
"""Patterns of findings that a change of the dispatcher explains."""
MAX_FINDING_STEPS = 2
"""Largest number of steps that each point to one finding. The findings themselves are listed above the steps."""
MAX_RULES = 4
"""Largest number of ``--expect`` rules in a command or a step."""
MAX_WORKLOADS = 4
"""A command names at most this many workloads. A command for more workloads names none and checks all."""
COMMAND_CHARACTERS = 160
"""Largest length of a value in a command. Longer values are left out of the command."""


REPORT = Name("report.html")
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
    """Explanation of the finding."""


def share_findings(check: Check) -> list[SharedFinding]:
    """Return the findings of all workloads, the gravest first.

    Findings with the same status, pattern, axis and declared reason are merged.
    """
    groups: dict[tuple[str, str, str, str], list[tuple[str, Finding]]] = {}  # values: workload names and findings
    for entry in check.entries:
        for finding in entry.findings:
            key = (finding.status, finding.pattern, finding.axis, finding.accepted or "")
            groups.setdefault(key, []).append((entry.name, finding))
    shared = [_merge_findings(group) for group in groups.values()]
    return sorted(shared, key=lambda item: GRAVITY.index(item.finding.status))


def _merge_findings(group: list[tuple[str, Finding]]) -> SharedFinding:
    """Merge equal findings. ``group``: workload names and findings."""
    _, first_finding = group[0]
    return SharedFinding(
        finding=first_finding,
        workloads=_drop_duplicates(name for name, _ in group),
        modules=_drop_duplicates(module for _, finding in group for module in finding.modules),
        text=_select_explanation(group),
    )


def _select_explanation(group: list[tuple[str, Finding]]) -> Words:
    """Return the explanation of equal findings. If the explanations differ, return the first one as an example, with
    the name of its workload."""
    workload, finding = group[0]
    if len({other.text for _, other in group}) == 1:
        return (UntrustedText(finding.text),)
    return ("For example ", Name(workload), ": ", UntrustedText(finding.text))


def _drop_duplicates(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


def advise_next_steps(check: Check) -> list[NextStep]:
    """Return the next steps for the reader, the most useful first; [] for a state without steps, such as a PASS.

    If the verdict is INCONCLUSIVE only because of workloads that were not run, no action is needed.
    """
    only_unmeasured_workloads_are_open = check.state is State.UNCONCERNED or check.is_passing_but_unproven
    if check.verdict.verdict == "INCONCLUSIVE" and only_unmeasured_workloads_are_open:
        return [_build_no_action_step()]
    return _STEPS[check.state](check) if check.state in _STEPS else []


def _build_no_action_step() -> NextStep:
    """Return the step for an INCONCLUSIVE verdict whose cause is workloads that were not run."""
    no_action = "No action is needed: by default this verdict blocks nothing. Maintainer: "
    return NextStep(
        (
            no_action,
            Name("regbot baseline refresh"),
            " on main stores which files the base loads. With that, such a change can be a PASS.",
        )
    )


def _advise_on_sharding(check: Check) -> list[NextStep]:
    return [*_list_finding_steps(check), _build_reproduction_step(check), *_list_declaration_steps(check)]


def _advise_on_both_failures(check: Check) -> list[NextStep]:
    """Return the steps if sharding and throughput both fail. They are about sharding only, because sharding is measured
    exactly and usually explains the change in step time."""
    return _advise_on_sharding(check)


def _advise_on_slowdown(check: Check) -> list[NextStep]:
    """Return the steps if throughput fails. The step times come first, then differences in training, then findings that
    need a review."""
    return [
        _build_times_step(check),
        *_list_loss_steps(check),
        *_list_finding_steps(check),
        *_list_retiming_steps(check),
        *_list_declaration_steps(check),
    ]


def _advise_on_undecided_times(check: Check) -> list[NextStep]:
    """Return the steps if the step times decide nothing. They depend on the cause.

    A cause that makes further pairs useless comes first. The noise of the pairs comes last.
    """
    sections = [entry.throughput for entry in check.decisive if entry.throughput]
    if any(map(is_gate_contradicted, sections)):  # calibration shows that the gate errs too often on this node class
        words: Words = (
            (
                "It is not known whether head is slower, and more pairs on this node class decide nothing. "
                "Maintainer: find out what disturbs its nodes, and run 'regbot calibrate' again. Or run "
                "this on a node of another class:"
            ),
        )
        return [NextStep(words, (_build_timed_command(check),))]
    if _is_stored_comparison(check):
        return _list_retiming_steps(check)
    if any(map(_is_unfinished, sections)):
        words = (
            (
                "The session ended too early to decide. Continue it with the same 'regbot check' command and --resume. "
                "Or start a new session with more minutes:"
            ),
        )
        return [NextStep(words, (_build_timed_command(check, ("--budget MINUTES",)),))]
    if any(section.pass_withheld for section in sections):  # head has more slow launches than base
        words = (
            "Find out why these runs of head were slow. ",
            REPORT,
            " has their steps and the health of the node. If you repeat the timing, its pairs are added to these:",
        )
        return _list_retiming_steps(check, words)
    # The pairs would decide, but no calibration has measured the luck of an arm. This is the part of its speed that a
    # new compilation may change.
    if any(section.decision_without_luck for section in sections):
        words = (
            (
                "Maintainer: run 'regbot calibrate' on this node class, and commit the file that it adds to the store "
                "(baselines/) to main. Or repeat the check. It recompiles, and adds its pairs to these:"
            ),
        )
        return _list_retiming_steps(check, words)
    return _list_retiming_steps(check, _describe_noise(check))


def _is_unfinished(section: Throughput) -> bool:
    """Return whether the session has fewer pairs than a full session.

    A full session would then detect a smaller slowdown. If the smallest detectable slowdown (``mde``) of the session or
    of a full session is unknown, the session counts as unfinished.
    """
    session_mde, full_mde = section.mde_pct, section.mde_full_pct
    return session_mde is None or full_mde is None or full_mde < session_mde


def _advise_on_training(check: Check) -> list[NextStep]:
    """Return the steps if head trains differently. Only timed runs show this, so the reproduction is timed too."""
    return [
        *_list_loss_steps(check),
        *_list_finding_steps(check),
        _build_reproduction_step(check, timed=True),
        *_list_declaration_steps(check),
    ]


def _advise_on_broken_head(check: Check) -> list[NextStep]:
    """Return the steps if head fails to run. The first step is a hint for runs that ended early without an error. Such
    runs have the outcome "short"."""
    ended_early = any(run.outcome == "short" for entry in check.decisive for run in entry.failed)
    words = (
        "Look for what ends the training loop early: the number of steps, the amount of data, an exit without an error."
    )
    hints = [NextStep((words,))] if ended_early else []
    return [*hints, *_list_log_steps(check), _build_reproduction_step(check, timed=_only_breaks_when_timed(check))]


def _advise_on_missing_record(check: Check) -> list[NextStep]:
    """Return the steps if a traced run ended without a record.

    If the code under test ended the process, the log rarely shows that. The first step therefore says what to look for.
    """
    entry = check.decisive[0]
    traced = [run for run in (entry.base, entry.head) if run is not None]
    ended = [run.arm.name for run in traced if run.outcome == "no_record"]  # arms whose process ended too early
    other_arm_ran = "".join(f" ({run.arm.name} ran)" for run in traced if run.outcome == "ok")
    words = f"Find what ends the process of {' and '.join(ended)} before its step is counted{other_arm_ran}."
    hints = [NextStep((words,))] if ended else []
    return [*hints, *_advise_on_broken_head(check)]


def _advise_on_doubtful_crash(check: Check) -> list[NextStep]:
    """Return the steps if the traced head crashed, and nothing shows that the change is the cause."""
    if check.is_unsupported:  # the crash is in regbot's own code, or over a key that regbot sets
        words = "Maintainer: update regbot. If its newest version fails too, report the reason above."
    else:
        words = "If the reason above names no remedy, run the head on real ranks, to see whether it crashes there too."
    return [NextStep((words,)), *_advise_on_broken_head(check)]


def _advise_on_both_broken(check: Check) -> list[NextStep]:
    """Return the steps if base and head both fail to run. The pull request is then probably not the cause."""
    words = "Maintainer: the base fails too, so look first at the base and at this machine. The logs are folded below."
    return [NextStep((words,)), _build_reproduction_step(check, timed=_only_breaks_when_timed(check))]


def _advise_on_broken_base(check: Check) -> list[NextStep]:
    """Return the steps if base fails to run. Usually the pull request adds regbot, so the base lacks the code to
    measure."""
    words: Words = (
        "If this pull request adds ",
        Name("regbot.toml"),
        " or the code that it names, add both to the main branch first, in a pull request of their own. Otherwise ",
        "fix the reason above on the main branch.",
    )
    return [
        NextStep(words),
        *_list_log_steps(check),
        _build_reproduction_step(check, timed=_only_breaks_when_timed(check)),
    ]


def _advise_on_foreign_code(check: Check) -> list[NextStep]:
    """Return the steps if a package was imported from outside the checkout, so that the code of the commit did not
    run."""
    words: Words = (
        "Maintainer: remove the installed copy of the package. If the package is then not found, add its folder in ",
        "the checkout to ",
        Name("source_roots"),
        " in regbot.toml, or build it in the checkout.",
    )
    return [NextStep(words), _build_reproduction_step(check)]


def _advise_on_missing_dispatcher(check: Check) -> list[NextStep]:
    """Return the steps if the timed runs used another dispatcher than the requested one."""
    nodes = [timed_run.run.node for entry in check.decisive for timed_run in entry.timed.runs]
    has_gpu = any(node is not None and node.gpus for node in nodes)
    if not has_gpu:
        words: Words = ("This machine has no GPU. Repeat the timing on a node that has a GPU and the dispatcher:",)
        return _list_retiming_steps(check, words)
    step = NextStep(
        (
            "Maintainer: install the requested dispatcher on this machine (",
            Name("regbot doctor"),
            " says what is missing).",
        )
    )
    return [step, *_list_retiming_steps(check, ("Repeat the timing on a node that has the dispatcher:",))]


def _advise_on_missing_times(check: Check) -> list[NextStep]:
    """Return the steps if the ledgers were compared, but step times could not be measured."""
    words = "Repeat the timing when the cause is fixed, or on another node of the same class:"
    return [*_list_log_steps(check), *_list_retiming_steps(check, (words,))]


_STEPS: dict[State, Callable[[Check], list[NextStep]]] = {
    State.SHARDING_FAIL: _advise_on_sharding,
    State.BOTH_FAIL: _advise_on_both_failures,
    State.THROUGHPUT_FAIL: _advise_on_slowdown,
    State.HEAD_BREAKS: _advise_on_broken_head,
    State.NEITHER_RUNS: _advise_on_both_broken,
    State.BASE_BREAKS: _advise_on_broken_base,
    State.FOREIGN_CODE: _advise_on_foreign_code,
    State.DOUBTFUL_CRASH: _advise_on_doubtful_crash,
    State.NO_RECORD: _advise_on_missing_record,
    State.ENVIRONMENT: _advise_on_missing_dispatcher,
    State.UNTIMED: _advise_on_missing_times,
    State.UNMEASURED: _advise_on_broken_head,
    State.TRAINS_DIFFERENTLY: _advise_on_training,
    State.REVIEW: _advise_on_sharding,
    State.INCONCLUSIVE: _advise_on_undecided_times,
}
"""State of a check -> function that returns its steps. States that are not listed have no steps."""


def _list_finding_steps(check: Check) -> list[NextStep]:
    """Return a step for each finding that is FAIL or REVIEW: which module to look at, and what to look for.

    If the configured dispatcher differs between the arms, it explains findings of some patterns. The step of such a
    finding names the two dispatchers instead of a module.
    """
    steps = []
    for item in share_findings(check):
        if item.finding.status not in ("FAIL", "REVIEW"):
            continue
        place = Name(item.modules[0]) if item.modules else Name(f"axis {item.finding.axis}")
        hint = HINTS.get(item.finding.pattern, "find the line that changes how its tensors are placed or exchanged")
        dispatchers = _find_dispatcher_change(check, item.workloads)
        if item.finding.pattern in DISPATCHER_PATTERNS and dispatchers:
            old, new = map(Name, dispatchers)
            steps.append(NextStep(("Find what in this diff changes the dispatcher from ", old, " to ", new, ".")))
        else:
            steps.append(NextStep(("Look at ", place, f" in this diff: {hint}.")))
    return list(dict.fromkeys(steps))[:MAX_FINDING_STEPS]


def _find_dispatcher_change(check: Check, workloads: Sequence[str]) -> tuple[str, str] | None:
    """Return the configured dispatchers of base and head, from the first of ``workloads`` in which they differ. Return
    None if they differ in no workload."""
    for entry in check.entries:
        sharding = entry.verdict.sharding if entry.name in workloads else None
        changes = sharding.config_changes if sharding is not None else {}
        for key, (old, new) in changes.items():
            key_without_section = key.rpartition(".")[2]
            if key_without_section in DISPATCHER_KEYS and old != new:
                return str(old), str(new)
    return None


def _build_times_step(check: Check) -> NextStep:
    """Return the step that points to the plots of the report."""
    ratios = "" if _is_stored_comparison(check) else ", the ratio of every pair"
    contents = f"every run{ratios} and the time of every rank"
    words: Words = (
        "Look at the step times in ",
        REPORT,
        " to see where a step now spends more time. It shows ",
        contents,
        ".",
    )
    return NextStep(words)


def _list_loss_steps(check: Check) -> list[NextStep]:
    """Return the step that compares the losses; [] if no workload trains differently."""
    # The validity section is REVIEW exactly if head trains differently.
    if all(entry.verdict.validity.status != "REVIEW" for entry in check.entries):
        return []
    compare: Words = ("Compare the losses step by step in ", REPORT)
    if check.state is not State.TRAINS_DIFFERENTLY:
        return [NextStep((*compare, ", and find out whether the difference is intended."))]
    accept: Words = (
        ". If the difference is intended, a reviewer accepts it, on GitHub with ",
        Name("/regbot accept"),
        ".",
    )
    return [NextStep((*compare, *accept))]


def _describe_noise(check: Check) -> Words:
    """Return why the pairs are undecided, and what to do.

    If even a full session cannot detect a slowdown of the threshold, the node is too noisy. Otherwise the change is
    close to the threshold. The ``mde`` is the smallest detectable slowdown.
    """
    threshold = check.session.header.throughput.threshold_pct
    full_mdes = [entry.throughput.mde_full_pct for entry in check.decisive if entry.throughput]
    known_mdes = [mde_pct for mde_pct in full_mdes if mde_pct is not None]
    if known_mdes and (worst_mde := max(known_mdes)) > threshold:
        words = (
            f"This machine is too noisy to detect a slowdown of {size(threshold)}. Even a full session can only detect "
            f"{round_up_percent(worst_mde)} or more. Repeat the timing on a quieter node of the same class, with "
            "nothing else running:"
        )
        return (words,)
    return (
        "The change is too close to the threshold for these pairs. ",
        REPORT,
        " shows every pair. Repeat the timing on a quiet node of the same class:",
    )


def _list_log_steps(check: Check) -> list[NextStep]:
    """Return the step that points to the logs of failed runs; [] if no failed run has a log."""
    runs = [run for entry in (*check.with_status("FAIL"), *check.with_status("INVALID")) for run in entry.failed]
    return [NextStep(("Read the end of the log, folded below.",))] if any(run.log_tail for run in runs) else []


def _only_breaks_when_timed(check: Check) -> bool:
    """Return whether all failed runs are timed runs. A trace would then not reproduce the failure."""
    failed = [run for entry in check.decisive for run in entry.failed]
    return bool(failed) and all(run.tier == "timed" for run in failed)


def _build_reproduction_step(check: Check, timed: bool = False) -> NextStep:
    """Return the step that repeats the check of the first decisive workload. ``timed``: whether the command also times
    base and head."""
    first_decisive = [entry.name for entry in check.decisive[:1]]
    if timed:
        return NextStep(("Reproduce it:",), (check_command(check, first_decisive),))
    repeat_command = check_command(check, first_decisive, ("--no-timing",))
    place: Words = ("on your machine",)
    if check.session.header.command == "demo":  # ``regbot demo`` makes a repository of its own
        place = ("in the demo's ", Name("repository"), " folder")
    return NextStep(("Reproduce it ", *place, ", no GPU needed:"), (repeat_command,))


def _list_retiming_steps(
    check: Check, words: Words = ("Repeat the timing on a quiet node of the same class:",)
) -> list[NextStep]:
    """Return the step that repeats the timing. It asks for the same node class, because times are not compared across
    classes. ``words`` introduce the command."""
    budget = check.session.header.budget_min
    flags = (f"--budget {budget:g}",) if budget is not None else ()
    if _is_stored_comparison(check):
        words = (
            "Time base and head in pairs on a quiet node of the same class, to see whether head or the node is slower:",
        )
        flags = ("--gate pairs", *flags)
    return [NextStep(words, (_build_timed_command(check, flags),))]


def _is_stored_comparison(check: Check) -> bool:
    """Return whether head was compared with stored sessions only, so that base was not timed."""
    sections = [entry.throughput for entry in check.decisive if entry.throughput is not None]
    return bool(sections) and all(section.by == "stored" for section in sections)


def _build_timed_command(check: Check, flags: Sequence[str] = ()) -> str:
    """Return the command that repeats the check of the decisive workloads, with timed runs."""
    return check_command(check, [entry.name for entry in check.decisive], flags)


def _list_declaration_steps(check: Check) -> list[NextStep]:
    """Return the step that declares the findings as intended, with the ``--expect`` options; [] without findings."""
    rules = [
        f"{item.finding.pattern}@{item.finding.axis}@{name}: why this is intended"
        for item in share_findings(check)
        if item.finding.status in ("FAIL", "REVIEW")
        for name in _name_workloads_in_rules(item, check)
    ]
    rules = [rule for rule in rules if _is_typable(rule)]
    options = tuple(f"--expect {_quote_rule(rule)}" for rule in rules[:MAX_RULES])
    more_note = f" ({len(rules) - MAX_RULES} more rules of this form)" if len(rules) > MAX_RULES else ""
    if not options:
        return []
    # A rule has the form "pattern@axis@workload: reason". The workload "*" stands for all workloads.
    star_note: Words = (
        (" (", Name("*"), " stands for all workloads)") if any("@*:" in option for option in options) else ()
    )
    noun, comments = "this option", "a comment"
    if len(options) > 1:
        noun, comments = f"these options{more_note}", "one comment for each option,"
    words: Words = (
        f"If the change is intended, declare it with {noun} of 'regbot check'. On GitHub, post {comments} with ",
        Name("/regbot expect"),
        " and the text between the quotes",
        *star_note,
        ". regbot then accepts this change of the sharding, and still judges the step time:",
    )
    return [NextStep(words, options)]


def _name_workloads_in_rules(item: SharedFinding, check: Check) -> tuple[str, ...]:
    """Return the workloads to declare a finding for: ``*`` if all configured workloads ran and have the finding. A
    workload did not run if the change does not concern it, or if an option excluded it (``left_out``)."""
    ran_all = not check.unconcerned and not check.session.header.left_out
    return ("*",) if ran_all and len(item.workloads) == len(check.entries) else item.workloads


def check_command(check: Check, workloads: Sequence[str], flags: Sequence[str] = ()) -> str:
    """Return the shell command that repeats this check with the same arms and declarations.

    ``workloads``: the workloads to check. If there are none, or more than ``MAX_WORKLOADS``, the command checks all.
    ``flags``: further options. Settings and rules that are too long, or have invisible characters, are left out.
    """
    parts = [
        "regbot check",
        f"--base {short_commit(check.verdict.base.commit)}",
        f"--head {short_commit(check.verdict.head.commit)}",
    ]
    for arm in (check.verdict.base, check.verdict.head):
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
    """Return the rule, quoted for a shell. Double quotes are used where they are safe, because they make the reason
    easy to edit."""
    is_safe = not set(rule) & _UNSAFE_IN_DOUBLE_QUOTES
    return f'"{rule}"' if is_safe else shlex.quote(rule)
