"""What a reader of a check sees, in order. The comment, the report (report.html) and the terminal render this view."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regbot.ledgers.rows import Row
from regbot.records.run import Arm, Run
from regbot.records.session import Session
from regbot.records.text.clip import clip, clip_ends, clip_line, short_commit
from regbot.records.text.units import binary_bytes
from regbot.records.text.words import count
from regbot.records.verdict import RankTimes, Throughput, Verdict, WorkloadVerdict
from regbot.report import headline as wording
from regbot.report.advice import NextStep, SharedFinding, advise_next_steps, share_findings
from regbot.report.answers import QuestionAnswer, answer_questions
from regbot.report.markdown import STRONG, Name, UntrustedText, Words
from regbot.report.notes import (
    collect_evidence,
    describe_small_variants,
    describe_stored_collectives,
    describe_stored_times,
    format_outcome,
    list_names,
    list_unmeasured,
    name_small_variants,
)
from regbot.report.quantities import milliseconds, with_interval
from regbot.report.source_lines import describe_lines
from regbot.report.state import Check, State, prepare_check
from regbot.report.tables import Block, Items, Log, Table, compare_collectives, name_axis, share, tabulate_step_times
from regbot.report.throughput import format_change, select_mean_only_test
from regbot.report.walls import list_walls, tabulate_walls
from regbot.report.workload_section import TimedRun, kind_words

MAX_SETTINGS = 8
"""Largest number of changed settings that are shown for a workload."""
MAX_LOGS = 20
MAX_RANKS = 128

_TIMED_STATES = {
    State.THROUGHPUT_FAIL,
    State.FASTER,
    State.INCONCLUSIVE,
    State.ENVIRONMENT,
    State.UNTIMED,
    State.TRAINS_DIFFERENTLY,
}
"""States whose headline is about the timed runs. In these states the table of step times comes first."""


@dataclass(frozen=True)
class Fold:
    """A part with evidence, which is folded. The title is trusted text."""

    title: str
    blocks: Sequence[Block]
    in_comment: bool = True
    """Whether the comment has it too, and not only the report."""


@dataclass(frozen=True)
class View:
    """The parts of a report, in order. Every part is empty if there is nothing to say."""

    check: Check
    icon: str
    word: str
    """The word of the verdict."""
    headline: Words
    answers: list[tuple[str, QuestionAnswer]]
    """The sign and the answer of each of the three questions."""
    arms: Words
    overview: Table
    """The status of every workload. The comment leaves it out."""
    tables: list[Block]
    """The collectives and the step times. What the headline is about comes first."""
    stored: Items
    """Comparisons with the stored baseline, which decide nothing."""
    unmeasured: list[Words]
    settings: list[Words]
    """Settings that differ between the arms, which are often the cause of the findings."""
    findings: list[SharedFinding]
    steps: list[NextStep]
    warnings: list[Words]
    folds: list[Fold]
    note: Words
    """What the counts are."""


def build_view(verdict: Verdict, session: Session, *, is_self_reported: bool = False) -> View:
    """Return the view of a verdict with its session. ``is_self_reported``: a job that the pull request controls
    reported the result, so the answer about trust refers to the note that says so."""
    check = prepare_check(verdict, session)
    tables = [[*compare_collectives(check), *tabulate_walls(check)], tabulate_step_times(check)]
    has_other_operators = check.state is State.UNCHANGED and any(entry.has_other_operators for entry in check.entries)
    findings = share_findings(verdict.workloads)
    warnings = dict.fromkeys([*verdict.warnings, *session.header.warnings])
    return View(
        check=check,
        icon=wording.icon(check),
        word=wording.word(check),
        headline=wording.headline(check),
        answers=[_sign_answer(check, answer, is_self_reported) for answer in answer_questions(check)],
        arms=_describe_arms(verdict.base, verdict.head),
        overview=tabulate_workloads(verdict),
        tables=[block for blocks in (tables[::-1] if check.state in _TIMED_STATES else tables) for block in blocks],
        stored=Items(list_stored(verdict)),
        unmeasured=list_unmeasured(verdict, session.header, has_other_operators=has_other_operators),
        settings=list(_list_settings(check)),
        findings=findings,
        steps=advise_next_steps(check),
        warnings=[(UntrustedText(clip(warning, 400)),) for warning in warnings],
        folds=[fold for fold in _list_folds(check) if fold.blocks],
        note=_describe_counts(check),
    )


def _sign_answer(check: Check, answer: QuestionAnswer, is_self_reported: bool) -> tuple[str, QuestionAnswer]:
    if is_self_reported and answer.topic == "Trust" and answer.status == "PASS":
        return "🔎", QuestionAnswer(answer.topic, None, "self-reported, see above")
    if check.state is State.NOT_JUDGED and answer.topic == "Sharding":
        return wording.icon(check), answer
    return "" if answer.status is None else wording.ICONS[answer.status], answer


def _describe_arms(base: Arm, head: Arm) -> Words:
    """Return both commits and head's subject. If both arms are one commit, it is named once."""
    subject = (" ", Name(head.subject)) if head.subject else ()
    if base.commit == head.commit and base.overrides and head.overrides:
        settings = (Name(wording.overrides(base)), " → ", Name(wording.overrides(head)))
        return ("commit ", Name(short_commit(head.commit)), " with ", *settings, *subject)
    return ("base ", *_describe_arm(base), " → head ", *_describe_arm(head), *subject)


