"""Patterns of the expert axis: how tokens travel to their experts, how often, and exchanges of token counts or indices.

``cells`` explains the words cell, unit, open and claim. Most detectors here find a change in only one direction.
``patterns`` runs them both ways, so "before" means the arm that the view compares from."""

import math
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property

from regbot.ledgers import catalogue as names
from regbot.ledgers.cells import EXPERT_AXIS, Cell, Claim, View, is_payload, list_issuers, sum_growth, sum_volumes
from regbot.ledgers.rows import template
from regbot.records.ledger import Kind, Phase
from regbot.records.verdict import Volume

SUMS: frozenset[Kind] = frozenset({"reduce_scatter", "all_reduce"})
GATHERS_AND_SUMS = SUMS | {"all_gather"}
MAX_TOP_K = 64
"""Largest number of copies of a token that an all-to-all sends. A gather of all tokens sends each token once."""


@dataclass(frozen=True)
class DispatcherChange:
    """Both arms requested the same dispatcher, but only one arm executed it. The runs show this; the ledgers do not.
    ``pattern`` is DISPATCHER_OFF if head replaced the dispatcher, and DISPATCHER_ON if base replaced it."""

    pattern: str
    requested: str
    base_executed: str
    head_executed: str


@dataclass(frozen=True)
class LostExchange:
    """One unit that has lost payload all-to-alls on the expert axes. ``axes`` and ``cells`` are the axes and the cells
    of the lost all-to-alls. ``is_whole`` says whether the unit has no others, before or after."""

    unit: str
    axes: frozenset[str]
    cells: tuple[Cell, ...]
    is_whole: bool

    @cached_property
    def modules(self) -> frozenset[str]:
        return frozenset().union(*(cell.issuers_before for cell in self.cells))

    @cached_property
    def _issuer_templates(self) -> frozenset[str]:
        return frozenset(template(module) for module in self.modules)

    def contains(self, modules: Iterable[str]) -> bool:
        """Whether each of ``modules`` issued a lost all-to-all or lies inside a module that issued one. Layer numbers
        are ignored. For example, ``layers.3.moe.experts`` lies inside ``layers.*.moe``. Every module lies inside the
        model itself, whose path is ''."""
        issuers = self._issuer_templates

        def lies_inside_issuer(module: str) -> bool:
            parts = template(module).split(".")
            return "" in issuers or any(".".join(parts[:end]) in issuers for end in range(1, len(parts) + 1))

        return all(lies_inside_issuer(module) for module in modules)

    @property
    def ranks(self) -> int:
        return max(cell.signature.group_size for cell in self.cells)

    def select_first_phase(self, cells: Iterable[Cell]) -> list[Cell]:
        """Return those of ``cells`` in the phases of the lost all-to-alls, without backward if it is not the only one.
        In forward, the program says how tokens travel; backward follows from it."""
        phases = {cell.signature.phase for cell in self.cells}
        return [cell for cell in cells if cell.signature.phase in (phases - {"backward"} or phases)]


def find_lost_exchanges(view: View) -> list[LostExchange]:
    """Return the units whose payload all-to-alls on the expert axes are all gone. An all-to-all that only moved to
    another expert axis is not lost. Only open cells count: a unit with a claimed all-to-all is left out. In a compiled
    program, a combiner may merge the all-to-alls of several ops. So in such a program, all-to-alls count as lost only
    if more than half of the exchanged bytes of the whole program are gone."""
    if view.is_compiled:
        before, after = sum_volumes(cell for cell in view.cells if _is_token_exchange(view, cell))
        if 2 * after.bytes >= before.bytes:
            return []
    return [exchange for exchange in _find_gone_exchanges(view) if exchange.is_whole]


def _find_gone_exchanges(view: View) -> Iterator[LostExchange]:
    """Yield the units in which the payload all-to-alls of at least one phase left their process groups, although the
    unit may have others, in another phase or in other groups."""
    for unit, cells in view.units.items():
        exchanges = [cell for cell in cells if _is_token_exchange(view, cell)]
        kept = {(cell.signature.phase, cell.signature.group) for cell in exchanges if cell.after.count}
        cells_before = [cell for cell in exchanges if cell.before.count]
        kept_phases = {
            cell.signature.phase
            for cell in cells_before
            if not view.is_open(cell) or (cell.signature.phase, cell.signature.group) in kept
        }
        gone = tuple(cell for cell in cells_before if cell.signature.phase not in kept_phases)
        if gone:
            axes = frozenset(cell.signature.axis for cell in gone)
            yield LostExchange(unit, axes, gone, is_whole=not kept and not kept_phases)


