"""Describe in one sentence why the ranks of a hung run wait, from what each rank recorded.

What the ranks wait for shows the likely cause:

    one rank waits for no other rank    this rank
    ranks wait for each other           the ranks issue their collectives in different orders
    all ranks are in one collective     no rank, but perhaps the network between the ranks
"""

from collections.abc import Iterable, Mapping, Sequence

from regbot.records.hang import Collective, RankHang

MAX_PLACES = 4
"""Largest number of places that the sentence lists if ranks are at different places."""
Pending = Mapping[int, Collective]
"""The collective that each rank waits in, by rank."""
SAME_BYTES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Kinds of collectives for which every rank must contribute the same number of bytes."""


def describe_waiting(ranks: Sequence[RankHang]) -> str:
    """Return the sentence that describes the hang; '' if no rank has recorded anything."""
    recorded = [rank for rank in ranks if rank.started]
    if not recorded:
        return ""
    with_hosts, pending = len({rank.host for rank in ranks}) > 1, _find_pending(ranks)
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
    """Return which collective each rank launched last, by torch's Flight Recorder; '' if no rank could read it."""
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
    missing = [rank for rank in ranks if not rank.started]
    if not missing:
        return ""
    subject = f"{_name_ranks(missing, with_hosts)} left no sign (never began, or its files have not arrived)"
    return f"{subject}; {_describe_others([rank for rank in ranks if rank.started], pending, with_hosts)}"


def _describe_unjoined(ranks: Sequence[RankHang], _: Pending, with_hosts: bool) -> str:
    joining = [rank for rank in ranks if rank.joining]
    others = [rank for rank in ranks if not rank.joining and not rank.issued]
    if not joining:
        return ""
    if not others:
        return (
            f"{_name_ranks(joining, with_hosts)} wait{_verb_ending(joining)} for all ranks to join: "
            "they do not reach each other"
        )
    waiting = f"{_name_ranks(joining, with_hosts)} wait{_verb_ending(joining)} for all ranks to join"
    return f"{waiting}; {_describe_places(others, with_hosts, 'has not joined')}"


def _describe_different_order(ranks: Sequence[RankHang], pending: Pending, with_hosts: bool) -> str:
    """Describe two ranks that wait in different collectives, so that neither can go on.

    Either each rank has not begun the collective that the other one waits in, or both ranks have issued the same number
    of collectives in a group and the last ones are of different kinds.
    """
    waiting = [rank for rank in ranks if rank.rank in pending]
    for rank in waiting:
        own = pending[rank.rank]
        for other in waiting:
            other_collective = pending[other.rank]
            if other is rank or not _is_member(other, own) or _is_same(own, other_collective):
                continue
            is_deadlock = (
                not _has_begun(other, own)
                and not _has_begun(rank, other_collective)
                and _is_member(rank, other_collective)
            )
            if is_deadlock or _has_other_kind(other, own):
                collectives = {_key(collective): collective for collective in pending.values()}.values()
                descriptions = [
                    _describe_pending(collective, waiting, pending, with_hosts) for collective in collectives
                ][:MAX_PLACES]
                return f"different collectives: {', '.join(descriptions)}"
    return ""


def _describe_late(ranks: Sequence[RankHang], pending: Pending, with_hosts: bool) -> str:
    """Describe ranks that wait in a collective which other ranks of the group have not begun."""
    best: tuple[list[RankHang], list[RankHang], Collective] | None = None
    for collective in {_key(collective): collective for collective in pending.values()}.values():
        inside = _find_waiting(collective, ranks, pending)
        absent = [rank for rank in ranks if _is_member(rank, collective) and not _has_begun(rank, collective)]
        # Absent ranks that wait in another collective are not the root cause.
        root = [rank for rank in absent if rank.rank not in pending]
        if root and (best is None or len(inside) > len(best[0])):
            best = inside, root, collective
    if best is None:
        return ""
    inside, late, collective = best
    return f"{_describe_wait(inside, collective, with_hosts)}; {_describe_places(late, with_hosts, 'has not begun it')}"


