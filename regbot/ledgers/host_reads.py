"""The patterns "host reads added" and "host reads removed".

Each ``.item()``, ``.tolist()`` or branch on a tensor stops the host until the device has computed the value, and the
queue of kernel launches runs empty. The static trace counts the reads exactly, but only a timed run can measure their
cost. So the status is at most REVIEW. Waits that read no value are not counted, nor the optimizer's reads of its own
step counters, which are on the host."""

from collections import Counter
from collections.abc import Sequence

from regbot.ledgers import catalogue as names
from regbot.ledgers.rows import MAX_MODULES, template
from regbot.records.ledger import Ledger
from regbot.records.verdict import Finding, Status


def find_host_read_changes(base: Ledger, head: Ledger, exchange_patterns: Sequence[str] = ()) -> list[Finding]:
    """Return at most one finding, which says that the host reads more values or fewer values. The list is empty if the
    total is the same, or if one ledger does not know its host reads. ``exchange_patterns`` are the patterns of findings
    on the token exchange. A changed token exchange also changes the host reads. So if ``exchange_patterns`` is not
    empty, the status of this finding is PASS, and the findings on the exchange decide."""
    if base.host_reads is None or head.host_reads is None:
        return []
    before, after = _count_by_template(base.host_reads), _count_by_template(head.host_reads)
    if before.total() == after.total():  # modules were renamed or reads moved, but the host waits equally often
        return []
    added, removed = after - before, before - after  # a difference of Counters keeps the positive counts only
    reads_rise = after.total() > before.total()
    pattern, changed_reads = (names.HOST_READS_ADDED, added) if reads_rise else (names.HOST_READS_REMOVED, removed)
    status: Status = "REVIEW" if reads_rise and not exchange_patterns else "PASS"
    modules = [name or "the model itself" for name, _ in changed_reads.most_common(MAX_MODULES)]
    text = (
        f"The host now reads from the device {after.total()} times per step, {before.total()} times before, in "
        f"{', '.join(modules)}. A read (.item(), .tolist() or a branch on a tensor) stops the host until the device "
        "has computed the value."
    )
    if exchange_patterns:
        text += f" The token exchange changed too and decides: {', '.join(exchange_patterns)}."
    return [
        Finding(
            pattern=pattern,
            status=status,
            axis="host",  # stands in place of a mesh axis
            base={},  # host reads are no collectives, so there is no traffic
            head={},
            text=text,
            modules=list(changed_reads)[:MAX_MODULES],
        )
    ]


def _count_by_template(reads: dict[str, int]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for module, count in reads.items():
        counts[template(module)] += count
    return counts