def _describe_arm(arm: Arm) -> Words:
    overrides = (" with ", Name(wording.overrides(arm))) if arm.overrides else ()
    return (Name(short_commit(arm.commit)), *overrides)


def tabulate_workloads(verdict: Verdict) -> Table:
    """Return a table with the status of each section of every workload, and its findings or a reason. The section on
    the Program is left out if no workload has one."""
    has_programs = any(entry.program is not None for entry in verdict.workloads)
    rows: list[tuple[Words, ...]] = []
    shown: set[str] = set()
    for entry in verdict.workloads:
        summary = _summarise_entry(entry)
        is_repeated = entry.validity.status == "INVALID" and summary in shown
        shown.add(summary)
        statuses = [section.status if section else "-" for section in (entry.sharding, entry.program)]
        cells = (*statuses[: 1 + has_programs], _format_throughput(entry.throughput), entry.validity.status)
        reason = UntrustedText("as above" if is_repeated else summary)
        rows.append(((Name(entry.name),), *((cell,) for cell in cells), (reason,)))
    program = ("program",) if has_programs else ()
    return Table(("workload", "sharding", *program, "throughput", "validity", "findings or reason"), rows)


def _format_throughput(section: Throughput | None) -> str:
    """Return ``FAIL +46.7% [+38.2, +55.9]``: the change of the median, or of the mean if only the mean decided."""
    if section is None:
        return "-"
    if mean := select_mean_only_test(section):
        return f"{section.status} mean {with_interval(mean.estimate_pct, mean.low_pct, mean.high_pct)}"
    return " ".join([section.status, *filter(None, format_change(section))])


def _summarise_entry(entry: WorkloadVerdict) -> str:
    """Return the patterns of an entry's findings. Without findings, return its first reason, shortened. A validity
    section that is not PASS decides, so its reason comes before that of the sharding section."""
    sharding, validity = entry.sharding, entry.validity
    if entry.findings:
        return ", ".join(dict.fromkeys(finding.pattern for finding in entry.findings))
    if sharding is not None and validity.status != "PASS" and validity.reasons:
        return clip_line(validity.reasons[0].partition(": ")[0], 100)
    reasons = sharding.reasons if sharding is not None else validity.reasons
    return clip_ends(" ".join(reasons[0].split()), 100) if reasons else ""


def list_stored(verdict: Verdict) -> list[Words]:
    """Return a line for each comparison with the stored baseline: first the times, then the collectives."""
    stored = [(entry.name, entry.stored) for entry in verdict.workloads if entry.stored is not None]
    times = share((describe_stored_times(item.times), name) for name, item in stored if item.times)
    collectives = [(describe_stored_collectives(item.collectives), name) for name, item in stored if item.collectives]
    lines = [*times, *share(collectives)]
    start: Words = (STRONG, "Not part of the verdict", STRONG, ", ")
    return [(*start, *list_names(names), ": ", *words) for words, names in lines]


def _list_settings(check: Check) -> Iterator[Words]:
    changes = []
    for entry in check.entries:
        differing = entry.verdict.sharding.config_changes if entry.verdict.sharding else {}
        for key, values in list(differing.items())[:MAX_SETTINGS]:
            old, new = ("absent" if value is None else str(value) for value in values)
            changes.append(((key, old, new), entry.name))
    for (key, old, new), names in share(changes):
        where = (" in ", *list_names(names)) if len(names) < len(check.entries) else ()
        yield ("Setting ", Name(clip(key, 60)), ": ", Name(clip(old, 60)), " → ", Name(clip(new, 60)), *where)


