"""What ``regbot explain`` says of one step."""

from typing import Any

import pytest

from regbot.ledgers.explanation import explain
from regbot.records.config import Config
from regbot.records.explanation import Explanation
from regbot.records.ledger import Ledger
from support.ledger_builder import smoke_ledger
from support.program_builder import GB, compute_row, holder, program_of, wait, with_program

LINE = "moe.py:41"
IN_LAYERS = [f"layers.{layer}.moe" for layer in range(4)]


def with_parts(**parts: Any) -> Ledger:
    """A healthy ledger whose Program has ``parts`` of its own: one read of splits a layer."""
    return with_program(program_of(**{"waits": [wait(where=where) for where in IN_LAYERS], **parts}), gpu="h200")


def explained(ledger: Ledger) -> Explanation:
    return explain(ledger, Config().wire)


WIDE = compute_row("layers.0.moe", 1, dtype="float32", line=LINE)
HEALTHY = with_parts()


def test_a_step_without_waste_gets_no_remark() -> None:
    assert not explained(HEALTHY).remarks
    assert not explained(smoke_ledger()).remarks  # a trace without a Program


@pytest.mark.parametrize(
    ("ledger", "pattern", "words"),
    [
        (smoke_ledger(dispatcher="allgather"), "tokens gathered", "every rank of 16 receives every token"),
        (smoke_ledger(recompute=True), "more exchanges than needed", "16 all-to-all of tokens in backward; 4 modules"),
        (
            with_parts(waits=[wait("synchronize", where, line=LINE) for where in IN_LAYERS]),
            "host waits in a layer",
            "waits 4 times for the device (synchronize), in 4 modules",
        ),
        (
            with_parts(waits=[wait(where=where, count=9, line=LINE) for where in IN_LAYERS]),
            "host waits in a layer",
            "36 times",
        ),
        (
            with_parts(rows=[compute_row("layers.0.moe", 99), WIDE]),
            "product in a wide dtype",
            "1.0% of the step, whose other products are in bfloat16",
        ),
        (
            with_parts(holders=[holder("temporary", where, GB, LINE) for where in IN_LAYERS]),
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
    in_float32 = [compute_row("layers.0.moe", 99, dtype="float32"), compute_row("layers.0.moe", 1)]
    router = [compute_row("layers.0.moe", 999), compute_row("layers.0.moe.router", 1, dtype="float32")]
    assert not any(explained(with_parts(rows=rows)).remarks for rows in (in_float32, router))


def test_one_large_buffer_of_a_layer_is_no_remark() -> None:
    assert not explained(with_parts(holders=[holder("temporary", "layers.0.moe", 9 * GB)])).remarks


def test_a_peak_above_the_memory_of_the_imitated_gpu_does_not_fit() -> None:
    ledger = with_parts(peak_bytes=90 * GB)
    assert not explained(ledger).remarks
    (remark,) = explained(ledger.model_copy(update={"gpu": "h100"})).remarks
    assert (remark.pattern, remark.text[:38]) == ("does not fit", "the step holds 90.0 GB at its peak, an")


def test_shares_of_modules_add_up() -> None:
    explanation = explained(HEALTHY)
    experts, *_ = explanation.modules
    assert (experts.where, experts.flops, experts.launches) == ("layers.*.moe.experts", 4 * 24 * 10**12, 4 * 30)
    assert sum(share.waits for share in explanation.modules) == 4
    shares = explanation.modules
    assert sum(share.collectives for share in shares) == sum(entry.count for entry in HEALTHY.entries)
    assert sum(share.collective_bytes for share in shares) == sum(entry.bytes for entry in HEALTHY.entries)
    assert [share.bytes for share in explanation.collectives] == sorted(
        (share.bytes for share in explanation.collectives), reverse=True
    )
    *payload, control = explanation.collectives
    assert all(payload_share.wire_s for payload_share in payload)
    assert (control.kind, control.wire_s) == ("all_to_all", None)
    assert explanation.program is not None
    assert explanation.program.rows == []
    assert [(each.where, each.count) for each in explanation.program.waits] == [("layers.*.moe", 4)]
