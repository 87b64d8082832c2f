"""Preflight: every rule applies in its case, and not if one value is different or unknown."""

import os
from pathlib import Path
from typing import Any

import pytest

from regbot.judge.preflight.conditions import evaluate
from regbot.judge.preflight.facts import Facts, facts_of_run, read_dump
from regbot.judge.preflight.rules import find_advice, find_conflicts, preflight_page, shipped
from regbot.records.files import RecordError, write_record
from regbot.records.ledger import Scalar
from regbot.records.preflight import Preflight
from regbot.records.run import Node
from support.ledger_builder import backend, smoke_arm, smoke_ledger, smoke_run

Config = dict[str, Scalar]

DISPATCHER, BACKEND, EP = "moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "expert_model_parallel_size"
NUM_EXPERTS, PADDED = "num_moe_experts", "moe_pad_expert_input_to_capacity"
EP_OVERLAP, WGRAD_OVERLAP = "overlap_moe_expert_parallel_comm", "overlap_dispatch_backward_with_experts_wgrad"
GRANULARITY, RECOMPUTED, GRAPHED = "recompute_granularity", "recompute_modules", "cuda_graph_modules"
VIRTUAL_PP, FUSED_GRADIENTS = "virtual_pipeline_model_parallel_size", "gradient_accumulation_fusion"
TE = "transformer_engine"
FLEX = {DISPATCHER: "flex"}
DEEPEP, HYBRIDEP, NCCLEP = ({**FLEX, BACKEND: backend} for backend in ("deepep", "hybridep", "ncclep"))
OVERLAP = {EP_OVERLAP: True}
DELAY = {"delay_wgrad_compute": True}
TE_GRAPHS = {"cuda_graph_impl": "transformer_engine"}
H100 = {"gpu": "NVIDIA H100 80GB HBM3", "capability_major": 9}
GB200 = {"gpu": "NVIDIA GB200", "capability_major": 10}
V100 = {"gpu": "Tesla V100-SXM2-32GB", "capability_major": 7}