def describe_finding(item: SharedFinding, check: Check) -> Words:
    """Return a finding as an item of a list. The workloads are named only if other workloads do not have it."""
    finding = item.finding
    sign = wording.icon(check) if check.state is State.NOT_JUDGED else wording.ICONS[finding.status]
    words: list[str] = [f"{sign} ", STRONG, UntrustedText(clip(finding.pattern, 160)), STRONG]
    words += [" on axis ", Name(clip(finding.axis, 60))]
    modules = list(filter(None, item.modules))  # '' is the model itself
    words += [" in ", *list_names(modules)] if modules else []
    if len(item.workloads) < len(check.entries):
        words += ["\n", *list_names(item.workloads)]
    words += ["\n", *item.text]
    repository = check.session.header.repository
    arms = (check.verdict.base, check.verdict.head)
    base_tree, head_tree = (f"{repository}/blob/{arm.commit}" if repository else "" for arm in arms)
    if lines := describe_lines(finding, (base_tree, head_tree)):
        words += ["\n", *lines]
    if finding.accepted is not None:
        words += ["\nAccepted with the declared reason: ", Name(clip(finding.accepted, 400))]
    return tuple(words)


def _describe_counts(check: Check) -> Words:
    small = name_small_variants(entry.verdict.sharding for entry in check.entries)
    words = ""
    if any(entry.judged for entry in check.entries):
        words += "Counts and bytes are exact: they come from one steady step on rank 0, traced without a GPU. "
        words += "The number after an axis is its number of ranks. "
    if small:
        words += f"They come from {describe_small_variants(small)}. "
    return (f"{words}regbot ", UntrustedText(check.session.header.regbot))


def _list_folds(check: Check) -> list[Fold]:
    """Return the folded parts, the most useful first."""
    return [
        Fold("Ends of the logs", list(_list_logs(check))),
        Fold("All collectives, with phase and role", list(_list_collectives(check))),
        Fold("Compute, memory and host of a step", list(list_walls(check)), in_comment=bool(tabulate_walls(check))),
        Fold("Modelled wire time (a model, not a measurement)", _tabulate_wire_times(check)),
        Fold("Can this be trusted: code, backends, counter", list(_list_trust(check))),
        Fold("Step times, run by run", list(_list_timed_runs(check))),
        Fold("Step times, rank by rank", list(_list_ranks(check)), in_comment=False),
        Fold("How it was measured", _list_runs(check)),
    ]


def _list_logs(check: Check) -> Iterator[Block]:
    """Yield the ends of the logs of failed runs. Equal logs of one arm appear once."""
    failed = [run for entry in check.entries for run in sorted(entry.failed, key=lambda run: run.arm.name)]
    runs_by_log: dict[str, Run] = {}
    for run in failed:
        if run.log_tail:
            runs_by_log.setdefault(f"{run.arm.name} {run.log_tail}", run)
    for run in list(runs_by_log.values())[:MAX_LOGS]:
        yield (Name(run.workload), f" at {run.arm.name}, {format_outcome(run)}:")
        yield Log(run.log_tail)


def _list_collectives(check: Check) -> Iterator[Block]:
    """Yield the changed collectives of all workloads, then the unchanged ones."""
    columns = ("collective", "axis (ranks)", "phase", "role", "dtype", "module", "base", "head", "bytes")
    judged = [entry for entry in check.entries if entry.judged]
    is_changed = any(row.changed for entry in judged for row in entry.rows)
    for changed, end in ((True, ": changed"), (False, ": unchanged")):
        rows = (
            (tuple(_format_row(row) for row in entry.rows if row.changed is changed), entry.name) for entry in judged
        )
        for cells, names in share(rows):
            yield (*list_names(names), end if is_changed else "")
            yield Table(columns, cells)


def _format_row(row: Row) -> tuple[Words, ...]:
    head_count: Words = (str(row.head.count),)
    size = binary_bytes(row.base.bytes)
    if row.changed:
        head_count = (STRONG, *head_count, STRONG)
        size = f"{size} → {binary_bytes(row.head.bytes)}"
    kind, axis, group_size, dtype, phase, role = row.signature
    names = (Name(clip(dtype, 20)),), (Name(clip(row.module or "(root)", 60)),)
    counts = (str(row.base.count),), head_count
    return ((kind_words(kind),), name_axis(axis, group_size), (phase,), (role,), *names, *counts, (size,))


