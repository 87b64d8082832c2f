"""What ``regbot explain`` says of one step."""

import pytest

from regbot.ledgers.explanation import explain
from regbot.records.config import Config
from regbot.records.explanation import Explanation
from regbot.records.ledger import ComputeRow, Holder, HostWait, Ledger, Program
from support.ledger_builder import smoke_ledger

GB = 10**9
LINE = "moe.py:41"


def product(where: str, flops: int, dtype: str = "bfloat16", line: str = "") -> ComputeRow:
    return ComputeRow(
        flop_class="matmul", dtype=dtype, phase="forward", where=where, line=line, flops=flops, bytes=10, launches=2
    )


def wait(where: str, kind: str = "read", count: int = 1, line: str = LINE) -> HostWait:
    return HostWait.model_validate({"kind": kind, "phase": "forward", "where": where, "line": line, "count": count})


def with_program(ledger: Ledger, **fields: object) -> Ledger:
    """``ledger`` with a healthy Program, in which ``fields`` are replaced: one read of splits a layer."""
    rows = [product(f"layers.{layer}.moe", 10**12) for layer in range(4)]
    healthy = {
        "flops": 4 * 10**12, "flops_by": {"matmul": 4 * 10**12}, "bytes_moved": 40, "launches": 8,
        "peak_bytes": 70 * GB, "rows": rows, "waits": [wait(f"layers.{layer}.moe") for layer in range(4)],
    }  # fmt: skip
    return ledger.model_copy(update={"program": Program.model_validate({**healthy, **fields})})


def explained(ledger: Ledger) -> Explanation:
    return explain(ledger, Config().wire)


WIDE = product("layers.0.moe", 1, "float32", LINE)
HEALTHY = with_program(smoke_ledger())
IN_LAYERS = [f"layers.{layer}.moe" for layer in range(4)]


def test_a_step_without_waste_gets_no_remark() -> None:
    assert not explained(HEALTHY).remarks
    assert not explained(smoke_ledger()).remarks  # a trace without a Program


@pytest.mark.parametrize(
    ("ledger", "pattern", "words"),
    [
        (smoke_ledger(dispatcher="allgather"), "tokens gathered", "every rank of 16 receives every token"),
        (smoke_ledger(recompute=True), "more exchanges than needed", "16 all-to-all of tokens in backward; 4 modules"),
        (
            with_program(smoke_ledger(), waits=[wait(where, "synchronize") for where in IN_LAYERS]),
            "host waits in a layer",
            "waits 4 times for the device (synchronize), in 4 modules",
        ),
        (
            with_program(smoke_ledger(), waits=[wait(where, count=9) for where in IN_LAYERS]),
            "host waits in a layer",
            "36 times",
        ),
        (
            with_program(
                smoke_ledger(), rows=[product("layers.0.moe", 99), product("layers.0.moe", 1, "float32", LINE)]
            ),
            "product in a wide dtype",
            "1.0% of the step, whose other products are in bfloat16",
        ),
        (
            with_program(
                smoke_ledger(),
                holders=[Holder(kind="temporary", where=where, line=LINE, bytes=GB, count=1) for where in IN_LAYERS],
            ),
            "buffer held past its use",
            "4.00 GB in 4 storages of layers",
        ),
    ],
    ids=["gathered", "recompute", "synchronize", "read an expert", "float32", "held"],
)
def test_what_the_shape_does_not_need_is_remarked(ledger: Ledger, pattern: str, words: str) -> None:
    (remark,) = explained(ledger).remarks
    assert (remark.pattern, remark.where) == (pattern, "layers.*.moe")
    assert words in remark.text
    assert remark.line == (LINE if ledger.program else "")


def test_products_in_float32_are_no_remark_in_a_model_in_float32_or_a_router() -> None:
    in_float32 = [product("layers.0.moe", 99, "float32"), product("layers.0.moe", 1)]
    router = [product("layers.0.moe", 999), product("layers.0.moe.router", 1, "float32")]
    assert not any(explained(with_program(smoke_ledger(), rows=rows)).remarks for rows in (in_float32, router))


def test_a_peak_above_the_memory_of_the_imitated_gpu_does_not_fit() -> None:
    ledger = with_program(smoke_ledger(), peak_bytes=90 * GB).model_copy(update={"gpu": "h100"})
    (remark,) = explained(ledger).remarks
    assert (remark.pattern, remark.text[:38]) == ("does not fit", "the step holds 90.0 GB at its peak, an")
    assert not explained(ledger.model_copy(update={"gpu": "h200"})).remarks


def test_shares_of_modules_add_up() -> None:
    explanation = explained(HEALTHY)
    moe, *others = explanation.modules
    assert (moe.where, moe.flops, moe.launches, moe.waits) == ("layers.*.moe", 4 * 10**12, 8, 4)
    assert not any(share.flops for share in others)
    shares = explanation.modules
    assert sum(share.collectives for share in shares) == sum(entry.count for entry in HEALTHY.entries)
    assert sum(share.collective_bytes for share in shares) == sum(entry.bytes for entry in HEALTHY.entries)
    assert [share.bytes for share in explanation.collectives] == sorted(
        (share.bytes for share in explanation.collectives), reverse=True
    )