def detect_exchange_replaced(view: View) -> Iterator[Claim]:
    """Detect an all-to-all that was replaced by other collectives, such as a gather of all tokens and a sum of the
    results, on any axis. The ``detail`` of a claim has the axes of the replacement."""
    exchanging_modules = _list_exchanging_modules(view)
    for exchange in find_lost_exchanges(view) if view.is_compiled else _find_gone_exchanges(view):
        pattern, replacement = names.ALL_TO_ALL_REPLACED, _find_gather_and_sum(view, exchange)
        if not replacement and not view.is_compiled:
            pattern, replacement = _find_other_replacement(view, exchange)
        if replacement:
            yield Claim(
                pattern=pattern,
                merge_key=tuple(sorted(exchange.axes)),
                axes=exchange.axes,
                cells=_drop_duplicates((*_list_exchange_cells(view, exchange), *replacement)),
                changed_modules=exchange.modules,
                population=exchanging_modules,
                detail=", ".join(sorted({_name_group(cell, pattern) for cell in replacement})),
            )


def _name_group(cell: Cell, pattern: str) -> str:
    axis, size = cell.signature.group
    return f"{axis} (groups of {size})" if pattern == names.SPLIT else axis


def detect_exchange_replaced_by_compiler(view: View) -> Iterator[Claim]:
    """Detect lost all-to-alls if gathers and sums replaced them in a compiled program, whose partitioner chooses the
    collectives. Yield one claim for the whole program, or nothing. Ledgers of eager code always give nothing.

    In eager code with this fault, forward gathers all tokens and sums the results. In a program that XLA partitioned
    (GSPMD), forward gathers the experts' weights instead, and backward sums the gradients of these weights. The sum is
    a reduce-scatter. On a backend without reduce-scatter it is an all-reduce, which has more bytes. XLA's combiner
    merges collectives of many ops into one, so this detector compares bytes and not calls. The gathered bytes and the
    summed bytes must each rise by more than the bytes that the lost all-to-alls sent. The rises are totals of the whole
    program, because the ops that now gather and sum are not the ops that exchanged tokens before."""
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


def detect_axis_lost(view: View) -> Iterator[Claim]:
    """Detect an all-to-all that is gone without a replacement. The detectors of replaced all-to-alls run first. The
    cells that they claim are no longer open, so ``find_lost_exchanges`` does not return them again. Experts that are
    now replicated or sharded differently also change the traffic of their parameters and gradients. This traffic
    changes for the same reason, so the claim includes it. The claim's ``detail`` has the axes of this traffic."""
    exchanging_modules = _list_exchanging_modules(view)
    for lost_exchange in find_lost_exchanges(view):
        # Collectives of the modules that exchanged the tokens, and of the modules inside them.
        parameter_cells = [
            cell
            for cell in view.open_cells(lost_exchange.unit)
            if is_payload(cell) and cell.signature.kind in GATHERS_AND_SUMS and lost_exchange.contains(cell.issuers)
        ]
        yield Claim(
            pattern=names.AXIS_LOST,
            merge_key=tuple(sorted(lost_exchange.axes)),
            axes=lost_exchange.axes,
            cells=_drop_duplicates((*_list_exchange_cells(view, lost_exchange), *parameter_cells)),
            changed_modules=lost_exchange.modules,
            population=exchanging_modules,
            detail=", ".join(sorted({cell.signature.axis for cell in parameter_cells})),
        )


