"""Flex attention as one kernel, and initial values that are drawn until they lie inside of bounds."""

from pathlib import Path

from support.paper_runs import read_answer


def test_flex_attention_is_one_kernel_without_scores(paper_library: Path) -> None:
    answer = read_answer(paper_library, "attention.py")
    assert answer["output"] == [2, 8, 256, 32, "torch.bfloat16"]
    assert answer["gradients"] == [[2, 8, 256, 64], [2, 2, 256, 64], [2, 2, 256, 32]]
    # Selective checkpointing saves the output, so backward does not compute it again.
    assert answer["launches"] == {"higher_order::flex_attention": 1, "higher_order::flex_attention_backward": 1}
    assert answer["peak"] < 2 * 8 * 256 * 256 * 2, "the matrix of scores was stored"
    assert answer["host"] == 128 * 16
    assert answer["refusals"] == []
