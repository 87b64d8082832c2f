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
from regbot.records.run import Node
from support.ledger_builder import backend, smoke_arm, smoke_ledger, smoke_run

Config = dict[str, Scalar]

FLEX = {"moe_token_dispatcher_type": "flex"}
OVERLAP = {"overlap_moe_expert_parallel_comm": True}
DELAY = {"delay_wgrad_compute": True}
TE_GRAPHS = {"cuda_graph_impl": "transformer_engine"}
H100 = {"gpu": "NVIDIA H100 80GB HBM3", "capability_major": 9}
GB200 = {"gpu": "NVIDIA GB200", "capability_major": 10}
V100 = {"gpu": "Tesla V100-SXM2-32GB", "capability_major": 7}

CASES: dict[str, tuple[Config, Config]] = {
    "asked-dispatcher-not-resolved": (
        {"moe_token_dispatcher_type": "alltoall", "requested_dispatcher": "deepep"},
        {"requested_dispatcher": "alltoall"},
    ),
    "flex-backend-without-flex": (
        {"moe_token_dispatcher_type": "alltoall", "moe_flex_dispatcher_backend": "hybridep"},
        {"moe_flex_dispatcher_backend": "deepep"},
    ),
    "enable-deepep-without-flex": (
        {"moe_token_dispatcher_type": "alltoall", "moe_enable_deepep": True},
        {"moe_token_dispatcher_type": "flex"},
    ),
    "flex-without-backend": ({**FLEX, "moe_flex_dispatcher_backend": None}, {"moe_flex_dispatcher_backend": "deepep"}),
    "flex-without-experts": ({**FLEX, "num_moe_experts": None}, {"num_moe_experts": 8}),
    "deepep-gpu": ({**FLEX, "moe_flex_dispatcher_backend": "deepep", **GB200}, {"gpu": "NVIDIA B200"}),
    "hybridep-gpu": ({**FLEX, "moe_flex_dispatcher_backend": "hybridep", **V100}, {"gpu": "NVIDIA B200"}),
    "ncclep-gpu": (
        {**FLEX, "moe_flex_dispatcher_backend": "ncclep", "gpu": "NVIDIA A100-SXM4-80GB", "capability_major": 8},
        {"gpu": "NVIDIA H100 80GB HBM3"},
    ),
    "flex-backend-on-amd": (
        {**FLEX, "moe_flex_dispatcher_backend": "deepep", "gpu": "AMD Instinct MI300X"},
        {"gpu": "NVIDIA H100 80GB HBM3"},
    ),
    "fake-process-group-with-flex": ({**FLEX, "fake_process_group": True}, {"fake_process_group": False}),
    "allgather-default": (
        {"moe_token_dispatcher_type": "allgather", "expert_model_parallel_size": 2},
        {"expert_model_parallel_size": 1},
    ),
    "deepep-ranks": (
        {
            **FLEX,
            "moe_flex_dispatcher_backend": "deepep",
            "expert_tensor_parallel_size": 1,
            "expert_model_parallel_size": 12,
        },
        {"expert_model_parallel_size": 24},
    ),
    "ep-overlap-ep-1": ({**OVERLAP, "expert_model_parallel_size": 1}, {"expert_model_parallel_size": 2}),
    "ep-overlap-one-expert": ({**OVERLAP, "num_moe_experts": 1}, {"num_moe_experts": 2}),
    "ep-overlap-dispatcher": (
        {**OVERLAP, "moe_token_dispatcher_type": "allgather"},
        {"moe_token_dispatcher_type": "alltoall"},
    ),
    "ep-overlap-precision": ({**OVERLAP, "bf16": False, "fp16": False}, {"fp16": True}),
    "ep-overlap-old-torch": ({**OVERLAP, "torch": "2.5.1+cu124"}, {"torch": "2.6.0a0+df5bbc09d1"}),
    "ep-overlap-pipeline-without-virtual": (
        {**OVERLAP, "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": None},
        {"virtual_pipeline_model_parallel_size": 4},
    ),
    "ep-overlap-full-recompute": ({**OVERLAP, "recompute_granularity": "full"}, {"recompute_granularity": "selective"}),
    "ep-overlap-recompute-method": ({**OVERLAP, "recompute_method": "uniform"}, {"recompute_method": None}),
    "ep-overlap-recompute-layers": ({**OVERLAP, "recompute_num_layers": 1}, {"recompute_num_layers": None}),
    "ep-overlap-recompute-moe": (
        {**OVERLAP, "recompute_modules": "core_attn moe"},
        {"recompute_modules": "core_attn moe_act"},
    ),
    "ep-overlap-shared-expert": ({**OVERLAP, "moe_shared_expert_overlap": True}, {"moe_shared_expert_overlap": False}),
    "ep-overlap-mtp": ({**OVERLAP, "mtp_num_layers": 2}, {"mtp_num_layers": 1}),
    "wgrad-overlap-with-ep-overlap": (
        {**OVERLAP, "overlap_dispatch_backward_with_experts_wgrad": True},
        {"overlap_moe_expert_parallel_comm": False},
    ),
    "wgrad-overlap-old-te": (
        {"overlap_dispatch_backward_with_experts_wgrad": True, "transformer_engine": "2.2.0"},
        {"transformer_engine": "2.3"},
    ),
    "early-release-without-ep-overlap": (
        {"ep_overlap_early_attn_memory_release": True, "overlap_moe_expert_parallel_comm": False},
        {"overlap_moe_expert_parallel_comm": True},
    ),
    "delay-wgrad-without-ep-overlap": (
        {**DELAY, "overlap_moe_expert_parallel_comm": False},
        {"overlap_moe_expert_parallel_comm": True},
    ),
    "delay-wgrad-old-te": (
        {
            **OVERLAP,
            **DELAY,
            "overlap_grad_reduce": True,
            "gradient_accumulation_fusion": False,
            "transformer_engine": "2.6.0",
        },
        {"transformer_engine": "2.7.0"},
    ),
    "delay-wgrad-graphs-old-te": (
        {**OVERLAP, **DELAY, **TE_GRAPHS, "cuda_graph_modules": "attn moe_router", "transformer_engine": "2.11.0"},
        {"cuda_graph_modules": "moe_router"},
    ),
    "delay-wgrad-graphs-without-fusion": (
        {**OVERLAP, **DELAY, **TE_GRAPHS, "cuda_graph_scope": "attn", "gradient_accumulation_fusion": False},
        {"gradient_accumulation_fusion": True},
    ),
    "delay-wgrad-graphs-bias": (
        {**OVERLAP, **DELAY, **TE_GRAPHS, "cuda_graph_modules": "attn", "add_qkv_bias": True},
        {"add_qkv_bias": False},
    ),
    "graphs-full-recompute": (
        {"cuda_graph_impl": "local", "recompute_granularity": "full"},
        {"cuda_graph_impl": "full_iteration"},
    ),
    "graphs-router-recompute-moe": (
        {
            **TE_GRAPHS,
            "cuda_graph_modules": "[CudaGraphModule.attn, CudaGraphModule.moe_router]",
            "recompute_granularity": "selective",
            "recompute_modules": "moe",
        },
        {"recompute_modules": "core_attn"},
    ),
    "graphs-experts-with-ep-overlap": (
        {**OVERLAP, **TE_GRAPHS, "cuda_graph_modules": "attn moe"},
        {"cuda_graph_modules": "attn moe_router moe_preprocess"},
    ),
    "graphs-experts-without-drop-and-pad": (
        {
            **TE_GRAPHS,
            "cuda_graph_modules": "moe",
            "moe_expert_capacity_factor": 1.0,
            "moe_pad_expert_input_to_capacity": False,
        },
        {"moe_pad_expert_input_to_capacity": True},
    ),
    "graphs-moe-and-router": (
        {**TE_GRAPHS, "cuda_graph_modules": "moe moe_router"},
        {"cuda_graph_modules": "attn moe_router"},
    ),
    "full-iteration-graph-without-drop-and-pad": (
        {"cuda_graph_impl": "full_iteration", "num_moe_experts": 128, "moe_pad_expert_input_to_capacity": False},
        {"moe_pad_expert_input_to_capacity": True},
    ),
    "param-gather-out-of-step": (
        {"ddp.overlap_param_gather": True, "optimizer.overlap_param_gather": False},
        {"optimizer.overlap_param_gather": True},
    ),
    "tp-overlap-disabled": (
        {"tp_comm_overlap": True, "tensor_model_parallel_size": 1, "sequence_parallel": True},
        {"tensor_model_parallel_size": 2},
    ),
    "permute-fusion-old-te": (
        {"moe_permute_fusion": True, "transformer_engine": "2.0"},
        {"transformer_engine": "2.1.0"},
    ),
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
    "moe_token_dispatcher_type": "flex",
    "moe_flex_dispatcher_backend": "hybridep",
    "num_moe_experts": 128,
    "moe_router_topk": 8,
    "expert_model_parallel_size": 8,
    "pipeline_model_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": None,
    "tensor_model_parallel_size": 1,
    "tp_comm_overlap": False,
    "overlap_moe_expert_parallel_comm": True,
    "delay_wgrad_compute": False,
    "moe_shared_expert_overlap": False,
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_num_layers": None,
    "recompute_modules": "core_attn",
    "mtp_num_layers": None,
    "bf16": True,
    "fp16": False,
    "cuda_graph_impl": "transformer_engine",
    "cuda_graph_modules": "moe_router moe_preprocess",
    "moe_permute_fusion": True,
    "ddp.overlap_param_gather": True,
    "optimizer.overlap_param_gather": True,
}
"""The canonical Qwen3-30B-A3B recipe on 16 H100, with the keys that rules test."""

NODE = facts({**H100, "requested_dispatcher": "hybridep", "torch": "2.13.0", "transformer_engine": "2.14.0"})


def test_a_published_recipe_has_no_conflict() -> None:
    assert find_conflicts(SOUND, NODE) == []
    assert "0 conflicts, 0 warnings" in preflight_page([], [])


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
    assert evaluate(document, config, Facts()).value is value


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
    page = preflight_page(find_conflicts(config, NODE), find_advice(NODE, config, "qwen3"))
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
