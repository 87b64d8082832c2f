"""Compare two ledgers and build the sharding section of a verdict."""

from collections import Counter
from collections.abc import Iterable, Iterator

from regbot.errors import UserError
from regbot.judge.expectations import Expectation, accept, list_reasons
from regbot.judge.validity import changed_config, not_comparable
from regbot.ledgers.patterns import DispatcherChange, compare_ledgers
from regbot.ledgers.wire import wire_s
from regbot.records.changed_lines import ChangedLines
from regbot.records.config import Config
from regbot.records.ledger import GuessKind, Kind, Ledger, Role
from regbot.records.text.clip import clip, clip_label, clip_message
from regbot.records.text.words import count, listed
from regbot.records.verdict import GRAVITY, RoleCounts, Sharding, Status, WireTime

ALWAYS_COUNTED: tuple[Kind, ...] = ("all_to_all", "all_gather", "reduce_scatter")
"""Kinds whose counts are always shown, even if they are 0."""
HARMLESS_GUESSES: tuple[GuessKind, ...] = ("finite", "assertion")
"""Guesses that decide no size, such as that the gradient norm is finite. If one is wrong in a real step, the step is
skipped or crashes."""
MAX_NAMED = 3
"""A reason names at most this many guesses or unclassified calls. Each guess is clipped to ``GUESS_CHARACTERS``."""
GUESS_CHARACTERS = 300


class NotComparable(UserError):
    """Two ledgers were counted in different ways, or cover different work."""


def judge_ledgers(base: Ledger, head: Ledger, config: Config, changed_lines: ChangedLines | None = None) -> Sharding:
    """Return the sharding section of two ledgers whose runs are not known, for ``ledger diff``. Raises
    NotComparable."""
    if reason := not_comparable(base, head):
        raise NotComparable(f"the two ledgers {reason}", "count both in the same way")
    return judge_sharding(base, head, config, changed_lines=changed_lines)


def judge_sharding(
    base: Ledger,
    head: Ledger,
    config: Config,
    *,
    dispatcher: DispatcherChange | None = None,
    workload: str = "",
    expectations: Iterable[Expectation] = (),
    configurations_only: bool = False,
    changed_lines: ChangedLines | None = None,
) -> Sharding:
    """Return the sharding section of two comparable ledgers.

    ``configurations_only``: both arms have the same commit with different overrides, so a difference is no regression.
    ``dispatcher`` is given if only one arm executes the dispatcher that both request. The status is that of the worst
    finding. If unclassified communication differs, it is INVALID with findings, else REVIEW. Guesses that differ turn
    PASS into REVIEW. If the ledgers cover a whole file, findings are REVIEW."""
    findings = compare_ledgers(base, head, config.sharding, config.wire, dispatcher, changed_lines)
    findings = accept(findings, expectations, workload)
    # "whole": the counts are those of a whole file. Its number of steps is unknown, so different counts prove nothing.
    forced: Status | None = "REVIEW" if base.scope == "whole" else "PASS" if configurations_only else None
    findings = [
        finding if forced is None or finding.accepted else finding.model_copy(update={"status": forced})
        for finding in findings
    ]
    worst_status: Status = min((finding.status for finding in findings), key=GRAVITY.index, default="PASS")
    guess_reasons, guesses_need_review = _describe_guesses(base, head)
    reasons = _unclassified_differences(base, head)
    status = worst_status
    if not configurations_only:
        if reasons and findings:
            status = "INVALID"
        elif worst_status == "PASS" and (guesses_need_review or reasons):
            status = "REVIEW"
    changes = changed_config(base, head)
    if status != worst_status:  # first, because they may be why the status is REVIEW
        reasons += guess_reasons
    is_same_program = _runs_same_program(base, head)
    has_program = base.program is not None or head.program is not None
    has_fingerprints = base.fingerprint is not None and head.fingerprint is not None
    is_unobserved = has_fingerprints and not is_same_program and not has_program
    unobserved = "FLOPs, memory and waits are not compared" if is_unobserved else ""
    if findings:
        if configurations_only:
            reasons.append("comparison of two configurations: differences are shown, not judged")
        reasons += [*list_reasons(findings, worst_status), *filter(None, [unobserved])]
    elif is_same_program:
        is_observed = base.program is not None and head.program is not None
        scope = "FLOPs, memory and host waits are judged apart" if is_observed else "waits of the host are not compared"
        reasons.append(f"device program identical: the same operators and collectives; {scope}")
    elif not has_fingerprints:
        reasons.append("same collectives; operators were not compared, because an arm has no fingerprint of them")
    else:
        sentence = "same collectives, but head runs other operators than base"
        reasons.append("; ".join(filter(None, (sentence, unobserved))))
    if status == worst_status:
        reasons += guess_reasons
    reasons += _incomparable_measures(base, head)
    reasons += (
        f"configuration differs: {key} is {base_value!r} in base, {head_value!r} in head"
        for key, (base_value, head_value) in changes.items()
    )
    has_fake_ranks = any(entry.via == "fake" for entry in base.entries)  # ranks that exchange no data
    world = f"{'fake ' if has_fake_ranks else ''}world of {base.world_size} ranks" if base.world_size else ""
    steps = "one steady step" if base.scope == "step" else f"{count(base.steps, 'step')} together"
    return Sharding(
        status=status,
        reasons=[clip_message(reason) for reason in reasons],
        findings=findings,
        base=_counts(base, head),
        head=_counts(head, base),
        source=clip_label(", ".join(filter(None, (base.source, world, steps)))),
        identical_program=is_same_program and not findings,
        wire=WireTime(base_s=wire_s(base, config.wire), head_s=wire_s(head, config.wire)),
        config_changes=changes,
    )


