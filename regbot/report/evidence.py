"""List the evidence that a run can be trusted: which code ran, on which backends, and whether regbot's counter of
collectives worked.

A fact is a sentence (``Words``). Lists of facts name the arm of each fact: "base", "head" or "base and head".
"""

from collections.abc import Callable, Sequence

from regbot.records.run import Run
from regbot.report.markdown import Name, UntrustedText, Words
from regbot.report.timed_runs import TimedRuns

MAX_FACTS = 8
"""Maximum number of facts of one kind. A normal run has few, but a hostile run can report any number."""

DIFFERENCE = "difference from a run on GPUs"
"""Label of a patch, if the ledger was traced without a GPU. A patch is something that regbot replaced for the trace."""


def collect_evidence(base: Run | None, head: Run | None, timed: TimedRuns) -> list[tuple[str, Words]]:
    """Return the facts about a workload, each with the name of its arm.

    ``base`` and ``head`` are the runs whose ledgers are compared. Equal facts of both arms appear once, under "base and
    head". The backends of traces and of timed runs stand next to each other, because they may differ.
    """
    warnings_by_run = [_list_warnings(run.run.warnings) for run in timed.runs]
    return [
        *_compare_facts(base, head, _list_code),
        *_collect_backends(base, head, timed),
        *_compare_facts(base, head, _list_counter_facts),
        *_merge_timed_facts(timed, warnings_by_run),
    ]


def _collect_backends(base: Run | None, head: Run | None, timed: TimedRuns) -> list[tuple[str, Words]]:
    """Return the backends of the traces and of the timed runs. The label of a fact says whether it is about traces or
    about timed runs.

    If the compared ledgers come from timed runs, there are no traces to report.
    """
    is_traced = all(run is None or run.tier == "static" for run in (base, head))
    traced = _compare_facts(base, head, _describe_backends) if is_traced else []
    return [
        *((f"{arm}, traced", fact) for arm, fact in traced),
        *_merge_timed_facts(timed, [_describe_backends(run.run) for run in timed.runs]),
    ]


def _compare_facts(
    base: Run | None, head: Run | None, list_facts: Callable[[Run], list[Words]]
) -> list[tuple[str, Words]]:
    """Return the facts that ``list_facts`` gives for both runs: first the facts in common, then base's, then head's."""
    base_facts, head_facts = (list_facts(run) if run else [] for run in (base, head))
    return [
        *(("base and head", fact) for fact in base_facts if fact in head_facts),
        *(("base", fact) for fact in base_facts if fact not in head_facts),
        *(("head", fact) for fact in head_facts if fact not in base_facts),
    ]


def _merge_timed_facts(timed: TimedRuns, facts_by_run: Sequence[Sequence[Words]]) -> list[tuple[str, Words]]:
    """Return the facts about the timed runs, without duplicates, and at most ``MAX_FACTS`` times two, for two arms.
    ``facts_by_run`` has a list of facts for each run."""
    arms_by_fact: dict[Words, set[str]] = {}
    for run, facts in zip(timed.runs, facts_by_run, strict=True):
        for fact in facts:
            arms_by_fact.setdefault(fact, set()).add(run.arm)
    label_by_fact = {fact: "base and head" if len(arms) > 1 else min(arms) for fact, arms in arms_by_fact.items()}
    return [(f"{arm}, timed", fact) for fact, arm in list(label_by_fact.items())[: 2 * MAX_FACTS]]


def _list_code(run: Run) -> list[Words]:
    """Return the number of source files that ran, and where packages were imported from.

    Watched packages are those that must come from the checkout. Foreign code is a watched package that came from
    elsewhere.
    """
    if run.code is None:
        return []
    return [
        (f"{len(run.code.files)} source files of the checkout ran",),
        *(
            ("package ", Name(package), " was imported from ", Name(folder or "."), " of the checkout")
            for package, folder in _first_items(run.code.watched)
        ),
        *(
            ("foreign code: ", Name(package), " came from ", Name(path))
            for package, path in _first_items(run.code.foreign)
        ),
    ]


def _list_counter_facts(run: Run) -> list[Words]:
    """Return whether the counter saw the planted collectives, what regbot replaced, the software, and the warnings."""
    facts: list[Words] = []
    if run.ledger is not None:
        if run.ledger.liveness is not None:
            liveness = run.ledger.liveness
            facts.append(
                (f"test of the counter: it saw {liveness.seen} of {liveness.planted} collectives that regbot planted",)
            )
        label = DIFFERENCE if run.tier == "static" else "changed by regbot"
        facts += [(f"{label}: ", UntrustedText(format_difference(patch))) for patch in run.ledger.patches[:MAX_FACTS]]
    if run.environment is not None:
        framework, version = "torch", run.environment.torch or "absent"
        if run.environment.jax:
            framework, version = "jax", run.environment.jax
        facts.append(
            (
                f"{framework} ",
                UntrustedText(version),
                ", Python ",
                UntrustedText(run.environment.python),
            )
        )
    return [*facts, *_list_warnings([*run.warnings, *(run.ledger.warnings if run.ledger else [])])]


def _list_warnings(warnings: Sequence[str]) -> list[Words]:
    """Return a fact for each of the first ``MAX_FACTS`` different warnings."""
    return [("warning: ", UntrustedText(warning)) for warning in list(dict.fromkeys(warnings))[:MAX_FACTS]]


def format_difference(patch: str) -> str:
    """Return a patch of a ledger as ``name (explanation)``. The ledger has ``name: explanation``, or only the name.

    A patch that already contains a parenthesis is returned unchanged.
    """
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


def _first_items(pairs: dict[str, str]) -> list[tuple[str, str]]:
    return list(pairs.items())[:MAX_FACTS]
