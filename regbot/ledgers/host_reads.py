"""Values that the host waits for: more of them, or fewer, than before.

Each ``.item()``, ``.tolist()`` or branch on a tensor stops the host until the device has computed the value, and the
launch queue runs dry. No collective shows it, and one such read in every layer has cost real training stacks more than
a lost collective would. Counted by the same trace as the collectives, exact, without a GPU; what it costs, only a timed
run can tell, so it is never more than a reason to look. Waits that no value is read by (an event, a synchronize) are
not seen, and the optimizer's reads of its own step counters, which live on the host, are left out.
"""

from collections import Counter
from collections.abc import Sequence

from regbot.ledgers.catalogue import HOST_READS_ADDED, HOST_READS_REMOVED
from regbot.ledgers.rows import template
from regbot.records.ledger import Ledger
from regbot.records.verdict import Finding, Status

SHOWN = 5


def host_reads(base: Ledger, head: Ledger, exchanges: Sequence[str] = ()) -> list[Finding]:
    """At most one finding: the host reads more values, or fewer. Where a change of the token exchange is found
    (``exchanges``, its patterns), reads come and go with it, and it is that finding which is judged."""
    if base.host_reads is None or head.host_reads is None:
        return []
    before, after = _by_template(base.host_reads), _by_template(head.host_reads)
    if before.total() == after.total():  # modules that were renamed, or reads that moved: as many waits as before
        return []
    added, removed = after - before, before - after
    more = after.total() > before.total()
    pattern, changed = (HOST_READS_ADDED, added) if more else (HOST_READS_REMOVED, removed)
    status: Status = "REVIEW" if more and not exchanges else "PASS"
    places = [name or "the model itself" for name, _ in changed.most_common(SHOWN)]
    text = (
        f"The host reads {after.total()} values of a step from the device where it read {before.total()} (.item(), "
        f".tolist() or a branch on a tensor), in {', '.join(places)}; each stops it until the device has caught up."
    )
    if exchanges:
        text += f" It comes with another finding: {', '.join(exchanges)}."
    return [
        Finding(pattern=pattern, status=status, axis="host", base={}, head={}, text=text, modules=list(changed)[:SHOWN])
    ]


def _by_template(reads: dict[str, int]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for where, count in reads.items():
        counted[template(where)] += count
    return counted
