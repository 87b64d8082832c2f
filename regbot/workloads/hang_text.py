"""Describe in one sentence why the ranks of a hung run wait, from what each rank recorded.

What the ranks wait for shows the likely cause of the hang:

    what the ranks do                                       likely cause
    one rank waits for no other rank, the others wait       this one rank
    ranks wait for each other                               they issue their collectives in different orders
    all ranks are in the same collective                    no rank; perhaps the network between the ranks

A rank has ``started`` if it recorded anything, and ``answered`` if it wrote its stacks at the time limit. Collectives
are numbered in each group from 1, and ``issued`` has the number that a rank has issued in each group.

The functions that return parts of the sentence share two parameters. ``pending`` has the collectives that ranks wait
in. ``with_hosts`` says that the ranks are on several hosts, so that the text names hosts.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations

from regbot.records.hang import Collective, RankHang

MAX_PLACES = 4
"""Largest number of places that the sentence lists if ranks are at different places."""
Pending = Mapping[int, Collective]
"""The collective that each rank waits in, by rank. Ranks that wait in none are left out."""
MAX_PARTS = 16
"""Largest number of ranks and ranges of ranks that the sentence lists at one place."""
SAME_BYTES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Kinds of collectives for which every rank must contribute the same number of bytes."""


def describe_waiting(ranks: Sequence[RankHang]) -> str:
    """Return the sentence that describes the hang; '' if no rank has recorded anything."""
    if not any(rank.started for rank in ranks):
        return ""
    with_hosts, pending = len({rank.host for rank in ranks}) > 1, _find_pending(ranks)
    # Each function returns '' if its cause does not apply. The clearest cause comes first.
    for describe in (
        _describe_missing,
        _describe_unjoined,
        _describe_different_order,
        _describe_late,
        _describe_common,
    ):
        if sentence := describe(ranks, pending, with_hosts):
            return sentence
    return f"no rank waits for another in a collective that Python issued: {_describe_places(ranks, with_hosts)}"


def describe_launched(ranks: Sequence[RankHang]) -> str:
    """Return which collective each rank launched last, according to torch's Flight Recorder.

    '' if no rank could read its Flight Recorder.
    """
    with_hosts = len({rank.host for rank in ranks}) > 1
    ranks_by_call: dict[str, list[RankHang]] = {}
    for rank in ranks:
        if rank.flight is not None:
            call = f"{_name_collective(rank.flight)} ({rank.flight.state})"
            ranks_by_call.setdefault(call, []).append(rank)
    calls = [f"{_name_ranks(members, with_hosts)} {call}" for call, members in ranks_by_call.items()][:MAX_PLACES]
    more = f", {len(ranks_by_call) - MAX_PLACES} more" if len(ranks_by_call) > MAX_PLACES else ""
    return f"last launched by torch's Flight Recorder: {', '.join(calls)}{more}" if calls else ""


def _describe_missing(ranks: Sequence[RankHang], pending: Pending, with_hosts: bool) -> str:
    """Describe ranks that have recorded nothing, and after them what the other ranks do."""
    missing = [rank for rank in ranks if not rank.started]
    if not missing:
        return ""
    subject = f"{_name_ranks(missing, with_hosts)} left no sign (never began, or its files have not arrived)"
    recorded = [rank for rank in ranks if rank.started]
    return f"{subject}; {_describe_others(recorded, pending, with_hosts)}"


def _describe_unjoined(ranks: Sequence[RankHang], _: Pending, with_hosts: bool) -> str:
    """Describe ranks that wait for other ranks to join the process group. A rank that has issued a collective has
    joined.
    """
    joining = [rank for rank in ranks if rank.joining]
    unjoined = [rank for rank in ranks if not rank.joining and not rank.issued]
    if not joining:
        return ""
    waiting = _describe_joining(joining, with_hosts)
    if not unjoined:
        return f"{waiting}: they do not reach each other"
    return f"{waiting}; {_describe_places(unjoined, with_hosts, 'has not joined')}"


def _describe_different_order(ranks: Sequence[RankHang], pending: Pending, with_hosts: bool) -> str:
    """Describe all collectives that ranks wait in, if two of the ranks block each other (see ``_are_deadlocked``)."""
    waiting = [rank for rank in ranks if rank.rank in pending]
    if not any(_are_deadlocked(rank, other, pending) for rank, other in permutations(waiting, 2)):
        return ""
    descriptions = [
        _describe_pending(collective, waiting, pending, with_hosts) for collective in _distinct_collectives(pending)
    ]
    return f"different collectives: {', '.join(descriptions[:MAX_PLACES])}"


