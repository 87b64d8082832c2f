"""Sentences beside the verdict: what was not measured, the stored baseline, and why the runs can be trusted."""

from collections.abc import Callable, Iterable, Sequence

from regbot.records.run import Run
from regbot.records.session import SessionHeader
from regbot.records.text.clip import clip, short_commit
from regbot.records.text.words import count
from regbot.records.verdict import Sharding, StoredCollectives, StoredTest, StoredTimes, Verdict
from regbot.report.markdown import Name, UntrustedText, Words
from regbot.report.quantities import estimate_and_interval
from regbot.report.workload_section import WorkloadSection

OTHER_OPERATORS = (
    " The collectives are the same, but the step of head runs other operators than that of base, such as another "
    "matrix product. Its speed may differ."
)
"""Sentence for a PASS that rests on the collectives alone."""
MAX_NAMES = 6
MAX_REASONS = 4
REASON_CHARACTERS = 300
MIN_P_VALUE = 0.0001
"""Smaller p values are shown as below this value, because the tail of the t distribution is not known better."""
MAX_FACTS = 8
"""Maximum number of facts of one kind. A normal run has few, but a hostile run can report any number."""
SMALL_VARIANTS = ("cpu", "smoke")
"""Names of the variants that are smaller than the full model."""
DIFFERENCE = "difference from a run on GPUs"
"""Label of a patch, if the ledger was traced without a GPU. A patch is something that regbot replaced for the trace."""

Fact = tuple[str, Words]
"""The arm or arms that a sentence is about, and the sentence."""


def list_names(names: Sequence[str]) -> Words:
    """Return a list of names: ``a``, ``b`` and 3 more."""
    words: list[str] = []
    for name in names[:MAX_NAMES]:
        words += [", ", Name(clip(name, 80))]
    more = (f" and {len(names) - MAX_NAMES} more",) if len(names) > MAX_NAMES else ()
    return (*words[1:], *more)  # words[0] is the separator before the first name


def more(number: int, noun: str) -> str:
    """Return the note that ends a list that was cut."""
    return f"…and {number} more {noun}, see the report."


def name_small_variants(sections: Iterable[Sharding | None]) -> str:
    """Return the small variants that were judged, such as 'cpu' or 'cpu and smoke'; '' if there are none. Otherwise
    readers could believe that the verdict applies to the full model.

    An ending such as ``-skewed`` is left out: the variant ``cpu-skewed`` gives 'cpu'.
    """
    sizes = {section.variant.split("-")[0] for section in sections if section is not None}
    return " and ".join(size for size in SMALL_VARIANTS if size in sizes)


def describe_small_variants(small_variants: str) -> str:
    """Return what a verdict on small variants is about. ``small_variants`` is not ''."""
    advice = "remove variant from regbot.toml to judge the full model"
    return f"the {small_variants} variant, a small copy of the shape: {advice}"


def list_unmeasured(verdict: Verdict, header: SessionHeader, *, has_other_operators: bool = False) -> list[Words]:
    """Return sentences about each part that was not measured: workloads without a changed file, throughput, and
    workloads that the options exclude.

    ``has_other_operators``: the collectives are the same in both arms, but the operators of a step differ.
    """
    parts: list[Words] = _describe_unconcerned(verdict)
    # An unconcerned workload was not run, because no changed file matches its paths.
    measured = [entry for entry in verdict.workloads if not entry.unconcerned]
    if measured and not any(entry.throughput for entry in measured):
        traced = any(entry.sharding is not None and entry.sharding.status != "INVALID" for entry in measured)
        # A command is timed and never traced.
        is_timeable = traced or any(entry.name in header.untraced for entry in measured)
        words: Words = ("Throughput: not measured, because no workload has usable traces of both base and head.",)
        if is_timeable:
            advice: Words = (" ", Name("regbot check"), " without ", Name("--no-timing"), " measures it.")
            if header.command == "demo":
                advice = (" ", Name("regbot demo --timed"), " measures it.")
            words = ("Throughput: not measured.", *(() if header.timing else advice))
        parts.append((*words, *((OTHER_OPERATORS,) if has_other_operators else ())))
    if header.left_out:
        parts.append(_describe_left_out(header))
    return parts