def _describe_common(ranks: Sequence[RankHang], pending: Pending, with_hosts: bool) -> str:
    inside = [(rank, pending[rank.rank]) for rank in ranks if rank.rank in pending]
    if not inside:
        return ""
    first = inside[0][1]
    members = [rank for rank in ranks if _is_member(rank, first)]
    same = [rank for rank, c in inside if _is_same(c, first)]
    silent = [rank for rank in ranks if not rank.answered]
    if silent and len(silent) < len(ranks):
        others = [rank for rank in ranks if rank.answered]
        return f"{_describe_others(others, pending, with_hosts)}; {_describe_places(silent, with_hosts)}"
    if len(same) < len(members) or len(same) < 2:
        return (
            f"{_describe_others([rank for rank, _ in inside], pending, with_hosts)}; "
            f"{_describe_places([rank for rank in ranks if rank not in same], with_hosts)}"
        )
    sizes = {c.bytes for _, c in inside if _is_same(c, first)}
    if len(sizes) > 1 and first.kind in SAME_BYTES:
        sizes_text = ", ".join(f"rank {rank.rank} {c.bytes} bytes" for rank, c in inside[:MAX_PLACES])
        return f"all ranks are in the same collective {_name_collective(first)} with different sizes: {sizes_text}"
    subject = "all ranks" if len(same) == len(ranks) else f"all ranks of its group ({_format_numbers(same)})"
    return (
        f"{subject} are in the same collective {_name_collective(first)}{_format_duration(same)}: "
        "one of them waits for the network"
    )


def _find_pending(ranks: Sequence[RankHang]) -> Pending:
    """Return the collective that each rank waits in, by rank. Ranks that wait in none are left out.

    This is the collective that the rank is calling. If the rank is calling none, this is the latest collective that it
    has launched on its device. The device cannot end it before all ranks have begun it. If all have, a rank in the code
    under test does not wait for it.
    """
    pending: dict[int, Collective] = {}
    for rank in ranks:
        last = rank.last
        if rank.inside is not None:
            collective = rank.inside
        elif last is not None and last.asynchronous and (rank.code_frame is None or _lacks_ranks(last, ranks)):
            collective = last
        else:
            continue
        if collective.number:
            pending[rank.rank] = collective
    return pending


def _lacks_ranks(collective: Collective, ranks: Sequence[RankHang]) -> bool:
    """Whether a rank of the collective's group has not begun it."""
    return any(_is_member(rank, collective) and not _has_begun(rank, collective) for rank in ranks)


def _is_member(rank: RankHang, collective: Collective) -> bool:
    return rank.rank in collective.ranks


def _has_begun(rank: RankHang, collective: Collective) -> bool:
    return rank.issued.get(collective.group, 0) >= collective.number


def _is_same(a: Collective, b: Collective) -> bool:
    return _key(a) == _key(b)


def _key(collective: Collective) -> tuple[str, int, str]:
    return collective.group, collective.number, collective.kind


def _has_other_kind(rank: RankHang, collective: Collective) -> bool:
    return any(
        recent.group == collective.group and recent.number == collective.number and recent.kind != collective.kind
        for recent in rank.recent
    )


def _find_waiting(collective: Collective, ranks: Iterable[RankHang], pending: Pending) -> list[RankHang]:
    """Return the ranks that wait in ``collective``."""
    return [rank for rank in ranks if rank.rank in pending and _is_same(pending[rank.rank], collective)]


def _describe_pending(collective: Collective, waiting: Iterable[RankHang], pending: Pending, with_hosts: bool) -> str:
    inside = _find_waiting(collective, waiting, pending)
    return f"{_name_ranks(inside, with_hosts)} in {_name_collective(collective)}{_format_line(inside[0])}"


def _describe_wait(inside: Sequence[RankHang], collective: Collective, with_hosts: bool) -> str:
    launched = collective.asynchronous and all(rank.inside is None for rank in inside)
    verb = f"ha{'s' if len(inside) == 1 else 've'} launched" if launched else f"wait{_verb_ending(inside)} in"
    modules = {rank.module for rank in inside if rank.module}
    module = f" ({modules.pop()})" if len(modules) == 1 else ""
    return f"{_name_ranks(inside, with_hosts)} {verb} {_name_collective(collective)}{module}{_format_duration(inside)}"


