"""Compare the stored ledger of main with the new ledgers of base and head.

Only the comparison with base can change the verdict. If the stored ledger was traced from the same git tree as base,
the cause of a difference is other software (torch or XLA), not the pull request, and a PASS becomes REVIEW. If it has
another tree, a merged change may be the cause, and the difference is only a warning.
"""

from collections.abc import Sequence

from regbot.baselines.intake import environment_of
from regbot.judge.references import find_age_days
from regbot.judge.sharding import judge_sharding
from regbot.judge.validity import not_comparable
from regbot.records.config import Config
from regbot.records.ledger import DEFAULT_PAPER_GPU, Ledger
from regbot.records.run import Run
from regbot.records.session import SessionHeader, StoredTrace
from regbot.records.text.clip import clip_message, short_commit
from regbot.records.verdict import Sharding, StoredCollectives


def compare_with_stored(
    sharding: Sharding, base: Run, stored: Sequence[StoredTrace], config: Config
) -> tuple[Sharding, list[str]]:
    """Return ``sharding``, in which a PASS may have become REVIEW, and warnings."""
    stored_trace = _find_trace(stored, base)
    if stored_trace is None or base.ledger is None:
        return sharding, []
    stored_name = f"the stored ledger of {short_commit(stored_trace.commit)} ({_describe_framework(stored_trace)})"
    if reason := not_comparable(stored_trace.ledger, base.ledger, ("the stored ledger", "base")):
        is_outdated = _counting_method(stored_trace.ledger) != _counting_method(base.ledger)
        advice = "; replace it with 'regbot baseline refresh'" if is_outdated else ""
        return sharding, [f"{stored_name} and base's ledger cannot be compared: they {reason}{advice}"]
    comparison = judge_sharding(stored_trace.ledger, base.ledger, config, workload=base.workload)
    if not comparison.findings:
        return sharding, []
    names = ", ".join(dict.fromkeys(finding.pattern for finding in comparison.findings))
    if stored_trace.tree != base.arm.tree:
        return sharding, [
            f"{stored_name} differs from base: {names}; refresh the stored ledgers if this change was merged"
        ]
    warning = (
        f"base differs from the stored ledger of the same tree: {names}; the cause is other software, not this pull "
        f"request ({stored_name}; {_describe_software(base)} here)"
    )
    status = "REVIEW" if sharding.status == "PASS" else sharding.status
    return sharding.model_copy(update={"status": status, "reasons": [*sharding.reasons, clip_message(warning)]}), []


def compare_head_with_stored(header: SessionHeader, head: Run, config: Config) -> StoredCollectives | None:
    """None if there is no stored ledger of this workload, or if head has overrides, which no stored ledger has."""
    stored_trace = _find_trace(header.stored, head)
    if stored_trace is None or head.ledger is None or header.head.overrides:
        return None
    reason = not_comparable(stored_trace.ledger, head.ledger, ("the stored ledger", "head"))
    comparison = None if reason else judge_sharding(stored_trace.ledger, head.ledger, config, workload=head.workload)
    findings = comparison.findings if comparison is not None else []
    return StoredCollectives(
        commit=stored_trace.commit,
        age_days=find_age_days(stored_trace.measured, header),
        patterns=list(dict.fromkeys(finding.pattern for finding in findings)),
        reason=clip_message(f"they {reason}") if reason else "",
    )


def _counting_method(ledger: Ledger) -> tuple[str, str | None, str]:
    """Return how a ledger was counted: its source, its device, and the paper GPU."""
    return ledger.source, ledger.device, ledger.gpu or DEFAULT_PAPER_GPU


def _find_trace(stored: Sequence[StoredTrace], run: Run) -> StoredTrace | None:
    return next((trace for trace in stored if trace.entry == run.workload), None)


def _describe_framework(stored: StoredTrace) -> str:
    return stored.environment.framework or "unknown software"


def _describe_software(base: Run) -> str:
    return environment_of(base).framework or "other software"
