"""The expert-axis fallback in compiled programs, where a partitioner chose the collectives.

Written code that falls back gathers tokens and sums results in forward. A partitioner (XLA's GSPMD) whose expert axis
is mapped twice does something else for the same reason: it gathers the experts' weights in forward and sums their
gradients in backward, by reduce-scatter, or on a backend without it by an all-reduce of more bytes. Its combiner merges
collectives of many ops into one, so calls say little and bytes say it all. Op names stand where modules do.
"""

from collections.abc import Iterator

from regbot.ledgers.catalogue import MAPPED_TWICE
from regbot.ledgers.cells import Cell, Claim, View, is_payload, volumes
from regbot.ledgers.expert import SUMS, vanished


def mapped_twice(view: View) -> Iterator[Claim]:
    """All-to-all of some ops gone, while bytes that are gathered and bytes that are summed both rise by more than it
    sent. Over the whole program: the ops that gather and sum are others than those that exchanged."""
    lost = vanished(view) if view.compiled else []
    if not lost:
        return
    exchanges = [cell for each in lost for cell in each.cells]
    opened = [c for c in view.cells if view.is_open(c) and is_payload(c) and c.grows]
    gathers = [c for c in opened if c.word.kind == "all_gather"]
    sums = [c for c in opened if c.word.kind in SUMS]
    sent = volumes(exchanges)[0].bytes
    if min(_rise(gathers), _rise(sums)) > sent:
        lost_on = frozenset().union(*(each.axes for each in lost))
        axes = ", ".join(sorted({cell.word.axis for cell in (*gathers, *sums)}))
        hit = frozenset().union(*(each.modules for each in lost))
        cells = (*exchanges, *gathers, *sums)
        yield Claim(MAPPED_TWICE, tuple(sorted(lost_on)), lost_on, cells, hit, hit, axes, noun="op")


def _rise(cells: list[Cell]) -> int:
    before, after = volumes(cells)
    return after.bytes - before.bytes
