"""Compare two ledgers and build the sharding section of a verdict."""

from collections import Counter
from collections.abc import Iterable, Iterator

from regbot.errors import UserError
from regbot.judge.expectations import Expectation, accept
from regbot.judge.validity import changed_config, not_comparable
from regbot.ledgers.patterns import DispatcherChange, compare_ledgers
from regbot.ledgers.rows import sum_by_kind
from regbot.ledgers.wire import wire_s
from regbot.records.config import Config
from regbot.records.ledger import GuessKind, Kind, Ledger
from regbot.records.text.clip import clip, clip_label, clip_message
from regbot.records.text.words import count, listed
from regbot.records.verdict import Finding, RoleCounts, Sharding, Status, WireTime

ALWAYS_COUNTED: tuple[Kind, ...] = ("all_to_all", "all_gather", "reduce_scatter")
"""Kinds whose counts are always shown, even if they are 0."""
SEVERITY: tuple[Status, ...] = ("FAIL", "REVIEW", "PASS")
"""Statuses of findings, the worst first."""
HARMLESS_GUESSES: tuple[GuessKind, ...] = ("finite", "assertion")
"""Guesses that decide no size. For example, a trace guesses that the gradient norm is finite. If this guess is wrong in
a real step, the step is skipped or crashes, so the guess changes no amount of data."""
MAX_NAMED = 3
"""A reason names at most this many guesses or unclassified calls. Each guess is clipped to ``GUESS_CHARACTERS``."""
GUESS_CHARACTERS = 300


class NotComparable(UserError):
    """Two ledgers were counted in different ways, or cover different work."""


def judge_ledgers(base: Ledger, head: Ledger, config: Config) -> Sharding:
    """Return the sharding section of two ledgers whose runs are not known, for ``ledger diff``. Raises
    NotComparable."""
    if reason := not_comparable(base, head):
        raise NotComparable(f"the two ledgers {reason}", "count both in the same way")
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
    """Return the sharding section of two comparable ledgers.

    Findings of ``workload`` that ``expectations`` cover are accepted. ``configurations_only`` means that both arms have
    the same commit with different overrides. A difference is then the wanted result and not a regression.
    ``dispatcher`` is given if both arms request the same dispatcher and only one of them executes it, else None.

    The status is that of the worst finding, PASS without findings. If unclassified communication differs between the
    arms, the status is INVALID if there are findings, else REVIEW. Guesses that differ turn PASS into REVIEW. If the
    ledgers cover a whole file and not one step, every finding that is not accepted is REVIEW.
    """
    findings = accept(compare_ledgers(base, head, config.sharding, config.wire, dispatcher), expectations, workload)
    if configurations_only:
        findings = [finding.model_copy(update={"status": "PASS"}) for finding in findings]
    # "whole": the counts are those of a whole file. Its number of steps is unknown, so different counts prove nothing.
    if base.scope == "whole":
        findings = [
            finding if finding.accepted else finding.model_copy(update={"status": "REVIEW"}) for finding in findings
        ]
    # ``program`` is the fingerprint of all operators; None if it is unknown.
    is_identical = not findings and base.program is not None and base.program == head.program
    finding_statuses = {finding.status for finding in findings}
    worst_status: Status = next((severity for severity in SEVERITY if severity in finding_statuses), "PASS")
    guess_reasons, guesses_need_review = _describe_guesses(base, head)
    unclassified_reasons = _unclassified_differences(base, head)
    status = worst_status
    if not configurations_only:
        if unclassified_reasons and findings:
            status = "INVALID"
        elif worst_status == "PASS" and (guesses_need_review or unclassified_reasons):
            status = "REVIEW"
    changes = changed_config(base, head)
    configurations_note = ["comparison of two configurations: differences are shown, not judged"]
    reasons = [
        *unclassified_reasons,
        *(guess_reasons if status != worst_status else []),  # first, because they may be why the status is REVIEW
        *([_describe_no_findings(base, head, is_identical)] if not findings else []),
        *(configurations_note if configurations_only and findings else []),
        *(_describe_finding(finding) for finding in findings if finding.status == worst_status),
        *(guess_reasons if status == worst_status else []),
        *_incomparable_measures(base, head),
        *(
            f"configuration differs: {key} is {base_value!r} in base, {head_value!r} in head"
            for key, (base_value, head_value) in changes.items()
        ),
    ]
    return Sharding(
        status=status,
        reasons=[clip_message(reason) for reason in reasons],
        findings=findings,
        base=_counts(base, head),
        head=_counts(head, base),
        source=_describe_source(base),
        identical_program=is_identical,
        wire=WireTime(base_s=wire_s(base, config.wire), head_s=wire_s(head, config.wire)),
        config_changes=changes,
    )


def _describe_no_findings(base: Ledger, head: Ledger, is_identical: bool) -> str:
    """Return the reason for a section without findings. ``is_identical``: both device programs are identical."""
    if is_identical:
        return "device program identical: both arms run the same operators and collectives"
    if base.program is None or head.program is None:
        return "same collectives; operators were not compared, because an arm has no fingerprint of them"
    return "same collectives, but head runs other operators than base"