CASES: dict[str, tuple[Config, Config]] = {
    "asked-dispatcher-not-resolved": (
        {DISPATCHER: "alltoall", "requested_dispatcher": "deepep"},
        {"requested_dispatcher": "alltoall"},
    ),
    "flex-backend-without-flex": ({DISPATCHER: "alltoall", BACKEND: "hybridep"}, {BACKEND: "deepep"}),
    "enable-deepep-without-flex": ({DISPATCHER: "alltoall", "moe_enable_deepep": True}, {DISPATCHER: "flex"}),
    "flex-without-backend": ({**FLEX, BACKEND: None}, {BACKEND: "deepep"}),
    "flex-without-experts": ({**FLEX, NUM_EXPERTS: None}, {NUM_EXPERTS: 8}),
    "deepep-gpu": ({**DEEPEP, **GB200}, {"gpu": "NVIDIA B200"}),
    "hybridep-gpu": ({**HYBRIDEP, **V100}, {"gpu": "NVIDIA B200"}),
    "ncclep-gpu": ({**NCCLEP, "gpu": "NVIDIA A100-SXM4-80GB", "capability_major": 8}, {"gpu": "NVIDIA H100 80GB HBM3"}),
    "flex-backend-on-amd": ({**DEEPEP, "gpu": "AMD Instinct MI300X"}, {"gpu": "NVIDIA H100 80GB HBM3"}),
    "fake-process-group-with-flex": ({**FLEX, "fake_process_group": True}, {"fake_process_group": False}),
    "allgather-default": ({DISPATCHER: "allgather", EP: 2}, {EP: 1}),
    "deepep-ranks": ({**DEEPEP, "expert_tensor_parallel_size": 1, EP: 12}, {EP: 24}),
    "ep-overlap-ep-1": ({**OVERLAP, EP: 1}, {EP: 2}),
    "ep-overlap-one-expert": ({**OVERLAP, NUM_EXPERTS: 1}, {NUM_EXPERTS: 2}),
    "ep-overlap-dispatcher": ({**OVERLAP, DISPATCHER: "allgather"}, {DISPATCHER: "alltoall"}),
    "ep-overlap-precision": ({**OVERLAP, "bf16": False, "fp16": False}, {"fp16": True}),
    "ep-overlap-old-torch": ({**OVERLAP, "torch": "2.5.1+cu124"}, {"torch": "2.6.0a0+df5bbc09d1"}),
    "ep-overlap-pipeline-without-virtual": (
        {**OVERLAP, "pipeline_model_parallel_size": 2, VIRTUAL_PP: None},
        {VIRTUAL_PP: 4},
    ),
    "ep-overlap-full-recompute": ({**OVERLAP, GRANULARITY: "full"}, {GRANULARITY: "selective"}),
    "ep-overlap-recompute-method": ({**OVERLAP, "recompute_method": "uniform"}, {"recompute_method": None}),
    "ep-overlap-recompute-layers": ({**OVERLAP, "recompute_num_layers": 1}, {"recompute_num_layers": None}),
    "ep-overlap-recompute-moe": ({**OVERLAP, RECOMPUTED: "core_attn moe"}, {RECOMPUTED: "core_attn moe_act"}),
    "ep-overlap-shared-expert": ({**OVERLAP, "moe_shared_expert_overlap": True}, {"moe_shared_expert_overlap": False}),
    "ep-overlap-mtp": ({**OVERLAP, "mtp_num_layers": 2}, {"mtp_num_layers": 1}),
    "wgrad-overlap-with-ep-overlap": ({**OVERLAP, WGRAD_OVERLAP: True}, {EP_OVERLAP: False}),
    "wgrad-overlap-old-te": ({WGRAD_OVERLAP: True, TE: "2.2.0"}, {TE: "2.3"}),
    "early-release-without-ep-overlap": (
        {"ep_overlap_early_attn_memory_release": True, EP_OVERLAP: False},
        {EP_OVERLAP: True},
    ),
    "delay-wgrad-without-ep-overlap": ({**DELAY, EP_OVERLAP: False}, {EP_OVERLAP: True}),
    "delay-wgrad-old-te": (
        {**OVERLAP, **DELAY, "overlap_grad_reduce": True, FUSED_GRADIENTS: False, TE: "2.6.0"},
        {TE: "2.7.0"},
    ),
    "delay-wgrad-graphs-old-te": (
        {**OVERLAP, **DELAY, **TE_GRAPHS, GRAPHED: "attn moe_router", TE: "2.11.0"},
        {GRAPHED: "moe_router"},
    ),
    "delay-wgrad-graphs-without-fusion": (
        {**OVERLAP, **DELAY, **TE_GRAPHS, "cuda_graph_scope": "attn", FUSED_GRADIENTS: False},
        {FUSED_GRADIENTS: True},
    ),
    "delay-wgrad-graphs-bias": (
        {**OVERLAP, **DELAY, **TE_GRAPHS, GRAPHED: "attn", "add_qkv_bias": True},
        {"add_qkv_bias": False},
    ),
    "graphs-full-recompute": ({"cuda_graph_impl": "local", GRANULARITY: "full"}, {"cuda_graph_impl": "full_iteration"}),
    "graphs-router-recompute-moe": (
        {
            **TE_GRAPHS,
            GRAPHED: "[CudaGraphModule.attn, CudaGraphModule.moe_router]",
            GRANULARITY: "selective",
            RECOMPUTED: "moe",
        },
        {RECOMPUTED: "core_attn"},
    ),
    "graphs-experts-with-ep-overlap": (
        {**OVERLAP, **TE_GRAPHS, GRAPHED: "attn moe"},
        {GRAPHED: "attn moe_router moe_preprocess"},
    ),
    "graphs-experts-without-drop-and-pad": (
        {**TE_GRAPHS, GRAPHED: "moe", "moe_expert_capacity_factor": 1.0, PADDED: False},
        {PADDED: True},
    ),
    "graphs-moe-and-router": ({**TE_GRAPHS, GRAPHED: "moe moe_router"}, {GRAPHED: "attn moe_router"}),
    "full-iteration-graph-without-drop-and-pad": (
        {"cuda_graph_impl": "full_iteration", NUM_EXPERTS: 128, PADDED: False},
        {PADDED: True},
    ),
    "param-gather-out-of-step": (
        {"ddp.overlap_param_gather": True, "optimizer.overlap_param_gather": False},
        {"optimizer.overlap_param_gather": True},
    ),
    "tp-overlap-disabled": (
        {"tp_comm_overlap": True, "tensor_model_parallel_size": 1, "sequence_parallel": True},
        {"tensor_model_parallel_size": 2},
    ),
    "permute-fusion-old-te": ({"moe_permute_fusion": True, TE: "2.0"}, {TE: "2.1.0"}),
}
"""By rule: values of a configuration and facts for which it applies, and one value with which it does not."""
FACTS = {"gpu", "capability_major", "torch", "transformer_engine", "requested_dispatcher"}


