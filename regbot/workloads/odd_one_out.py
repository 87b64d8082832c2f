"""Which rank the others wait for, in one sentence: from what each rank of a hung run left of itself.

The rank that waits for nobody is the one to look at. Where each waits for another, the order of their collectives
differs. Where all are in the same collective, no rank is to blame, and what lies between them is.
"""

from collections.abc import Iterable, Sequence

from regbot.records.hang import Collective, RankHang

SHOWN = 4
"""Places that are told where ranks are at different ones."""
SAME_BYTES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Kinds in which every rank must bring as many bytes as the others."""


def odd_one_out(ranks: Sequence[RankHang]) -> str:
    """The sentence; '' where no rank left a sign, which says nothing of them."""
    signs = [rank for rank in ranks if rank.sign]
    if not signs:
        return ""
    hosts = len({rank.host for rank in ranks}) > 1
    for tell in (_never_began, _never_joined, _differing, _waited_for, _all_in_one):
        if said := tell(ranks, hosts):
            return said
    return f"no rank waits for another in a collective that Python issued: {_places(ranks, hosts)}"


def _never_began(ranks: Sequence[RankHang], hosts: bool) -> str:
    missing = [rank for rank in ranks if not rank.sign]
    if not missing:
        return ""
    left = f"{_names(missing, hosts)} left no sign (never began, or its files have not arrived)"
    return f"{left}; {_doing([rank for rank in ranks if rank.sign], hosts)}"


def _never_joined(ranks: Sequence[RankHang], hosts: bool) -> str:
    joining = [rank for rank in ranks if rank.joining]
    others = [rank for rank in ranks if not rank.joining and not rank.issued]
    if not joining:
        return ""
    if not others:
        return f"{_names(joining, hosts)} wait{_s(joining)} for all ranks to join: they do not reach each other"
    waiting = f"{_names(joining, hosts)} wait{_s(joining)} for all ranks to join"
    return f"{waiting}; {_places(others, hosts, 'has not joined')}"


def _differing(ranks: Sequence[RankHang], hosts: bool) -> str:
    """Each of some ranks waits in a collective that another of them has not begun, or has as another kind."""
    waiting = [rank for rank in ranks if _waits_in(rank) is not None]
    for rank in waiting:
        ours = _waits_in(rank)
        assert ours is not None
        for other in waiting:
            theirs = _waits_in(other)
            if other is rank or theirs is None or not _member(other, ours) or _same(ours, theirs):
                continue
            stuck = not _begun(other, ours) and not _begun(rank, theirs) and _member(rank, theirs)
            if stuck or _as_another_kind(other, ours):
                keys = dict.fromkeys(map(_key, (c for r in waiting if (c := _waits_in(r)))))
                told = [_in_one(key, waiting, hosts) for key in keys][:SHOWN]
                return f"different collectives: {', '.join(told)}"
    return ""


def _waited_for(ranks: Sequence[RankHang], hosts: bool) -> str:
    """Some wait in a collective that others have not begun."""
    best: tuple[list[RankHang], list[RankHang], Collective] | None = None
    for collective in {_key(c): c for rank in ranks if (c := _waits_in(rank)) is not None}.values():
        inside = [rank for rank in ranks if (c := _waits_in(rank)) is not None and _same(c, collective)]
        absent = [rank for rank in ranks if _member(rank, collective) and not _begun(rank, collective)]
        root = [rank for rank in absent if _waits_in(rank) is None]  # the others wait themselves, for somebody else
        if root and (best is None or len(inside) > len(best[0])):
            best = inside, root, collective
    if best is None:
        return ""
    inside, odd, collective = best
    return f"{_wait(inside, collective, hosts)}; {_places(odd, hosts, 'has not begun it')}"


def _all_in_one(ranks: Sequence[RankHang], hosts: bool) -> str:
    inside = [(rank, c) for rank in ranks if (c := _waits_in(rank)) is not None]
    if not inside:
        return ""
    first = inside[0][1]
    members = [rank for rank in ranks if _member(rank, first)]
    same = [rank for rank, c in inside if _same(c, first)]
    silent = [rank for rank in ranks if not rank.answered]
    if silent and len(silent) < len(ranks):
        others = [rank for rank in ranks if rank.answered]
        return f"{_doing(others, hosts)}; {_places(silent, hosts)}"
    if len(same) < len(members) or len(same) < 2:
        return f"{_doing([rank for rank, _ in inside], hosts)}; {_places([r for r in ranks if r not in same], hosts)}"
    sizes = {c.bytes for _, c in inside if _same(c, first)}
    if len(sizes) > 1 and first.kind in SAME_BYTES:
        each = ", ".join(f"rank {rank.rank} {c.bytes} bytes" for rank, c in inside[:SHOWN])
        return f"all ranks are in the same collective {_what(first)} with different sizes: {each}"
    whose = "all ranks" if len(same) == len(ranks) else f"all ranks of its group ({_numbers(same)})"
    return f"{whose} are in the same collective {_what(first)}{_since(same)}: one of them waits for the network"


def _waits_in(rank: RankHang) -> Collective | None:
    """The collective that a rank waits in: with its call, or by the device that its latest was launched on."""
    if rank.inside is not None:
        return rank.inside if rank.inside.number else None
    last = rank.last
    return last if last is not None and last.asynchronous and last.number and rank.at is None else None


def _member(rank: RankHang, collective: Collective) -> bool:
    return rank.rank in collective.ranks


def _begun(rank: RankHang, collective: Collective) -> bool:
    return rank.issued.get(collective.group, 0) >= collective.number


def _same(a: Collective, b: Collective) -> bool:
    return _key(a) == _key(b)


def _key(collective: Collective) -> tuple[str, int, str]:
    return collective.group, collective.number, collective.kind


def _as_another_kind(rank: RankHang, collective: Collective) -> bool:
    return any(
        each.group == collective.group and each.number == collective.number and each.kind != collective.kind
        for each in rank.recent
    )


def _in_one(key: tuple[str, int, str], waiting: Iterable[RankHang], hosts: bool) -> str:
    inside = [rank for rank in waiting if (c := _waits_in(rank)) is not None and _key(c) == key]
    collective = _waits_in(inside[0])
    assert collective is not None
    return f"{_names(inside, hosts)} in {_what(collective)}{_at(inside[0])}"


def _wait(inside: Sequence[RankHang], collective: Collective, hosts: bool) -> str:
    launched = collective.asynchronous and all(rank.inside is None for rank in inside)
    verb = f"ha{'s' if len(inside) == 1 else 've'} launched" if launched else f"wait{_s(inside)} in"
    modules = {rank.module for rank in inside if rank.module}
    module = f" ({modules.pop()})" if len(modules) == 1 else ""
    return f"{_names(inside, hosts)} {verb} {_what(collective)}{module}{_since(inside)}"


def _doing(ranks: Sequence[RankHang], hosts: bool) -> str:
    """What ranks do that are not the odd ones."""
    inside = [rank for rank in ranks if _waits_in(rank) is not None]
    if joining := [rank for rank in ranks if rank.joining]:
        return f"{_names(joining, hosts)} wait{_s(joining)} for all ranks to join"
    if inside and (first := _waits_in(inside[0])) is not None:
        return _wait([rank for rank in inside if (c := _waits_in(rank)) and _same(c, first)], first, hosts)
    return _places(ranks, hosts)


def _places(ranks: Sequence[RankHang], hosts: bool, lacks: str = "") -> str:
    """Where ranks are, those at one place together."""
    together: dict[str, list[RankHang]] = {}
    for rank in ranks:
        together.setdefault(_place(rank), []).append(rank)
    told = []
    for place, there in list(together.items())[:SHOWN]:
        one = len(there) == 1
        have = f"{lacks if one else lacks.replace('has', 'have', 1)}: " if lacks else ""
        subject = ("it " if one else "they ") if lacks else ""
        told.append(f"{_names(there, hosts)} {have}{subject}{place if one else _plural(place)}")
    more = f"; {len(together) - SHOWN} more places" if len(together) > SHOWN else ""
    return "; ".join(told) + more


def _place(rank: RankHang) -> str:
    if not rank.sign:
        return "left no sign"
    if not rank.answered:
        last = f", after {_what(rank.last)}" if rank.last is not None else ""
        return f"did not write its stacks when it was time (stopped, or its node hangs){last}"
    frame = rank.at or (rank.frames[0] if rank.frames else None)
    module = f" ({rank.module})" if rank.module else ""
    if frame is None:
        return f"is in code of the launcher or of regbot{module}"
    return f"is in {frame.file}:{frame.line} {frame.function}{module}"


def _plural(place: str) -> str:
    return place.replace("is in", "are in", 1) if place.startswith("is in") else place.replace("its", "their")


def _at(rank: RankHang) -> str:
    return f" ({rank.at.file}:{rank.at.line} {rank.at.function})" if rank.at is not None else ""


def _what(collective: Collective) -> str:
    group = collective.group.partition(" [")[0]
    number = f" #{collective.number}" if collective.number else ""
    return f"{collective.kind}{number} of {group}" if group else f"{collective.kind}{number}"


def _since(inside: Sequence[RankHang]) -> str:
    known = [rank.inside_s for rank in inside if rank.inside_s is not None]
    return f" since {max(known):.3g} s" if known else ""


def _names(ranks: Sequence[RankHang], hosts: bool) -> str:
    if len(ranks) == 1:
        rank = ranks[0]
        return f"rank {rank.rank} ({rank.host})" if hosts and rank.host else f"rank {rank.rank}"
    where = dict.fromkeys(rank.host for rank in ranks if rank.host)
    whole = f" (all on {next(iter(where))})" if hosts and len(where) == 1 else ""
    return f"ranks {_numbers(ranks)}{whole}"


def _numbers(ranks: Sequence[RankHang]) -> str:
    """``0, 2, 3``; of many, ``0-62``: ends of runs of neighbours."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank.rank == spans[-1][1] + 1:
            spans[-1][1] = rank.rank
        else:
            spans.append([rank.rank, rank.rank])
    told = [
        ", ".join(str(n) for n in range(first, last + 1)) if last - first < 3 else f"{first}-{last}"
        for first, last in spans
    ]
    return ", ".join(told[:16]) + (", ..." if len(told) > 16 else "")


def _s(ranks: Sequence[RankHang]) -> str:
    return "s" if len(ranks) == 1 else ""