def claim_dispatcher_change(view: View) -> Claim:
    """Claim all open cells that belong to the token exchange, whichever arm they belong to. The runs already prove that
    one arm replaced the dispatcher. So the detector asks for no further evidence. The claim also includes everything
    that ``detect_exchange_replaced`` and ``detect_axis_lost`` would claim, from base to head and from head to base."""

    def is_of_exchange(cell: Cell) -> bool:
        is_on_expert_axis = cell.signature.axis in view.expert_axes
        return is_on_expert_axis and (view.moves_activations(cell) or not is_payload(cell))

    claims = [
        claim
        for direction in (view, view.reverse)
        for claim in (*detect_exchange_replaced(direction), *detect_axis_lost(direction))
    ]
    # The cells of ``view`` replace those of the reverse view, in which before and after are swapped.
    claimed_keys = {cell.key for claim in claims for cell in claim.cells}
    cells = tuple(
        cell for cell in view.cells if cell.key in claimed_keys or (view.is_open(cell) and is_of_exchange(cell))
    )
    changed_axes = frozenset(cell.signature.axis for cell in cells) & view.expert_axes
    return Claim(
        pattern=names.DISPATCHER_OFF,  # the caller sets DISPATCHER_ON if base replaced the dispatcher
        merge_key=(),  # there is only one such finding
        axes=changed_axes or view.expert_axes,
        cells=cells,
        changed_modules=list_issuers(cells),
    )


def detect_recompute(view: View) -> Iterator[Claim]:
    """Detect a backward pass that repeats the token exchange of forward. The payload of backward must grow by exactly
    the calls and bytes of the payload of forward. The claim includes the exchanges of token counts in backward, if
    these grew by exactly those of forward. If a profile labels only the backward phase, everything else is taken as
    forward. If a profile has no phases, the all-to-alls of forward and backward cannot be separated, and their total
    must grow by half."""
    exchanging_modules = _list_exchanging_modules(view)
    for cells in view.units.values():
        exchange_cells_by_axis = _group_by_axis(view, [cell for cell in cells if view.moves_activations(cell)])
        for axis, exchange_cells in exchange_cells_by_axis.items():
            has_no_phases = {cell.signature.phase for cell in exchange_cells} == {"unknown"}
            if has_no_phases:
                repeated_cells = _find_growth_by_half(view, exchange_cells)
            else:
                repeated_cells = _find_repeats_in_backward(view, exchange_cells)
            if repeated_cells:
                modules = frozenset().union(*(cell.issuers_after for cell in repeated_cells))
                yield Claim.create(
                    names.RECOMPUTES, repeated_cells, (axis,), changed_modules=modules, population=exchanging_modules
                )


def _find_repeats_in_backward(view: View, exchange_cells: list[Cell]) -> list[Cell]:
    """Return the open cells in which backward repeats the exchange of forward, or [] if it does not repeat it.
    ``exchange_cells`` are the cells of one unit and axis. Forward and backward are compared separately for each form,
    which is kind, group size and dtype. The payload of forward must not change. The result also has the exchanges of
    token counts in backward, if these grow by exactly those of forward. If no cell has the phase forward, the cells of
    unknown phase are taken as forward."""
    has_forward = any(cell.signature.phase == "forward" for cell in exchange_cells)
    forward_label: Phase = "forward" if has_forward else "unknown"
    payload = [cell for cell in exchange_cells if is_payload(cell)]
    forward_payload, backward_payload = _group_by_form(payload, forward_label), _group_by_form(payload, "backward")
    if not forward_payload or any(cell.changed for cells in forward_payload.values() for cell in cells):
        return []
    for form, forward_cells in forward_payload.items():
        if not _grows_by(backward_payload.get(form, []), forward_cells):
            return []
    repeated_cells = [cell for form in forward_payload for cell in backward_payload[form] if view.is_open(cell)]
    exchanged_gradients = any(cell.before.count for cells in backward_payload.values() for cell in cells)
    # If backward exchanged nothing before, the new exchange carries gradients and repeats nothing.
    if not repeated_cells or not exchanged_gradients:
        return []
    count_exchanges = [cell for cell in exchange_cells if not is_payload(cell)]
    backward_count_exchanges = _group_by_form(count_exchanges, "backward")
    for form, forward_cells in _group_by_form(count_exchanges, forward_label).items():
        backward_cells = backward_count_exchanges.get(form, [])
        if _grows_by(backward_cells, forward_cells):
            repeated_cells += [cell for cell in backward_cells if view.is_open(cell)]
    return repeated_cells


def _grows_by(backward_cells: list[Cell], forward_cells: list[Cell]) -> bool:
    _, forward_after = sum_volumes(forward_cells)
    return sum_growth(backward_cells) == forward_after