def facts(values: Config) -> Facts:
    """Build facts from values by the names that rules use."""
    versions = {name: str(value) for name, value in values.items() if name in ("torch", "transformer_engine")}
    fields: dict[str, Any] = {name: value for name, value in values.items() if name in ("gpu", "requested_dispatcher")}
    return Facts(versions=versions, **fields)


def applying(values: Config) -> set[str]:
    """Return the rules that apply to a configuration and facts, told apart by their names."""
    config = {name: value for name, value in values.items() if name not in FACTS}
    return {conflict.rule for conflict in find_conflicts(config, facts(values))}


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == {rule["id"] for rule in shipped("rule")}


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_applies_and_one_other_value_makes_it_not_apply(rule: str) -> None:
    values, change = CASES[rule]
    assert len(change) == 1
    assert change.keys() <= values.keys(), "the change replaces an existing value"
    assert rule in applying(values)
    assert rule not in applying(values | change)


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_with_unknown_values_does_not_apply(rule: str) -> None:
    values, _ = CASES[rule]
    assert rule not in applying({})
    (when,) = (str(entry["when"]) for entry in shipped("rule") if entry["id"] == rule)
    needs_fact = any(f"'fact': '{fact}'" in when for fact in FACTS & values.keys())
    config = {name: value for name, value in values.items() if name not in FACTS}
    assert (rule in applying(config)) != needs_fact


SOUND: Config = {
    **HYBRIDEP,
    **OVERLAP,
    **TE_GRAPHS,
    **dict.fromkeys(("tp_comm_overlap", "delay_wgrad_compute", "moe_shared_expert_overlap", "fp16"), False),
    **dict.fromkeys((GRANULARITY, "recompute_method", "recompute_num_layers", "mtp_num_layers", VIRTUAL_PP), None),
    **dict.fromkeys(("pipeline_model_parallel_size", "tensor_model_parallel_size"), 1),
    **dict.fromkeys(("bf16", "moe_permute_fusion"), True),
    **dict.fromkeys(("ddp.overlap_param_gather", "optimizer.overlap_param_gather"), True),
    **dict.fromkeys(("moe_router_topk", EP), 8),
    NUM_EXPERTS: 128,
    RECOMPUTED: "core_attn",
    GRAPHED: "moe_router moe_preprocess",
}
"""The canonical Qwen3-30B-A3B recipe on 16 H100, with the keys that rules test."""

NODE = facts({**H100, "requested_dispatcher": "hybridep", "torch": "2.13.0", "transformer_engine": "2.14.0"})


def test_a_published_recipe_has_no_conflict() -> None:
    assert find_conflicts(SOUND, NODE) == []
    assert preflight_page(Preflight(workload="w", conflicts=[], advice=[])).startswith(
        "0 conflicts, 0 warnings\nno rule applies"
    )


def test_comm_overlap_has_precedence_over_the_model() -> None:
    config: Config = {
        "comm_overlap.overlap_moe_expert_parallel_comm": True,
        "model.overlap_moe_expert_parallel_comm": False,
        "model.expert_model_parallel_size": 1,
    }
    assert applying(config) == {"ep-overlap-ep-1"}
    config["comm_overlap.overlap_moe_expert_parallel_comm"] = None
    assert applying(config) == set()


# conditions


@pytest.mark.parametrize(
    ("document", "config", "value"),
    [
        ({"key": "a", "eq": True}, {"a": 1}, False),
        ({"key": "a", "eq": 1}, {"a": True}, False),
        ({"key": "a", "ne": 1}, {}, None),
        ({"key": "a", "gt": 1}, {"a": None}, False),
        ({"key": "a", "gt": 1}, {"a": "many"}, False),
        ({"key": "a", "off": True}, {}, True),
        ({"key": "a", "on": True}, {"a": "none"}, False),
        ({"key": "a", "none": True}, {}, None),
        ({"key": "a", "missing": True}, {}, True),
        ({"key": ["a", "b"], "eq": 1}, {"a": None, "b": 1}, True),
        ({"any": [{"key": "a", "eq": 1}, {"key": "b", "eq": 1}]}, {"b": 1}, True),
        ({"any": [{"key": "a", "eq": 1}, {"key": "b", "eq": 1}]}, {"b": 2}, None),
        ({"all": [{"key": "a", "eq": 1}, {"key": "b", "eq": 1}]}, {"b": 2}, False),
        ({"all": [{"key": "a", "eq": 1}, {"key": "b", "eq": 1}]}, {"b": 1}, None),
        ({"key": "a", "before": "2.10"}, {"a": "2.9.1"}, True),
        ({"key": "a", "before": "2.10"}, {"a": "nightly"}, None),
    ],
)
def test_a_condition_is_true_false_or_unknown(document: Any, config: Config, value: bool | None) -> None:
    assert evaluate(document, config, Facts())[0] is value