def _describe_unconcerned(verdict: Verdict) -> list[Words]:
    """Return sentences about the workloads that were not run because no changed file matches their paths. Workloads
    with the same reason share a sentence."""
    groups: dict[tuple[bool, str], list[str]] = {}  # whether proven, and the reason -> names of workloads
    for entry in verdict.workloads:
        if entry.unconcerned:
            proven = entry.validity.status == "PASS"
            groups.setdefault((proven, "; ".join(entry.validity.reasons)), []).append(entry.name)
    parts: list[Words] = []
    for (proven, reason), names in list(groups.items())[:MAX_REASONS]:
        these, them = ("this workload", "it") if len(names) == 1 else ("these workloads", "them")
        effect = "proven that the change cannot affect" if proven else "not known whether the change affects"
        why = f". No changed file matches the paths of {these}. It is {effect} {them}, because "
        parts.append(("Not measured: ", *list_names(names), why, UntrustedText(clip(reason, REASON_CHARACTERS)), "."))
    rest = sum(len(names) for names in list(groups.values())[MAX_REASONS:])
    return [*parts, *([(f"Not measured for other reasons: {rest} more workloads.",)] if rest else [])]


def _describe_left_out(header: SessionHeader) -> Words:
    """Return a sentence about the entries that the options exclude. The demo leaves out whole meshes, which are named
    instead of the entries (``[label:]shape/mesh``)."""
    if header.command == "demo":
        measured, missing = (
            list(dict.fromkeys(entry.rpartition("/")[2] for entry in entries))
            for entries in (header.workloads, header.left_out)
        )
        traced = ("Sharding: traced only on the mesh ", *list_names(measured))
        return (*traced, "; ", Name("--timed"), " also traces ", *list_names(missing), ".")
    total = len(header.workloads) + len(header.left_out)
    return (f"Checked: {len(header.workloads)} of {total} workloads; left out: ", *list_names(header.left_out), ".")


def describe_stored_times(times: StoredTimes) -> Words:
    """Return each arm with the prediction interval of its median step time, or why no stored session can be compared.
    The mean step time is added only if it, and not the median, is outside of the range that the stored sessions
    predict."""
    if times.reason:
        return ("no comparison with stored times: ", UntrustedText(clip(times.reason, REASON_CHARACTERS)))
    outside = {(test.arm, test.summary) for test in times.tests if _is_outside(test, times)}
    tests = [
        test
        for test in times.tests
        if test.summary == "median" or ((test.arm, "mean") in outside and (test.arm, "median") not in outside)
    ]
    age = f" (newest: {_describe_age(times.age_days)})" if times.age_days is not None else ""
    return (
        f"compared with the last {count(times.sessions, 'session')} of main on this node class and in this "
        f"environment{age}, " + ", ".join(_describe_test(test, times) for test in tests),
    )


def _describe_test(test: StoredTest, times: StoredTimes) -> str:
    """Return an arm with its prediction interval: ``base's step is 0.41% longer [−1.20, +2.02] (p = 0.61)``."""
    p_value = f"p < {MIN_P_VALUE:g}" if test.p_value < MIN_P_VALUE else f"p = {test.p_value:.2g}"
    step = "mean step" if test.summary == "mean" else "step"
    estimate, ends = estimate_and_interval(test.estimate_pct, test.low_pct, test.high_pct)
    # The words "longer" and "shorter" replace the sign.
    change = f"{estimate.lstrip('+−')} {'longer' if test.estimate_pct >= 0 else 'shorter'}"
    note = f"{p_value}, more than these sessions differ from each other" if _is_outside(test, times) else p_value
    return f"{test.arm}'s {step} is {change} {ends} ({note})"


def _is_outside(test: StoredTest, times: StoredTimes) -> bool:
    """Return whether the arm's step time is outside of the range that the stored sessions predict, if there is one."""
    return times.alpha is not None and test.p_value < times.alpha


def describe_stored_collectives(collectives: StoredCollectives) -> Words:
    """Return whether head has the collectives of the stored ledger. If not, name the patterns of the findings."""
    age = f", {_describe_age(collectives.age_days)}" if collectives.age_days is not None else ""
    relation, detail = "equal", ""
    if collectives.reason:
        relation, detail = "cannot be compared with", collectives.reason
    elif collectives.patterns:
        relation, detail = "differ from", ", ".join(collectives.patterns[:MAX_REASONS])
    end = (": ", UntrustedText(clip(detail, REASON_CHARACTERS))) if detail else ()
    return (f"head's collectives {relation} the stored ones of ", Name(short_commit(collectives.commit)), age, *end)


def _describe_age(days: float) -> str:
    return "less than a day old" if days < 1 else f"{count(round(days), 'day')} old"


