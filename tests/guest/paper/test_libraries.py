"""Stand-ins for compiled libraries: what they lack is refused by its full name when it is called, not before."""

from pathlib import Path

from support.paper_runs import read_answer

REFUSED = {
    "method of a buffer": "deep_ep.Buffer.low_latency_dispatch was called with tensors of [(2, 3)]: ",
    "function of a submodule": "deep_ep.buffers.legacy.Buffer was called: ",
    "subclass of userbuffers": "transformer_engine_torch.CommOverlapCore was called with tensors of [(2, 3)]: ",
    "decoding of flash-attn": "flash_attn_2_cuda.fwd_kvcache was called with tensors of [(2, 3), (2, 3), (2, 3)]: ",
}
UNMODELLED_ARGUMENTS = {
    "FP8 of a buffer": "HybridEPBuffer was called with use_fp8",
    "bias of a combine": "Buffer.combine was called with bias",
    "FP8 rows": "Buffer.dispatch was called with FP8 rows",
    "another layout": "ElasticBuffer.dispatch was called with do_expand",
}
REASON = (
    "the paper GPU has no stand-in for it. Declare one (docs/module.md, Compiled extensions), or switch off what calls "
    "it"
)


def test_what_a_stand_in_lacks_can_be_looked_up_and_is_refused_when_called(paper_library: Path) -> None:
    answer = read_answer(paper_library, "libraries.py")
    unmodelled = {
        name: f"deep_ep.{use}, which its stand-in does not model" for name, use in UNMODELLED_ARGUMENTS.items()
    }
    assert answer["uses"] == {name: start + REASON for name, start in REFUSED.items()} | unmodelled
    true_lookups = dict.fromkeys(("enumeration", "has", "fused is another program", "same settings", "sizes"), True)
    assert answer["lookups"] == {**true_lookups, "instance": False, "dunder": False}
    assert all(answer["autograd"].values()), answer["autograd"]
    # The shapes of the fake kernels in flash_attn/flash_attn_interface.py. Rows of the backward are padded to 128.
    assert answer["flash"] == {
        "forward": [[2, 100, 4, 8], [2, 4, 100], [0], [2]],
        "packed forward": [[100, 4, 8], [4, 100], [0], [2]],
        "backward": [[2, 100, 4, 8], [2, 100, 2, 8], [2, 100, 2, 8], [2, 4, 128]],
        "packed backward": [[100, 4, 8], [100, 2, 8], [100, 2, 8], [4, 356]],
        "writes to the given gradient": True,
        "log-sum-exp": "torch.float32",
    }
    assert answer["softmax"] == [2, 4, 16, 16]
    # torch activates FlashAttention 3 without its kernels, which no CPU has.
    assert answer["newer"][0] == "FA3"
    assert "FlashAttention 3 is a stand-in whose functions give shapes" in answer["newer"]