def _describe_others(ranks: Sequence[RankHang], pending: Pending, with_hosts: bool) -> str:
    """Describe what the ranks that are not the likely cause of the hang do."""
    inside = [rank for rank in ranks if rank.rank in pending]
    if joining := [rank for rank in ranks if rank.joining]:
        return f"{_name_ranks(joining, with_hosts)} wait{_verb_ending(joining)} for all ranks to join"
    if inside:
        first = pending[inside[0].rank]
        return _describe_wait(_find_waiting(first, inside, pending), first, with_hosts)
    return _describe_places(ranks, with_hosts)


def _describe_places(ranks: Sequence[RankHang], with_hosts: bool, missing: str = "") -> str:
    """Describe where ranks are. Ranks at the same place are described together.

    ``missing`` says what each of these ranks has not done, such as 'has not joined'.
    """
    ranks_by_place: dict[str, list[RankHang]] = {}
    for rank in ranks:
        ranks_by_place.setdefault(_describe_place(rank), []).append(rank)
    descriptions = []
    for place, members in list(ranks_by_place.items())[:MAX_PLACES]:
        is_single = len(members) == 1
        missing_text = f"{missing if is_single else missing.replace('has', 'have', 1)}: " if missing else ""
        subject = ("it " if is_single else "they ") if missing else ""
        descriptions.append(
            f"{_name_ranks(members, with_hosts)} {missing_text}{subject}{place if is_single else _plural(place)}"
        )
    more = f"; {len(ranks_by_place) - MAX_PLACES} more places" if len(ranks_by_place) > MAX_PLACES else ""
    return "; ".join(descriptions) + more


def _describe_place(rank: RankHang) -> str:
    if not rank.started:
        return "left no sign"
    if not rank.answered:
        last = f", after {_name_collective(rank.last)}" if rank.last is not None else ""
        return f"did not write its stacks in time (it is stopped, or its node hangs){last}"
    frame = rank.code_frame or (rank.frames[0] if rank.frames else None)
    module = f" ({rank.module})" if rank.module else ""
    if frame is None:
        return f"is in code of the launcher or of regbot{module}"
    return f"is in {frame.file}:{frame.line} {frame.function}{module}"


def _plural(place: str) -> str:
    return place.replace("is in", "are in", 1) if place.startswith("is in") else place.replace("its", "their")


def _format_line(rank: RankHang) -> str:
    return (
        f" ({rank.code_frame.file}:{rank.code_frame.line} {rank.code_frame.function})"
        if rank.code_frame is not None
        else ""
    )


def _name_collective(collective: Collective) -> str:
    group = collective.group.partition(" [")[0]
    number = f" #{collective.number}" if collective.number else ""
    return f"{collective.kind}{number} of {group}" if group else f"{collective.kind}{number}"


def _format_duration(inside: Sequence[RankHang]) -> str:
    known = [rank.inside_s for rank in inside if rank.inside_s is not None]
    return f" since {max(known):.3g} s" if known else ""


def _name_ranks(ranks: Sequence[RankHang], with_hosts: bool) -> str:
    if len(ranks) == 1:
        rank = ranks[0]
        return f"rank {rank.rank} ({rank.host})" if with_hosts and rank.host else f"rank {rank.rank}"
    where = dict.fromkeys(rank.host for rank in ranks if rank.host)
    host_note = f" (all on {next(iter(where))})" if with_hosts and len(where) == 1 else ""
    return f"ranks {_format_numbers(ranks)}{host_note}"


def _format_numbers(ranks: Sequence[RankHang]) -> str:
    """Format rank numbers as ``0, 2, 3``. Four or more consecutive ranks are written as a range, such as ``0-62``."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank.rank == spans[-1][1] + 1:
            spans[-1][1] = rank.rank
        else:
            spans.append([rank.rank, rank.rank])
    parts = [
        ", ".join(str(number) for number in range(first, last + 1)) if last - first < 3 else f"{first}-{last}"
        for first, last in spans
    ]
    return ", ".join(parts[:16]) + (", ..." if len(parts) > 16 else "")


def _verb_ending(ranks: Sequence[RankHang]) -> str:
    return "s" if len(ranks) == 1 else ""
