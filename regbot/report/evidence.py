"""List the evidence that a run can be trusted: which code ran, on which backends, and whether the counter worked."""

from regbot.records.run import Run
from regbot.report.markdown import Name, UntrustedText, Words
from regbot.report.timed_runs import TimedRuns

MAX_FACTS = 8
"""Maximum number of facts of one kind. A normal run has few, but a hostile run can report any number."""


def list_evidence(run: Run) -> list[Words]:
    """Return the facts about one run, one sentence each."""
    facts: list[Words] = []
    if run.code is not None:
        facts.append((f"{len(run.code.files)} source files of the checkout ran",))
        facts += [
            ("package ", Name(package), " was imported from ", Name(folder or "."), " of the checkout")
            for package, folder in _first_items(run.code.watched)
        ]
        facts += [
            ("foreign code: ", Name(package), " came from ", Name(path))
            for package, path in _first_items(run.code.foreign)
        ]
    facts += _describe_backends(run)
    if run.ledger is not None:
        if run.ledger.liveness is not None:
            liveness = run.ledger.liveness
            facts.append((f"the counter saw {liveness.seen} of {liveness.planted} planted collectives",))
        facts += [
            ("changed to count without a GPU: ", UntrustedText(patch)) for patch in run.ledger.patches[:MAX_FACTS]
        ]
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
    warnings = dict.fromkeys([*run.warnings, *(run.ledger.warnings if run.ledger else [])])
    return [*facts, *(("warning: ", UntrustedText(warning)) for warning in list(warnings)[:MAX_FACTS])]


def compare_evidence(base: Run | None, head: Run | None) -> list[tuple[str, Words]]:
    """Return the facts about the runs of both arms, each with the name of its arm. Equal facts of both arms appear
    once, under "base and head"."""
    base_facts, head_facts = (list_evidence(run) if run else [] for run in (base, head))
    shared = [("base and head", fact) for fact in base_facts if fact in head_facts]
    return [
        *shared,
        *(("base", fact) for fact in base_facts if fact not in head_facts),
        *(("head", fact) for fact in head_facts if fact not in base_facts),
    ]


def collect_timed_evidence(timed: TimedRuns) -> list[tuple[str, Words]]:
    """Return the backends and warnings of the timed runs, without duplicates."""
    arms_by_fact: dict[Words, set[str]] = {}
    for run in timed.runs:
        for fact in [
            *_describe_backends(run.run),
            *(("warning: ", UntrustedText(warning)) for warning in run.run.warnings[:MAX_FACTS]),
        ]:
            arms_by_fact.setdefault(fact, set()).add(run.arm)
    arms = {fact: "base and head" if len(names) > 1 else names.copy().pop() for fact, names in arms_by_fact.items()}
    return [(f"{arm}, timed", fact) for fact, arm in list(arms.items())[: 2 * MAX_FACTS]]


def _describe_backends(run: Run) -> list[Words]:
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