def _runs_same_program(base: Ledger, head: Ledger) -> bool:
    return base.fingerprint is not None and base.fingerprint == head.fingerprint


def _describe_guesses(base: Ledger, head: Ledger) -> tuple[list[str], bool]:
    """Return reasons that describe values which were guessed while counting, and whether a reviewer has to look at
    them: programs and guesses differ, so that equal counts may be a coincidence. ``HARMLESS_GUESSES`` decide no size.
    """
    guesses, size_guesses = (
        [
            sorted(guess for guess in ledger.guesses if ledger.guess_kinds.get(guess) not in ignored)
            for ledger in (base, head)
        ]
        for ignored in ((), HARMLESS_GUESSES)
    )
    if _runs_same_program(base, head) or not any(guesses):
        return [], False
    if base.scope == "step" and guesses[0] == guesses[1]:
        same = _list_guesses(guesses[0])
        return [f"sizes may depend on guessed values, which are the same in both arms: {same}"], False
    if base.scope == "step" and size_guesses[0] == size_guesses[1]:
        only_base, only_head = (_list_guesses(sorted({*own} - {*other})) for own, other in (guesses, guesses[::-1]))
        sentence = "assumptions of a healthy step differ between the arms, and no size depends on them"
        return [f"{sentence}: {only_base} only in base, {only_head} only in head"], False
    by_arm = f"{_list_guesses(guesses[0])} in base, {_list_guesses(guesses[1])} in head"
    return [f"sizes may depend on guessed values, which differ between the arms: {by_arm}"], True


def _unclassified_differences(base: Ledger, head: Ledger) -> list[str]:
    """Unclassified communication is a call without a kind of collective. The counts leave it out, so they can prove
    neither "unchanged" nor "removed"."""
    base_counts, head_counts = ({call.name: call.count for call in ledger.unclassified} for ledger in (base, head))
    differences = [
        f"{name} ({base_counts.get(name, 0)} in base, {head_counts.get(name, 0)} in head)"
        for name in sorted(base_counts | head_counts)
        if base_counts.get(name, 0) != head_counts.get(name, 0)
    ]
    calls = listed(differences, MAX_NAMED)
    return [f"unclassified communication differs, so the counts do not show what changed: {calls}"] if calls else []


def _incomparable_measures(base: Ledger, head: Ledger) -> Iterator[str]:
    # ``exposed_s`` is the time in which no compute overlaps a collective. None stands for unknown.
    is_known = [any(entry.exposed_s is not None for entry in ledger.entries) for ledger in (base, head)]
    if is_known[0] != is_known[1] and base.entries and head.entries:
        yield f"overlap not compared: not known in {'head' if is_known[0] else 'base'}"


def _list_guesses(guesses: list[str]) -> str:
    return listed([clip(guess, GUESS_CHARACTERS) for guess in guesses], MAX_NAMED, separator="; ") or "nothing"


def _counts(ledger: Ledger, other: Ledger) -> dict[Kind, RoleCounts]:
    kinds = dict.fromkeys((*ALWAYS_COUNTED, *sorted(entry.kind for entry in (*ledger.entries, *other.entries))))
    counts: Counter[tuple[Kind, Role]] = Counter()
    for entry in ledger.entries:
        counts[entry.kind, entry.role] += entry.count
    return {kind: RoleCounts(payload=counts[kind, "payload"], control=counts[kind, "control"]) for kind in kinds}