# advice


@pytest.mark.parametrize(
    ("gpu", "ep", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 8, {"hopper"}),
        ("NVIDIA H200", 32, {"hopper", "hopper-many-nodes"}),
        ("NVIDIA A100-SXM4-80GB", 4, {"ampere"}),
        ("NVIDIA B200", 8, {"blackwell"}),
        ("NVIDIA GB200", 64, {"nvl72"}),
        ("NVIDIA GB300", 8, {"nvl72"}),
        ("AMD Instinct MI300X", 8, {"amd"}),
        ("NVIDIA H100 80GB HBM3", 1, {"nothing-to-dispatch"}),
        ("NVIDIA H100 80GB HBM3", 2, {"hopper", "small-group-large-top-k"}),
        (None, 8, set()),
    ],
)
def test_advice_follows_the_hardware_and_the_expert_parallel_size(gpu: str | None, ep: int, expected: set[str]) -> None:
    config: Config = {"model.expert_model_parallel_size": ep, "model.moe_router_topk": 8}
    assert {item.advice for item in find_advice(Facts(gpu=gpu), config)} == expected


def test_every_advice_has_a_complete_comparison_and_its_command() -> None:
    for entry in shipped("advice"):
        assert entry.get("base", {}).keys() == entry.get("head", {}).keys()
        assert entry.get("head") or entry["id"] == "nothing-to-dispatch"
    items = find_advice(Facts(gpu="NVIDIA H100"), {"expert_model_parallel_size": 8}, "qwen3 ep")
    assert [item.command for item in items] == [
        (
            "regbot check --base HEAD --head HEAD --base-set dispatcher=alltoall --head-set dispatcher=hybridep "
            "--workload 'qwen3 ep'"
        )
    ]


def test_the_page_matches_its_golden_file() -> None:
    config: Config = {**SOUND, "moe_flex_dispatcher_backend": "deepep"}
    conflicts, advice = find_conflicts(config, NODE), find_advice(NODE, config, "qwen3")
    page = preflight_page(Preflight(workload="qwen3", conflicts=conflicts, advice=advice))
    golden = Path(__file__).parents[2] / "golden" / "terminal" / "preflight.txt"
    if os.environ.get("REGBOT_WRITE_GOLDEN"):
        golden.write_text(page)
    assert page == golden.read_text()


# files


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1, 2]", "is not a JSON object"),
        ("model:\n  a: 1\n", "is not valid JSON"),
        ('{"schema": "regbot/verdict@1"}', "is a 'regbot/verdict@1'"),
        ('{"a": 1, "a": 2}', "appears twice"),
    ],
)
def test_a_file_without_a_configuration_is_an_error(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=why):
        read_dump(path)


def test_a_run_record_has_its_own_facts(tmp_path: Path) -> None:
    ledger = smoke_ledger().model_copy(
        update={"config": {"moe_token_dispatcher_type": "alltoall"}, "software": {"torch": "2.13.0"}}
    )
    node = Node(name="n", node_class="8 x H100", cores=8, gpus=["NVIDIA H100 80GB HBM3"] * 8)
    run = smoke_run(smoke_arm("head"), ledger, node=node, backends={"dispatcher": backend("alltoall", "deepep")})
    path = tmp_path / "run.json"
    write_record(path, run)
    dump = read_dump(path)
    assert dump.workload == run.workload
    assert dump.facts == facts_of_run(run)
    assert (dump.facts.value("capability_major"), dump.facts.value("torch")) == (9, "2.13.0")
    assert [conflict.rule for conflict in find_conflicts(dump.config, dump.facts)] == ["asked-dispatcher-not-resolved"]