def _are_deadlocked(rank: RankHang, other: RankHang, pending: Pending) -> bool:
    """Whether ``rank`` and ``other`` wait in different collectives, and neither can go on.

    There are two cases. In the first one, each of the two collectives needs both ranks, and neither rank has begun the
    collective that the other rank waits in. In the second one, the two ranks have issued collectives of different kinds
    in the same group under the same number, such as number 12 of ``ep``.
    """
    own_collective, other_collective = pending[rank.rank], pending[other.rank]
    if _is_same(own_collective, other_collective) or not _is_member(other, own_collective):
        return False
    neither_has_begun = (
        _is_member(rank, other_collective)
        and not _has_begun(other, own_collective)
        and not _has_begun(rank, other_collective)
    )
    return neither_has_begun or _has_other_kind(other, own_collective)


def _describe_late(ranks: Sequence[RankHang], pending: Pending, with_hosts: bool) -> str:
    """Describe ranks that wait in a collective which other ranks of the group have not begun.

    A late rank that itself waits in another collective is not the cause, so it is not named. If there are several such
    collectives, the one in which most ranks wait is described.
    """
    waiting: list[RankHang] = []
    late: list[RankHang] = []
    described: Collective | None = None
    for collective in _distinct_collectives(pending):
        waiting_here = _find_waiting(collective, ranks, pending)
        not_begun = [rank for rank in ranks if _is_member(rank, collective) and not _has_begun(rank, collective)]
        causes = [rank for rank in not_begun if rank.rank not in pending]
        if causes and (described is None or len(waiting_here) > len(waiting)):
            waiting, late, described = waiting_here, causes, collective
    if described is None:
        return ""
    wait = _describe_wait(waiting, described, with_hosts)
    return f"{wait}; {_describe_places(late, with_hosts, 'has not begun it')}"


def _describe_common(ranks: Sequence[RankHang], pending: Pending, with_hosts: bool) -> str:
    """Describe the collective that the first waiting rank waits in, and the ranks that may be the cause.

    If some ranks did not write their stacks, these ranks are described. Otherwise the ranks outside of the collective
    are described, if a rank of the group is outside or only one rank is inside. If all ranks of the group are in the
    collective, no rank is the cause. The text then names their sizes if these differ, or else the network.
    """
    waiting = [rank for rank in ranks if rank.rank in pending]
    if not waiting:
        return ""
    common = pending[waiting[0].rank]
    members = [rank for rank in ranks if _is_member(rank, common)]
    ranks_inside = _find_waiting(common, ranks, pending)
    silent = [rank for rank in ranks if not rank.answered]
    if silent and len(silent) < len(ranks):
        answering = [rank for rank in ranks if rank.answered]
        return f"{_describe_others(answering, pending, with_hosts)}; {_describe_places(silent, with_hosts)}"
    if len(ranks_inside) < len(members) or len(ranks_inside) < 2:
        outside = [rank for rank in ranks if rank not in ranks_inside]
        return f"{_describe_others(waiting, pending, with_hosts)}; {_describe_places(outside, with_hosts)}"
    sizes = {pending[rank.rank].bytes for rank in ranks_inside}
    if len(sizes) > 1 and common.kind in SAME_BYTES:
        sizes_text = ", ".join(f"rank {rank.rank} {pending[rank.rank].bytes} bytes" for rank in waiting[:MAX_PLACES])
        return f"all ranks are in the same collective {_name_collective(common)} with different sizes: {sizes_text}"
    subject = (
        "all ranks" if len(ranks_inside) == len(ranks) else f"all ranks of its group ({_format_numbers(ranks_inside)})"
    )
    return (
        f"{subject} are in the same collective {_name_collective(common)}{_format_duration(ranks_inside)}: "
        "one of them waits for the network"
    )


def _find_pending(ranks: Sequence[RankHang]) -> Pending:
    """Return the collective that each rank waits in, by rank.

    A rank waits in the collective that it is calling. Otherwise it may wait for the latest collective that it has
    launched on its device, if that is not yet complete. Sends and receives have no number and are left out.
    """
    pending: dict[int, Collective] = {}
    for rank in ranks:
        collective = rank.inside if rank.inside is not None else _find_launched(rank, ranks)
        if collective is not None and collective.number:
            pending[rank.rank] = collective
    return pending


