"""Did the sharding change? Two ledgers -> the sharding section of a verdict."""

from collections import Counter
from collections.abc import Iterable, Iterator

from regbot.config import Config
from regbot.judge.expect import Expectation, accept
from regbot.judge.validity import changed_config, not_comparable
from regbot.ledgers.patterns import DispatcherChange, findings
from regbot.ledgers.rows import by_kind
from regbot.ledgers.wire import wire_s
from regbot.records.ledger import Kind, Ledger
from regbot.records.verdict import Finding, Roles, Sharding, Status, Wire

ALWAYS_SHOWN: tuple[Kind, ...] = ("all_to_all", "all_gather", "reduce_scatter")
SEVERITY: tuple[Status, ...] = ("FAIL", "REVIEW", "PASS")
MESSAGE_CHARACTERS = 4000
GUESSES_SHOWN = 3
GUESS_CHARACTERS = 300


class NotComparable(ValueError):
    """Two ledgers were counted in different ways or cover different things."""


def judge_ledgers(base: Ledger, head: Ledger, config: Config) -> Sharding:
    """The sharding section for two ledgers alone, as ``ledger diff`` shows it. Raises NotComparable."""
    if reason := not_comparable(base, head):
        raise NotComparable(f"the two ledgers {reason}; count both in the same way")
    return judge_sharding(base, head, config)


def judge_sharding(
    base: Ledger,
    head: Ledger,
    config: Config,
    *,
    dispatcher: DispatcherChange | None = None,
    workload: str = "",
    expectations: Iterable[Expectation] = (),
    configurations_only: bool = False,
) -> Sharding:
    """The sharding section for two comparable ledgers.

    ``expectations`` that cover findings of ``workload`` turn them into accepted ones. ``configurations_only``: both
    arms are one commit under different configurations, so a difference is the answer to a question and no regression.
    """
    found = accept(findings(base, head, config.sharding, config.wire, dispatcher), expectations, workload)
    if configurations_only:
        found = [finding.model_copy(update={"status": "PASS"}) for finding in found]
    if base.scope == "whole":  # of how many steps is not known: more calls are no regression, fewer prove nothing
        found = [f if f.accepted else f.model_copy(update={"status": "REVIEW"}) for f in found]
    identical = not found and base.program is not None and base.program == head.program
    worst = next(s for s in SEVERITY if s == "PASS" or any(f.status == s for f in found))
    guessed, doubtful = _guesses(base, head)
    unknown = _unclassified(base, head)
    status: Status = "REVIEW" if (doubtful or unknown) and worst == "PASS" and not configurations_only else worst
    if unknown and found and not configurations_only:
        status = "INVALID"
    changes = changed_config(base, head)
    reasons = [
        *unknown,
        *(guessed if status != worst else []),
        *([_no_findings(base, head, identical)] if not found else []),
        *(["difference between configurations, shown and not judged"] if configurations_only and found else []),
        *(_reason(finding) for finding in found if finding.status == worst),
        *(guessed if status == worst else []),
        *_not_compared(base, head),
        *(f"configuration differs: {key} is {was!r} in base, {now!r} in head" for key, (was, now) in changes.items()),
    ]
    return Sharding(
        status=status,
        reasons=[reason[:MESSAGE_CHARACTERS] for reason in reasons],
        findings=found,
        base=_counts(base, head),
        head=_counts(head, base),
        source=_source(base),
        identical_program=identical,
        wire=Wire(base_s=wire_s(base, config.wire), head_s=wire_s(head, config.wire)),
        config_changes=changes,
    )


def _no_findings(base: Ledger, head: Ledger, identical: bool) -> str:
    if identical:
        return "device program identical: both arms dispatch the same operators, and with them the same collectives"
    if base.program is None or head.program is None:
        return "same collectives; there is no program fingerprint in both arms to compare more than them"
    return "same collectives, the program differs"


def _guesses(base: Ledger, head: Ledger) -> tuple[list[str], bool]:
    """What to say of values that were guessed while counting, and whether a person has to look.

    Two equal programs did the same with the same guesses. In different ones a guess may have decided a size; and where
    the guesses differ themselves, equal counts may be so by chance.
    """
    ours, theirs = sorted(base.guesses), sorted(head.guesses)
    same_program = base.program is not None and base.program == head.program
    if same_program or not (ours or theirs):
        return [], False
    if ours == theirs and base.scope == "step":
        return [f"sizes could depend on values that were guessed, the same in both arms: {_few(ours)}"], False
    both = f"{_few(ours)} in base, {_few(theirs)} in head"
    return [f"sizes could depend on values that were guessed, and not the same in both arms: {both}"], True


def _unclassified(base: Ledger, head: Ledger) -> list[str]:
    """Communication of no known kind that is not the same in both arms: what the counts leave out then differs, so
    neither "nothing changed" nor "it is gone" can be said."""
    ours, theirs = (Counter({each.name: each.count for each in ledger.unclassified}) for ledger in (base, head))
    if ours == theirs:
        return []
    names = sorted(name for name in ours.keys() | theirs.keys() if ours[name] != theirs[name])
    told = ", ".join(f"{name} ({ours[name]} in base, {theirs[name]} in head)" for name in names[:GUESSES_SHOWN])
    more = f" and {len(names) - GUESSES_SHOWN} more" if len(names) > GUESSES_SHOWN else ""
    return [f"communication that could not be classified differs, so the counts cannot tell what changed: {told}{more}"]


def _not_compared(base: Ledger, head: Ledger) -> Iterator[str]:
    """What only one arm knows."""
    known = {
        "reads of the host": [ledger.host_reads is not None for ledger in (base, head)],
        "overlap": [any(e.exposed_s is not None for e in ledger.entries) for ledger in (base, head)],
    }
    for what, (ours, theirs) in known.items():
        if ours != theirs and base.entries and head.entries:
            yield f"{what} not compared: not known in {'head' if ours else 'base'}"


def _few(guesses: list[str]) -> str:
    more = f" and {len(guesses) - GUESSES_SHOWN} more" if len(guesses) > GUESSES_SHOWN else ""
    return "; ".join(guess[:GUESS_CHARACTERS] for guess in guesses[:GUESSES_SHOWN]) + more or "nothing"


def _reason(finding: Finding) -> str:
    if finding.accepted is not None:
        return f"{finding.pattern}, accepted: {finding.accepted}"
    return f"{finding.pattern}: {finding.text}"


def _counts(ledger: Ledger, other: Ledger) -> dict[Kind, Roles]:
    """Counts of every kind that either ledger has, and of the three that a reader looks for."""
    payload = by_kind(ledger, lambda e: e.role == "payload")
    control = by_kind(ledger, lambda e: e.role == "control")
    kinds = dict.fromkeys((*ALWAYS_SHOWN, *sorted({e.kind for e in (*ledger.entries, *other.entries)})))
    return {
        kind: Roles(
            payload=payload[kind].count if kind in payload else 0,
            control=control[kind].count if kind in control else 0,
        )
        for kind in kinds
    }


def _source(ledger: Ledger) -> str:
    """'dispatch-mode, fake world of 16 ranks, one steady step'."""
    fake = any(e.via == "fake" for e in ledger.entries)
    world = f"{'fake ' if fake else ''}world of {ledger.world_size} ranks" if ledger.world_size else ""
    span = "one steady step" if ledger.scope == "step" else f"{ledger.steps} step{'s' * (ledger.steps > 1)} together"
    return ", ".join(part for part in (ledger.source, world, span) if part)[:500]
