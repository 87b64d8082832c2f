"""Compare the ledgers of a session with the stored ledgers of main.

Only the comparison with base can change the verdict. If the stored ledger was traced from the same git tree as base,
the cause of a difference is other software (torch or XLA), not the pull request, and a PASS becomes REVIEW. If it has
another tree, a merged change may be the cause, and the difference is only a warning.
"""

from regbot.baselines.intake import environment_of
from regbot.judge.sharding import judge_sharding
from regbot.judge.stored_times import find_age_days
from regbot.judge.validity import not_comparable
from regbot.records.config import Config
from regbot.records.ledger import DEFAULT_PAPER_GPU, Ledger
from regbot.records.run import Run
from regbot.records.session import SessionHeader, StoredTrace
from regbot.records.text.clip import clip_message, short_commit
from regbot.records.verdict import Sharding, StoredCollectives


def compare_with_stored(
    sharding: Sharding, base: Run, header: SessionHeader, config: Config
) -> tuple[Sharding, list[str]]:
    """Return ``sharding``, in which a PASS may have become REVIEW, and warnings."""
    trace, reason, patterns = _compare(header, base, config)
    if trace is None or base.ledger is None or not (reason or patterns):
        return sharding, []
    name = f"the stored ledger of {short_commit(trace.commit)} ({trace.environment.framework or 'unknown software'})"
    if reason:
        is_outdated = _counting_method(trace.ledger) != _counting_method(base.ledger)
        advice = "; replace it with 'regbot baseline refresh'" if is_outdated else ""
        return sharding, [f"{name} and base's ledger cannot be compared: they {reason}{advice}"]
    names = ", ".join(patterns)
    if trace.tree != base.arm.tree:
        return sharding, [f"{name} differs from base: {names}; refresh the stored ledgers if this change was merged"]
    warning = (
        f"base differs from the stored ledger of the same tree: {names}; the cause is other software, not this pull "
        f"request ({name}; {environment_of(base).framework or 'other software'} here)"
    )
    status = "REVIEW" if sharding.status == "PASS" else sharding.status
    return sharding.model_copy(update={"status": status, "reasons": [*sharding.reasons, clip_message(warning)]}), []


def compare_head_with_stored(header: SessionHeader, head: Run, config: Config) -> StoredCollectives | None:
    """None if there is no stored ledger of this workload, or if head has overrides, which no stored ledger has."""
    trace, reason, patterns = _compare(header, head, config)
    if trace is None or header.head.overrides:
        return None
    return StoredCollectives(
        commit=trace.commit,
        age_days=find_age_days(trace.measured, header),
        patterns=patterns,
        reason=clip_message(f"they {reason}") if reason else "",
    )


def _compare(header: SessionHeader, run: Run, config: Config) -> tuple[StoredTrace | None, str, list[str]]:
    """Return the stored trace of a run's workload if both have a ledger, why the ledgers cannot be compared ('' if they
    can), and the patterns that differ."""
    trace = next((trace for trace in header.stored if trace.entry == run.workload), None)
    if trace is None or run.ledger is None:
        return None, "", []
    if reason := not_comparable(trace.ledger, run.ledger, ("the stored ledger", run.arm.name)):
        return trace, reason, []
    findings = judge_sharding(trace.ledger, run.ledger, config, workload=run.workload).findings
    return trace, "", list(dict.fromkeys(finding.pattern for finding in findings))


def _counting_method(ledger: Ledger) -> tuple[str, str | None, str]:
    """Return how a ledger was counted: its source, its device, and the paper GPU."""
    return ledger.source, ledger.device, ledger.gpu or DEFAULT_PAPER_GPU