def _find_launched(rank: RankHang, ranks: Sequence[RankHang]) -> Collective | None:
    """Return the latest collective that a rank has launched on its device, if the rank may wait for it.

    Such a collective is asynchronous: its call returns before the device has ended it. The device cannot end it while a
    rank of the group has not begun it. If all ranks have begun it, a rank whose Python is in the code under test (at
    ``code_frame``) is busy there and does not wait.
    """
    last = rank.last
    if last is None or not last.asynchronous:
        return None
    return last if rank.code_frame is None or _lacks_ranks(last, ranks) else None


def _distinct_collectives(pending: Pending) -> list[Collective]:
    """Return every collective that ranks wait in once."""
    return list({_key(collective): collective for collective in pending.values()}.values())


def _lacks_ranks(collective: Collective, ranks: Sequence[RankHang]) -> bool:
    """Whether a rank of the collective's group has not begun it."""
    return any(_is_member(rank, collective) and not _has_begun(rank, collective) for rank in ranks)


def _is_member(rank: RankHang, collective: Collective) -> bool:
    return rank.rank in collective.ranks


def _has_begun(rank: RankHang, collective: Collective) -> bool:
    return rank.issued.get(collective.group, 0) >= collective.number


def _is_same(a: Collective, b: Collective) -> bool:
    """Whether the notes of two ranks are of the same collective."""
    return _key(a) == _key(b)


def _key(collective: Collective) -> tuple[str, int, str]:
    return collective.group, collective.number, collective.kind


def _has_other_kind(rank: RankHang, collective: Collective) -> bool:
    """Whether the rank has issued a collective of another kind with the same number in the same group."""
    return any(
        recent.group == collective.group and recent.number == collective.number and recent.kind != collective.kind
        for recent in rank.recent
    )


def _find_waiting(collective: Collective, ranks: Iterable[RankHang], pending: Pending) -> list[RankHang]:
    """Return the ranks that wait in ``collective``."""
    return [rank for rank in ranks if rank.rank in pending and _is_same(pending[rank.rank], collective)]


def _describe_pending(collective: Collective, waiting: Iterable[RankHang], pending: Pending, with_hosts: bool) -> str:
    """Return the ranks that wait in ``collective``, and the line of code that called it."""
    waiting_here = _find_waiting(collective, waiting, pending)
    return f"{_name_ranks(waiting_here, with_hosts)} in {_name_collective(collective)}{_format_line(waiting_here[0])}"


def _describe_wait(waiting: Sequence[RankHang], collective: Collective, with_hosts: bool) -> str:
    """Describe the ranks ``waiting``, which all wait in ``collective``, with their module if it is the same."""
    # The call of an asynchronous collective returns before the device has ended it. Its ranks are then in no call.
    are_in_no_call = all(rank.inside is None for rank in waiting)
    if collective.asynchronous and are_in_no_call:
        verb = "has launched" if len(waiting) == 1 else "have launched"
    else:
        verb = f"wait{_verb_ending(waiting)} in"
    modules = {rank.module for rank in waiting if rank.module}
    module = f" ({modules.pop()})" if len(modules) == 1 else ""
    return (
        f"{_name_ranks(waiting, with_hosts)} {verb} {_name_collective(collective)}{module}{_format_duration(waiting)}"
    )


def _describe_joining(joining: Sequence[RankHang], with_hosts: bool) -> str:
    return f"{_name_ranks(joining, with_hosts)} wait{_verb_ending(joining)} for all ranks to join"


def _describe_others(ranks: Sequence[RankHang], pending: Pending, with_hosts: bool) -> str:
    """Describe what ``ranks`` do. These ranks are not the likely cause of the hang.

    If some of them wait for others to join, only this is described. If some wait in collectives, only the collective
    of the first waiting rank is described.
    """
    waiting = [rank for rank in ranks if rank.rank in pending]
    if joining := [rank for rank in ranks if rank.joining]:
        return _describe_joining(joining, with_hosts)
    if waiting:
        collective = pending[waiting[0].rank]
        return _describe_wait(_find_waiting(collective, waiting, pending), collective, with_hosts)
    return _describe_places(ranks, with_hosts)


