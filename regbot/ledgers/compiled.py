"""The pattern "all-to-all replaced by gather and sum" in compiled programs. A partitioner chooses their collectives.

In eager code with this fault, forward gathers all tokens and sums the results. In a program that XLA partitioned
(GSPMD), forward gathers the experts' weights instead, and backward sums the gradients of these weights. The sum is a
reduce-scatter. On a backend without reduce-scatter it is an all-reduce, which has more bytes. XLA's combiner merges
collectives of many ops into one, so this detector compares bytes and not calls."""

from collections.abc import Iterator

from regbot.ledgers import catalogue as names
from regbot.ledgers.cells import Claim, View, is_payload, sum_growth, sum_volumes
from regbot.ledgers.expert import SUMS, find_lost_exchanges


def detect_exchange_replaced(view: View) -> Iterator[Claim]:
    """Detect lost all-to-alls if gathers and sums replaced them. Yield one claim for the whole program, or nothing.
    Ledgers of eager code always give nothing. The gathered bytes and the summed bytes must each rise by more than the
    bytes that the lost all-to-alls sent. The rises are totals of the whole program, because the ops that now gather and
    sum are not the ops that exchanged tokens before."""
    lost_exchanges = find_lost_exchanges(view) if view.is_compiled else []
    if not lost_exchanges:
        return
    exchange_cells = [cell for exchange in lost_exchanges for cell in exchange.cells]
    rising = [cell for cell in view.cells if view.is_open(cell) and is_payload(cell) and cell.grows]
    gathers = [cell for cell in rising if cell.signature.kind == "all_gather"]
    sums = [cell for cell in rising if cell.signature.kind in SUMS]
    exchanged_before, _ = sum_volumes(exchange_cells)
    if min(sum_growth(gathers).bytes, sum_growth(sums).bytes) > exchanged_before.bytes:
        lost_axes = frozenset().union(*(exchange.axes for exchange in lost_exchanges))
        replacement_axes = ", ".join(sorted({cell.signature.axis for cell in (*gathers, *sums)}))
        changed_modules = frozenset().union(*(exchange.modules for exchange in lost_exchanges))
        yield Claim(
            pattern=names.ALL_TO_ALL_REPLACED,
            merge_key=tuple(sorted(lost_axes)),
            axes=lost_axes,
            cells=(*exchange_cells, *gathers, *sums),
            changed_modules=changed_modules,
            population=changed_modules,  # other ops in which the pattern could occur are not known
            detail=replacement_axes,  # words that the text of the finding inserts
            noun="op",  # names of ops take the place of MoE layers
        )