def _describe_guesses(base: Ledger, head: Ledger) -> tuple[list[str], bool]:
    """Return reasons that describe values which were guessed while counting, and whether a reviewer has to look at
    them.

    If both device programs are identical, guesses do not matter. If the programs differ, a guess may have decided a
    size. If the guesses differ too, equal counts may be a coincidence, so a reviewer has to look at them. Differences
    in ``HARMLESS_GUESSES`` alone need no reviewer, because these guesses decide no size. If the ledgers cover a whole
    run instead of one step (``scope``), a reviewer has to look at any guess.
    """
    base_guesses, head_guesses = sorted(base.guesses), sorted(head.guesses)
    same_program = base.program is not None and base.program == head.program
    has_guesses = bool(base_guesses or head_guesses)
    if same_program or not has_guesses:
        return [], False
    size_guesses_agree = _list_size_guesses(base) == _list_size_guesses(head)
    if base_guesses != head_guesses and size_guesses_agree and base.scope == "step":
        only_base = sorted({*base_guesses} - {*head_guesses})
        only_head = sorted({*head_guesses} - {*base_guesses})
        by_arm = f"{_list_guesses(only_base)} only in base, {_list_guesses(only_head)} only in head"
        return [f"assumptions of a healthy step differ between the arms, and no size depends on them: {by_arm}"], False
    if base_guesses == head_guesses and base.scope == "step":
        return [
            f"sizes may depend on guessed values, which are the same in both arms: {_list_guesses(base_guesses)}"
        ], False
    guesses_by_arm = f"{_list_guesses(base_guesses)} in base, {_list_guesses(head_guesses)} in head"
    return [f"sizes may depend on guessed values, which differ between the arms: {guesses_by_arm}"], True


def _unclassified_differences(base: Ledger, head: Ledger) -> list[str]:
    """Return a reason if unclassified communication differs between the arms, else [].

    Unclassified communication is a call that regbot cannot assign to a kind of collective. The counts leave it out, so
    they can prove neither "unchanged" nor "removed".
    """
    base_counts = Counter({call.name: call.count for call in base.unclassified})
    head_counts = Counter({call.name: call.count for call in head.unclassified})
    if base_counts == head_counts:
        return []
    names = sorted(name for name in base_counts.keys() | head_counts.keys() if base_counts[name] != head_counts[name])
    differences = listed(
        [f"{name} ({base_counts[name]} in base, {head_counts[name]} in head)" for name in names], MAX_NAMED
    )
    return [f"unclassified communication differs, so the counts do not show what changed: {differences}"]


def _incomparable_measures(base: Ledger, head: Ledger) -> Iterator[str]:
    """Yield a sentence for each measure that is known in one arm only and was therefore not compared."""
    # ``exposed_s`` is the time in which no compute overlaps a collective. None stands for unknown in both measures.
    known_by_arm = {
        "reads of the host": [ledger.host_reads is not None for ledger in (base, head)],
        "overlap": [any(entry.exposed_s is not None for entry in ledger.entries) for ledger in (base, head)],
    }
    for measure, (is_known_in_base, is_known_in_head) in known_by_arm.items():
        if is_known_in_base != is_known_in_head and base.entries and head.entries:
            yield f"{measure} not compared: not known in {'head' if is_known_in_base else 'base'}"


def _list_size_guesses(ledger: Ledger) -> list[str]:
    """Return the guesses of ``ledger`` that may have decided a size, sorted."""
    return sorted(guess for guess in ledger.guesses if ledger.guess_kinds.get(guess) not in HARMLESS_GUESSES)


def _list_guesses(guesses: list[str]) -> str:
    return listed([clip(guess, GUESS_CHARACTERS) for guess in guesses], MAX_NAMED, separator="; ") or "nothing"


def _describe_finding(finding: Finding) -> str:
    if finding.accepted is not None:
        return f"{finding.pattern}, accepted: {finding.accepted}"
    return f"{finding.pattern}: {finding.text}"


def _counts(ledger: Ledger, other: Ledger) -> dict[Kind, RoleCounts]:
    """Return the number of calls in ``ledger`` by kind of collective. The kinds are those of both ledgers and those
    that are always shown, so that both arms have the same rows."""
    payload = sum_by_kind(ledger, lambda entry: entry.role == "payload")
    control = sum_by_kind(ledger, lambda entry: entry.role == "control")
    kinds = dict.fromkeys((*ALWAYS_COUNTED, *sorted({entry.kind for entry in (*ledger.entries, *other.entries)})))
    return {
        kind: RoleCounts(
            payload=payload[kind].count if kind in payload else 0,
            control=control[kind].count if kind in control else 0,
        )
        for kind in kinds
    }


def _describe_source(ledger: Ledger) -> str:
    """Return how a ledger was counted, such as 'dispatch-mode, fake world of 16 ranks, one steady step'."""
    has_fake_ranks = any(entry.via == "fake" for entry in ledger.entries)  # ranks that exchange no data
    world = f"{'fake ' if has_fake_ranks else ''}world of {ledger.world_size} ranks" if ledger.world_size else ""
    steps_text = "one steady step" if ledger.scope == "step" else f"{count(ledger.steps, 'step')} together"
    return clip_label(", ".join(part for part in (ledger.source, world, steps_text) if part))