def _describe_places(ranks: Sequence[RankHang], with_hosts: bool, missing: str = "") -> str:
    """Describe where ranks are, such as ``ranks 1, 2 are in train.py:12 main``. Ranks in the same line of code are
    described together.

    ``missing`` says what each of these ranks has not done, such as 'has not joined'. The example is then ``ranks 1, 2
    have not joined: they are in train.py:12 main``. '' leaves this out.
    """
    ranks_by_place: dict[str, list[RankHang]] = {}
    for rank in ranks:
        ranks_by_place.setdefault(_describe_place(rank), []).append(rank)
    descriptions = []
    for place, members in list(ranks_by_place.items())[:MAX_PLACES]:
        if len(members) == 1:
            transition = f"{missing}: it " if missing else ""
            descriptions.append(f"{_name_ranks(members, with_hosts)} {transition}{place}")
        else:
            transition = f"{missing.replace('has', 'have', 1)}: they " if missing else ""
            descriptions.append(f"{_name_ranks(members, with_hosts)} {transition}{_plural(place)}")
    more = f"; {len(ranks_by_place) - MAX_PLACES} more places" if len(ranks_by_place) > MAX_PLACES else ""
    return "; ".join(descriptions) + more


def _describe_place(rank: RankHang) -> str:
    """Return where a rank is, as the end of a sentence whose subject is the rank. Prefer the code under test."""
    if not rank.started:
        return "left no sign"
    if not rank.answered:
        last = f", after {_name_collective(rank.last)}" if rank.last is not None else ""
        return f"did not write its stacks in time (it is stopped, or its node hangs){last}"
    innermost_frame = rank.frames[0] if rank.frames else None
    frame = rank.code_frame or innermost_frame
    module = f" ({rank.module})" if rank.module else ""
    if frame is None:
        return f"is in code of the launcher or of regbot{module}"
    return f"is in {frame.file}:{frame.line} {frame.function}{module}"


def _plural(place: str) -> str:
    """Return the text of ``_describe_place`` for several ranks."""
    return place.replace("is in", "are in", 1) if place.startswith("is in") else place.replace("its", "their")


def _format_line(rank: RankHang) -> str:
    """Return the rank's line in the code under test, in parentheses; '' if it is unknown."""
    frame = rank.code_frame
    return f" ({frame.file}:{frame.line} {frame.function})" if frame is not None else ""


def _name_collective(collective: Collective) -> str:
    """Return for example ``all_to_all #12 of ep``. The group's ranks are left out."""
    group = collective.group.partition(" [")[0]
    number = f" #{collective.number}" if collective.number else ""
    return f"{collective.kind}{number} of {group}" if group else f"{collective.kind}{number}"


def _format_duration(waiting: Sequence[RankHang]) -> str:
    """Return how long the rank that began to wait first has been waiting; '' if it is unknown."""
    known = [rank.inside_s for rank in waiting if rank.inside_s is not None]
    return f" since {max(known):.3g} s" if known else ""


def _name_ranks(ranks: Sequence[RankHang], with_hosts: bool) -> str:
    """Return for example ``rank 3 (node-2)`` or ``ranks 0, 1``. ``with_hosts``: name the host of the ranks if they all
    have the same one.
    """
    if len(ranks) == 1:
        rank = ranks[0]
        return f"rank {rank.rank} ({rank.host})" if with_hosts and rank.host else f"rank {rank.rank}"
    hosts = {rank.host for rank in ranks if rank.host}
    host_note = f" (all on {hosts.pop()})" if with_hosts and len(hosts) == 1 else ""
    return f"ranks {_format_numbers(ranks)}{host_note}"


def _format_numbers(ranks: Sequence[RankHang]) -> str:
    """Format rank numbers as ``0, 2, 3``. Four or more consecutive ranks are written as a range, such as ``0-62``."""
    consecutive: list[list[int]] = []  # first and last rank of each group of consecutive ranks
    for rank in ranks:
        if consecutive and rank.rank == consecutive[-1][1] + 1:
            consecutive[-1][1] = rank.rank
        else:
            consecutive.append([rank.rank, rank.rank])
    parts = [
        ", ".join(map(str, range(first, last + 1))) if last - first < 3 else f"{first}-{last}"
        for first, last in consecutive
    ]
    return ", ".join(parts[:MAX_PARTS]) + (", ..." if len(parts) > MAX_PARTS else "")


def _verb_ending(ranks: Sequence[RankHang]) -> str:
    """Return the ending of a verb whose subject is ``ranks``."""
    return "s" if len(ranks) == 1 else ""