def _find_growth_by_half(view: View, exchange_cells: list[Cell]) -> list[Cell]:
    """Return the open cells of an exchange whose payload grew by half, or [] if it did not. The exchange contains
    forward and backward, which send equal bytes. A repeated forward adds as much as forward, so the total grows by
    half. Token counts have no gradients, so their exchanges run in forward only and must double."""
    payload = [cell for cell in exchange_cells if is_payload(cell) and cell.signature.kind == "all_to_all"]
    (before, _), growth = sum_volumes(payload), sum_growth(payload)
    if not growth.count or (2 * growth.count, 2 * growth.bytes) != (before.count, before.bytes):
        return []
    doubled_count_exchanges = [
        cell for cell in exchange_cells if not is_payload(cell) and sum_growth([cell]) == cell.before
    ]
    return [cell for cell in (*payload, *doubled_count_exchanges) if view.is_open(cell)]


def detect_count_exchanges(view: View) -> Iterator[Claim]:
    """Detect units (layers, or modules outside of them) with more or fewer control exchanges on the expert axis. This
    detector handles both directions. A control exchange sends token counts or indices. The population of a claim is all
    modules that exchange tokens in one of the arms."""
    exchanging_modules = _list_exchanging_modules(view) | _list_exchanging_modules(view.reverse)
    for unit in view.units:
        control_cells = [
            cell for cell in view.open_cells(unit) if not is_payload(cell) and cell.signature.kind != "barrier"
        ]
        for axis, axis_cells in _group_by_axis(view, control_cells).items():
            before, after = sum_volumes(axis_cells)
            if before.count == after.count:
                continue
            pattern = names.COUNTS_ADDED if after.count > before.count else names.COUNTS_REMOVED
            yield Claim.create(pattern, axis_cells, (axis,), population=exchanging_modules)


def _is_token_exchange(view: View, cell: Cell) -> bool:
    return cell.signature.kind == "all_to_all" and is_payload(cell) and cell.signature.axis in view.expert_axes


def _list_exchanging_modules(view: View) -> frozenset[str]:
    exchange_cells = [
        cell
        for cell in view.cells
        if is_payload(cell) and cell.signature.axis in view.expert_axes and view.moves_activations(cell)
    ]
    return frozenset().union(*(cell.issuers_before for cell in exchange_cells))


def _find_gather_and_sum(view: View, lost_exchange: LostExchange) -> list[Cell]:
    """Return the cells that gather and sum tokens instead of ``lost_exchange``, or [] if the gather or the sum is
    missing. The gather and the sum must be in forward. FSDP gathers parameters in forward but sums gradients only in
    backward, so FSDP of experts is not taken for a replacement. If the ledger has no phases, any sum counts. The result
    also has the growing gathers and sums of other phases and roles, if they run at the same places and on the same
    axes."""
    has_phases = any(cell.signature.phase == "forward" for cell in lost_exchange.cells)
    rising = [
        cell for cell in view.open_cells(lost_exchange.unit) if cell.grows and cell.signature.kind in GATHERS_AND_SUMS
    ]
    payload = [cell for cell in rising if is_payload(cell)]
    if has_phases:
        candidates = [cell for cell in payload if cell.signature.phase == "forward"]
        sums = [cell for cell in candidates if cell.signature.kind in SUMS and view.moves_activations(cell)]
    else:
        candidates = payload
        sums = [cell for cell in candidates if cell.signature.kind in SUMS]
    gathers = [cell for cell in candidates if cell.signature.kind == "all_gather"]
    if not sums or not gathers:
        return []
    places_and_axes = {(cell.place, cell.signature.axis) for cell in candidates}
    return [cell for cell in rising if (cell.place, cell.signature.axis) in places_and_axes]


