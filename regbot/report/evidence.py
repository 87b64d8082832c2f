"""What a run shows for its own trustworthiness: whose code ran, on which backends, whether the counter could see."""

from regbot.records.run import Run
from regbot.report.markdown import Name, Said, Words
from regbot.report.timed import Timed

SHOWN = 8
"""Facts of one sort that are told one by one; a run has a handful, a hostile one any number."""


def evidence(run: Run) -> list[Words]:
    """The facts of one run, each a sentence."""
    facts: list[Words] = []
    if run.code is not None:
        facts.append((f"{len(run.code.files)} source files of the checkout ran",))
        facts += [
            ("watched: ", Name(package), " from ", Name(folder or ".")) for package, folder in _few(run.code.watched)
        ]
        facts += [
            ("foreign code: ", Name(package), " came from ", Name(path)) for package, path in _few(run.code.foreign)
        ]
    facts += _backends(run)
    if run.ledger is not None:
        if run.ledger.liveness is not None:
            seen = run.ledger.liveness
            facts.append((f"the counter saw {seen.seen} of {seen.planted} planted collectives",))
        facts += [("replaced in order to count: ", Said(patch)) for patch in run.ledger.patches[:SHOWN]]
    if run.environment is not None:
        facts.append(("torch ", Said(run.environment.torch or "absent"), ", Python ", Said(run.environment.python)))
    warnings = dict.fromkeys([*run.warnings, *(run.ledger.warnings if run.ledger else [])])
    return [*facts, *(("warning: ", Said(warning)) for warning in list(warnings)[:SHOWN])]


def by_arm(base: Run | None, head: Run | None) -> list[tuple[str, Words]]:
    """The facts of both arms, each with whose it is; what both show is told once."""
    ours, theirs = (evidence(run) if run else [] for run in (base, head))
    both = [("base and head", fact) for fact in ours if fact in theirs]
    return [
        *both,
        *(("base", fact) for fact in ours if fact not in theirs),
        *(("head", fact) for fact in theirs if fact not in ours),
    ]


def timed_evidence(timed: Timed) -> list[tuple[str, Words]]:
    """Which backends the timed runs executed, and what they warn of; every fact once, however many runs show it."""
    told: dict[Words, set[str]] = {}
    for one in timed.runs:
        for fact in [*_backends(one.run), *(("warning: ", Said(warning)) for warning in one.run.warnings[:SHOWN])]:
            told.setdefault(fact, set()).add(one.arm)
    arms = {fact: "base and head" if len(names) > 1 else names.copy().pop() for fact, names in told.items()}
    return [(f"{arm}, timed", fact) for fact, arm in list(arms.items())[: 2 * SHOWN]]


def _backends(run: Run) -> list[Words]:
    facts: list[Words] = []
    for name, backend in list(run.backends.items())[:SHOWN]:
        asked, resolved, executed = Name(backend.requested or "any"), Name(backend.resolved), Name(backend.executed)
        told = (Said(name), ": requested ", asked, ", resolved ", resolved, ", executed ", executed)
        facts.append((*told, " (", Said(backend.evidence), ")"))
    return facts


def outcome(run: Run) -> str:
    """``ok``, ``crashed (exit 1)``."""
    words = run.outcome.replace("_", " ")
    return f"{words} (exit {run.exit_code})" if run.outcome != "ok" and run.exit_code is not None else words


def _few(pairs: dict[str, str]) -> list[tuple[str, str]]:
    return list(pairs.items())[:SHOWN]
