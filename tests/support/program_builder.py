"""Programs of one step, built from a few numbers: four layers with attention and experts."""

from collections.abc import Iterable

from regbot.records.ledger import ComputeRow, FlopClass, Holder, HolderKind, HostWait, Ledger, Phase, Program
from support.ledger_builder import smoke_ledger

LAYERS = 4
GB = 10**9


def compute_row(
    where: str,
    flops: int = 0,
    *,
    flop_class: FlopClass = "matmul",
    dtype: str = "bfloat16",
    phase: Phase = "forward",
    line: str = "",
    recomputed: int = 0,
    size: int = 1000,
    launches: int = 1,
) -> ComputeRow:
    return ComputeRow(
        flop_class=flop_class,
        dtype=dtype,
        phase=phase,
        where=where,
        line=line,
        flops=flops,
        recomputed_flops=recomputed,
        bytes=size,
        launches=launches,
    )


def step_rows(layers: int = LAYERS) -> list[ComputeRow]:
    """Forward and backward of every layer, 30 TFLOP for each layer."""
    rows = []
    for layer in range(layers):
        for phase, factor in (("forward", 1), ("backward", 2)):
            for part, flops, flop_class in (
                ("attention", 2 * 10**12, "attention"),
                ("moe.experts", 8 * 10**12, "grouped"),
            ):
                rows.append(
                    compute_row(
                        f"layers.{layer}.{part}",
                        factor * flops,
                        flop_class=flop_class,  # type: ignore[arg-type]
                        phase=phase,  # type: ignore[arg-type]
                        line=f"{part.partition('.')[0]}.py:10",
                        size=GB,
                        launches=10 * factor,
                    )
                )
    return rows


LIVE: dict[HolderKind, int] = {
    "parameter": 10 * GB,
    "gradient": 10 * GB,
    "optimizer": 20 * GB,
    "activation": 25 * GB,
    "temporary": 5 * GB,
}


def program_of(
    rows: Iterable[ComputeRow] | None = None,
    live: dict[HolderKind, int] | None = None,
    waits: Iterable[HostWait] = (),
    holders: Iterable[Holder] = (),
    **changes: object,
) -> Program:
    """A Program whose totals are the sums of its parts."""
    rows = [*(step_rows() if rows is None else rows)]
    live_by: dict[HolderKind, int] = {**LIVE, **(live or {})}
    flops_by: dict[FlopClass, int] = {}
    for row in rows:
        flops_by[row.flop_class] = flops_by.get(row.flop_class, 0) + row.flops
    program = Program(
        flops=sum(row.flops for row in rows),
        flops_by=flops_by,
        bytes_moved=sum(row.bytes for row in rows),
        launches=sum(row.launches for row in rows),
        recomputed_flops=sum(row.recomputed_flops for row in rows),
        peak_bytes=sum(live_by.values()),
        peak_phase="backward",
        peak_where="layers.3.moe",
        live_by=live_by,
        holders=[*holders],
        live_curve=[
            ("forward", 40 * GB),
            ("forward", 60 * GB),
            ("backward", sum(live_by.values())),
            ("backward", 40 * GB),
        ],
        rows=rows,
        waits=[*waits],
    )
    return program.model_copy(update=changes)


def wait(kind: str = "read", where: str = "layers.0.moe", count: int = 1, line: str = "moe.py:7") -> HostWait:
    return HostWait.model_validate({"kind": kind, "phase": "forward", "where": where, "line": line, "count": count})


def holder(kind: HolderKind, where: str, size: int, line: str = "") -> Holder:
    return Holder(kind=kind, where=where, line=line, bytes=size, count=1)


def with_program(program: Program | None, ledger: Ledger | None = None, **changes: object) -> Ledger:
    """``ledger``, or that of the smoke workload, with this Program, traced for a paper H100."""
    update = {"program": program, "device": "cuda", "gpu": "h100", **changes}
    return (ledger or smoke_ledger(layers=LAYERS)).model_copy(update=update)