def _tabulate_wire_times(check: Check) -> list[Block]:
    rows: list[tuple[Words, ...]] = []
    for entry in check.entries:
        wire = entry.verdict.sharding.wire if entry.verdict.sharding else None
        if wire is not None:
            ratio = f"{100 * (wire.head_s / wire.base_s - 1):+.1f}%" if wire.base_s > 0 else ""
            ratio = "0%" if wire.head_s == wire.base_s else ratio
            rows.append(((Name(entry.name),), (milliseconds(wire.base_s),), (milliseconds(wire.head_s),), (ratio,)))
    note = (
        "The model divides the payload bytes of all collectives by the bandwidth of their axis, and ignores overlap. "
        "It compares base and head. It does not predict step times."
    )
    return [(note,), Table(("workload", "base", "head", "change"), rows)] if rows else []


def _list_trust(check: Check) -> Iterator[Block]:
    """Yield the reasons and facts that tell whether the runs can be trusted."""
    facts = [
        (
            (
                *((UntrustedText(clip(reason, 400)),) for reason in entry.verdict.validity.reasons),
                *((f"{arm}: ", *fact) for arm, fact in collect_evidence(entry)),
            ),
            entry.name,
        )
        for entry in check.entries
    ]
    for items, names in share(facts):
        yield list_names(names)
        yield Items(items)


def _list_timed_runs(check: Check) -> Iterator[Block]:
    """Yield every timed run in session order, with its outcome and role."""
    columns = ("run", "arm", "block", "outcome", "median step", "mean step", "counts as")
    for entry in check.entries:
        if entry.timed:
            cost = entry.throughput.cost if entry.throughput else None
            yield (Name(entry.name), f": {count(cost.runs, 'run')}, {cost.minutes:.1f} minutes" if cost else "")
            yield Table(columns, [_format_timed_run(timed) for timed in entry.timed])


def _format_timed_run(timed: TimedRun) -> tuple[Words, ...]:
    """Return the row of a timed run. It has no block if the run is a warm launch."""
    run, verdict = timed.run, timed.verdict
    block = f"{timed.block}{' (repeated)' if run.attempt > 1 else ''}" if timed.block else ""
    reason = (": ", UntrustedText(clip(verdict.reason, 200))) if verdict.reason else ()
    earlier = " (earlier session)" if run.is_from_earlier_session else ""
    cells = (str(verdict.number), verdict.arm, block, format_outcome(run))
    times = (_format_time(verdict.median_s), _format_time(verdict.mean_s))
    return (*((cell,) for cell in (*cells, *times)), (timed.role_words, *reason, earlier))


def _format_time(seconds: float | None) -> str:
    return "" if seconds is None else milliseconds(seconds, 4)


def _list_ranks(check: Check) -> Iterator[Block]:
    """Yield a table of the ranks of every workload: medians over its steady steps and runs."""
    columns = ("rank", "arm", "step", "CPU", "wait", "peak memory")
    for entry in check.entries:
        ranks = entry.throughput.ranks[:MAX_RANKS] if entry.throughput else []
        rows = [
            ((UntrustedText(rank.rank),), (arm,), *_format_rank(times))
            for rank in ranks
            for arm, times in (("base", rank.base), ("head", rank.head))
            if times is not None
        ]
        if rows:
            yield (Name(entry.name), ": the other ranks wait for a rank that waits little")
            yield Table(columns, rows)


def _format_rank(times: RankTimes) -> tuple[Words, ...]:
    seconds = (times.step_s, times.cpu_s, times.wait_s)
    memory = binary_bytes(times.peak_bytes) if times.peak_bytes else ""
    return (*((_format_time(value),) for value in seconds), (memory,))


def _list_runs(check: Check) -> list[Block]:
    """Return when the session began, and a table of the static runs."""
    header = check.session.header
    created: Words = ("Session of ", UntrustedText(header.created), ", regbot ", UntrustedText(header.regbot), ".")
    columns = ("workload", "arm", "attempt", "outcome", "seconds", "source of the counts", "world size")
    rows: list[tuple[Words, ...]] = []
    for entry in check.entries:
        for run in entry.runs:
            cells = (run.arm.name, str(run.attempt), format_outcome(run), f"{run.wall_s:.1f}")
            source: Words = (Name(clip(run.ledger.source, 40)),) if run.ledger else ()
            world = (str(run.ledger.world_size or "") if run.ledger else "",)
            rows.append(((Name(run.workload),), *((cell,) for cell in cells), source, world))
    return [created, Table(columns, rows)] if rows else [created]