def _find_other_replacement(view: View, exchange: LostExchange) -> tuple[str, list[Cell]]:
    """Return the pattern and the cells of collectives that may carry tokens in place of ``exchange``, or ('', []). They
    are several hops if there are several groups, and the sizes of the groups multiply to the ranks of the exchange."""
    rising = [cell for cell in view.open_cells(exchange.unit) if is_payload(cell) and cell.grows]
    sums = [cell.signature for cell in rising if cell.signature.kind in SUMS]
    gradient_groups = {signature.group for signature in sums if signature.phase != "forward"}
    sent: dict[Phase, Volume] = {}
    for phase in {cell.signature.phase for cell in exchange.cells}:
        sent[phase], _ = sum_volumes(cell for cell in exchange.cells if cell.signature.phase == phase)
    # What backward gathers again with equal volume is parameters.
    regathered = {
        (cell.place, cell.signature._replace(phase="forward"), cell.after)
        for cell in rising
        if (cell.signature.kind, cell.signature.phase) == ("all_gather", "backward")
        and cell.signature.axis not in exchange.axes
        and cell.signature.group_size >= exchange.ranks
    }
    carriers = [
        cell
        for cell in rising
        if _may_carry_tokens(view, exchange, gradient_groups, sent, cell)
        and (cell.place, cell.signature._replace(phase="forward"), cell.after) not in regathered
    ]
    first = exchange.select_first_phase(carriers)
    groups = {cell.signature.group for cell in first}
    growth: dict[str, int] = {}
    for cell in first:
        kind = cell.signature.kind
        growth[kind] = growth.get(kind, 0) + cell.after.bytes - cell.before.bytes
    lost, _ = sum_volumes(exchange.select_first_phase(exchange.cells))
    if sum(growth.values()) * MAX_TOP_K < lost.bytes:  # too few bytes for the tokens
        return "", []
    if len(groups) > 1 and math.prod(size for _, size in groups) == exchange.ranks:
        pattern = names.SPLIT
    elif growth.keys() <= {"all_to_all"}:  # nothing, or the same exchange in other groups
        return "", []
    else:
        pattern = names.REPLACED_BY[max(growth.keys() - {"all_to_all"}, key=lambda kind: (growth[kind], kind))]
    # What follows in backward, such as the sum that undoes a gather, runs in the same place on the same axis.
    places_and_axes = {(cell.place, cell.signature.axis) for cell in first}
    followers = [cell for cell in rising if (cell.place, cell.signature.axis) in places_and_axes]
    return pattern, [*carriers, *followers]


def _may_carry_tokens(
    view: View,
    exchange: LostExchange,
    gradient_groups: Set[tuple[str, int]],
    sent_by_phase: Mapping[Phase, Volume],
    cell: Cell,
) -> bool:
    """Whether ``cell``, which grows in the unit of ``exchange``, may carry the tokens instead. Gathers and sums may be
    those of parameters and gradients. On the expert axis they are not, because parameters differ along it. On another
    axis, a gather is one of parameters if a sum outside of forward grows with it in the same group, one of
    ``gradient_groups``, unless it has the calls of the exchange and a size that fits its tokens."""
    signature = cell.signature
    if signature.kind == "barrier":
        return False
    if signature.kind not in GATHERS_AND_SUMS or signature.axis in exchange.axes & {EXPERT_AXIS}:
        return True
    if not exchange.contains(cell.issuers):
        return False
    if signature.kind in SUMS:
        return signature.phase == "forward" and view.moves_activations(cell)
    if signature.group not in gradient_groups:
        return True
    sent = sent_by_phase.get(signature.phase, Volume(count=0, bytes=0))
    gathered = sum_growth([cell])
    copies, rest = divmod(sent.bytes * signature.group_size, max(gathered.bytes, 1))
    return gathered.count == sent.count and rest == 0 and 0 < copies <= MAX_TOP_K


def _list_exchange_cells(view: View, lost_exchange: LostExchange) -> list[Cell]:
    phases = {cell.signature.phase for cell in lost_exchange.cells}
    control_cells = [
        cell
        for cell in view.open_cells(lost_exchange.unit)
        if not is_payload(cell) and cell.signature.axis in lost_exchange.axes and cell.signature.phase in phases
    ]
    return [*lost_exchange.cells, *control_cells]


def _group_by_axis(view: View, cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    cells_by_axis: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.signature.axis in view.expert_axes:
            cells_by_axis.setdefault(cell.signature.axis, []).append(cell)
    return dict(sorted(cells_by_axis.items()))


def _group_by_form(cells: Iterable[Cell], phase: str) -> dict[tuple[str, int, str], list[Cell]]:
    cells_by_form: dict[tuple[str, int, str], list[Cell]] = {}
    for cell in cells:
        signature = cell.signature
        if signature.phase == phase:
            form = (signature.kind, signature.group_size, signature.dtype)
            cells_by_form.setdefault(form, []).append(cell)
    return cells_by_form


def _drop_duplicates(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    return tuple({cell.key: cell for cell in cells}.values())