def collect_evidence(entry: WorkloadSection) -> list[Fact]:
    """Return the facts that tell whether the runs of a workload can be trusted: which code ran, on which backends, and
    whether regbot's counter of collectives worked. Equal facts of both arms appear once.

    The backends of traces and of timed runs stand next to each other, because they may differ. If the compared ledgers
    come from timed runs, there are no traces to report.
    """
    runs = [run for run in (entry.base, entry.head) if run is not None]
    timed = [timed.run for timed in entry.timed]
    traced = runs if all(run.tier == "static" for run in runs) else []
    return [
        *_merge_facts(runs, _list_code),
        *_merge_facts(traced, _describe_backends, ", traced"),
        *_merge_facts(timed, _describe_backends, ", timed"),
        *_merge_facts(runs, _list_counter_facts),
        *_merge_facts(timed, lambda run: _list_warnings(run.warnings), ", timed"),
    ]


def _merge_facts(runs: Sequence[Run], list_facts: Callable[[Run], list[Words]], how: str = "") -> list[Fact]:
    """Return the facts about ``runs`` without duplicates: those that both arms share first, then base's, then head's.
    At most ``MAX_FACTS`` times two of them are about timed runs, of which there may be many."""
    arms_by_fact: dict[Words, set[str]] = {}
    for run in runs:
        for fact in list_facts(run):
            arms_by_fact.setdefault(fact, set()).add(run.arm.name)
    facts = [(" and ".join(sorted(arms)), fact) for fact, arms in arms_by_fact.items()]
    facts = facts[: 2 * MAX_FACTS] if how == ", timed" else facts
    facts.sort(key=lambda item: ("base and head", "base", "head").index(item[0]))
    return [(f"{arms}{how}", fact) for arms, fact in facts]


def _list_code(run: Run) -> list[Words]:
    """Return which code ran. Foreign code is a package that must come from the checkout and did not."""
    if run.code is None:
        return []
    watched, foreign = list(run.code.watched.items())[:MAX_FACTS], list(run.code.foreign.items())[:MAX_FACTS]
    return [
        (f"{len(run.code.files)} source files of the checkout ran",),
        *(
            ("package ", Name(package), " was imported from ", Name(folder or "."), " of the checkout")
            for package, folder in watched
        ),
        *(("foreign code: ", Name(package), " came from ", Name(path)) for package, path in foreign),
    ]


def _list_counter_facts(run: Run) -> list[Words]:
    """Return whether the counter saw the planted collectives, what regbot replaced, the software, and the warnings."""
    facts: list[Words] = []
    if run.ledger is not None:
        if (liveness := run.ledger.liveness) is not None:
            seen = f"it saw {liveness.seen} of {liveness.planted} collectives that regbot planted"
            facts.append((f"test of the counter: {seen}",))
        label = DIFFERENCE if run.tier == "static" else "changed by regbot"
        facts += [(f"{label}: ", UntrustedText(format_difference(patch))) for patch in run.ledger.patches[:MAX_FACTS]]
    if (environment := run.environment) is not None:
        framework, version = ("jax", environment.jax) if environment.jax else ("torch", environment.torch or "absent")
        facts.append((f"{framework} ", UntrustedText(version), ", Python ", UntrustedText(environment.python)))
    return [*facts, *_list_warnings([*run.warnings, *(run.ledger.warnings if run.ledger else [])])]


def _list_warnings(warnings: Sequence[str]) -> list[Words]:
    return [("warning: ", UntrustedText(warning)) for warning in list(dict.fromkeys(warnings))[:MAX_FACTS]]


def format_difference(patch: str) -> str:
    """Return a patch of a ledger, ``name: explanation``, as ``name (explanation)``. A patch that already contains a
    parenthesis is returned unchanged."""
    name, colon, explanation = patch.partition(": ")
    return f"{name} ({explanation})" if colon and "(" not in patch else patch


def _describe_backends(run: Run) -> list[Words]:
    """Return a fact for each backend: which implementation was requested, resolved and executed, and the evidence."""
    facts: list[Words] = []
    for name, backend in list(run.backends.items())[:MAX_FACTS]:
        requested, resolved, executed = Name(backend.requested or "any"), Name(backend.resolved), Name(backend.executed)
        choices = (UntrustedText(name), ": requested ", requested, ", resolved ", resolved, ", executed ", executed)
        facts.append((*choices, " (", UntrustedText(backend.evidence), ")"))
    return facts


def format_outcome(run: Run) -> str:
    """Return the outcome of a run in words, such as ``ok`` or ``crashed (exit 1)``."""
    words = run.outcome.replace("_", " ")
    return f"{words} (exit {run.exit_code})" if run.outcome != "ok" and run.exit_code is not None else words
