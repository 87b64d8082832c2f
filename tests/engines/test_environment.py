"""The software environment in a run's record: toolkit, NCCL, driver, container, and variables that affect speed."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from regbot.baselines.intake import environment_of
from regbot.engines import LocalEngine, Needs, clean_environment
from regbot.engines.health.machine import image_digest, this_node
from regbot.records.baseline import ABSENT
from regbot.records.run import Environment, Node
from regbot.workloads.guest import Checkout, Scratch, trace
from regbot_guest.software import fingerprint, nccl, relevant_variables, toolkit
from support.layers import ARM, LIMITS, layer_task, write_repository
from support.timed_builder import slot, statics, timed_run

STACK = Environment(
    python="3.11.9",
    torch="2.13.0+cu130",
    platform="linux",
    packages="e" * 64,
    toolkit="cuda 13.0",
    nccl="2.28.9",
    variables="f" * 64,
)
IMAGE = "sha256:" + "0123456789abcdef" * 4


# ---- variables


MATTER = {
    "NCCL_ALGO": "Ring",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "NVTE_FLASH_ATTN": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_gpu_enable_latency_hiding_scheduler=true",
    "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": "8",
    "LD_PRELOAD": "/usr/lib/libjemalloc.so",
    "LD_LIBRARY_PATH": "/opt/nccl/lib",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "PYTHONOPTIMIZE": "1",
}
PER_LAUNCH = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "c6f2143",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/tmp/dump",
    "TORCHINDUCTOR_CACHE_DIR": "/cache/a",
    "CUDA_VISIBLE_DEVICES": "4,5",
    "NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p",
    "PATH": "/usr/bin",
    "HF_TOKEN": "secret",
}


@pytest.mark.parametrize("name", MATTER)
def test_a_variable_that_can_change_a_step_time_changes_the_fingerprint(name: str) -> None:
    whole = fingerprint({**MATTER, **PER_LAUNCH})
    assert fingerprint({**MATTER, name: "another"}) != whole
    assert fingerprint({key: value for key, value in MATTER.items() if key != name}) != whole


def test_a_variable_that_differs_from_launch_to_launch_does_not_change_the_fingerprint() -> None:
    assert relevant_variables({**PER_LAUNCH, **MATTER}) == MATTER
    assert fingerprint({**MATTER, **PER_LAUNCH}) == fingerprint(MATTER)


def test_dump_and_cache_folders_of_xla_do_not_change_the_fingerprint() -> None:
    flags = "--xla_dump_to=/tmp/{} --xla_gpu_autotune_level=0 --xla_dump_hlo_as_text"
    assert relevant_variables({"XLA_FLAGS": flags.format("a")}) == {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}
    assert relevant_variables({"XLA_FLAGS": "--xla_dump_to=/tmp/a"}) == {}


@pytest.mark.slow
def test_a_real_guest_hashes_its_initial_environment_without_the_caches_of_its_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables that code under test or torch sets later are left out too."""
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    root = write_repository(tmp_path / "repository", "import os\nos.environ['NCCL_PROTO'] = 'LL'\nraise SystemExit\n")
    caches = {name: str(tmp_path) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")}
    run = trace(layer_task(), Checkout(ARM, root, caches), LocalEngine(), Scratch(tmp_path / "scratch", LIMITS))
    assert run.environment is not None
    given = {**clean_environment({}), "MALLOC_MMAP_THRESHOLD_": "65536"}
    assert relevant_variables(given)["NCCL_ALGO"] == "Ring"
    assert run.environment.variables == fingerprint(given)


# ---- what torch was built with


def a_torch(cuda: str | None = None, hip: str | None = None, **parts: Any) -> Any:
    values = {"is_available": lambda: True, "is_nccl_available": lambda: True, "version": lambda: (2, 28, 9), **parts}
    return SimpleNamespace(
        version=SimpleNamespace(cuda=cuda, hip=hip),
        distributed=SimpleNamespace(is_available=values["is_available"], is_nccl_available=values["is_nccl_available"]),
        cuda=SimpleNamespace(nccl=SimpleNamespace(version=values["version"])),
    )


def test_the_toolkit_is_what_torch_was_built_with() -> None:
    assert toolkit(a_torch(cuda="13.0")) == "cuda 13.0"
    assert toolkit(a_torch(hip="7.1.25424")) == "rocm 7.1.25424"
    assert toolkit(a_torch()) == "none"
    assert toolkit(SimpleNamespace(version=SimpleNamespace(cuda="12.8"))) == "cuda 12.8", "an old torch has no hip"


def test_nccl_is_a_version_or_none_if_torch_lacks_it() -> None:
    assert nccl(a_torch()) == "2.28.9"
    assert nccl(a_torch(is_nccl_available=lambda: False)) == "none"
    assert nccl(a_torch(is_available=lambda: False)) == "none"


# ---- the node


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on PATH for an nvidia-smi."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    this_node.cache_clear()
    yield tmp_path / "nvidia-smi"
    this_node.cache_clear()


def says(tool: Path, text: str, code: int = 0) -> None:
    tool.write_text(f"#!/bin/sh\necho \"$@\" > {tool}.asked\ncat <<'END'\n{text}\nEND\nexit {code}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)


def test_the_driver_is_named_with_the_gpus(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says(driver, "NVIDIA H200, 580.82.07\nNVIDIA H200, 580.82.07")
    monkeypatch.setenv("REGBOT_CONTAINER", f"registry.example/train@{IMAGE}")
    node = this_node()
    assert (node.gpus, node.node_class, node.driver) == (["NVIDIA H200"] * 2, "2 x NVIDIA H200", "580.82.07")
    assert node.container == IMAGE
    assert "--query-gpu=name,driver_version" in Path(f"{driver}.asked").read_text()


def test_times_of_processors_are_never_filed_under_the_class_of_the_gpus(driver: Path) -> None:
    says(driver, "NVIDIA H200, 580.82.07")
    engine, processors, gpu = LocalEngine(), Needs(ranks=2), Needs(ranks=1, gpus=1)
    assert (engine.describe(gpu).node_class, engine.describe(gpu).driver) == ("1 x NVIDIA H200", "580.82.07")
    assert engine.describe(Needs(ranks=0)) == engine.describe(gpu), "a program chooses its devices by itself"
    node = engine.describe(processors)
    assert (node.gpus, node.driver) == ([], "none")
    assert "NVIDIA" not in node.node_class
    assert "core" in node.node_class
    assert engine.kind(processors) != engine.kind(gpu)
    with engine.seat(processors) as seat:
        assert seat.node == node


@pytest.mark.parametrize(("text", "code"), [("", 0), ("NVIDIA-SMI has failed, because", 9)], ids=["none", "broken"])
def test_a_node_without_gpus_has_no_driver(driver: Path, text: str, code: int) -> None:
    says(driver, text, code)
    assert (this_node().gpus, this_node().driver) == ([], "none")


@pytest.mark.parametrize(
    ("given", "digest"),
    [
        (IMAGE, IMAGE),
        (f"registry.example:5000/a/b@{IMAGE}", IMAGE),
        ("registry.example/train:latest", None),
        ("sha256:0123", None),
    ],
)
def test_an_image_is_known_by_its_digest_only(given: str, digest: str | None) -> None:
    assert image_digest(given) == digest


# ---- the key of stored baselines


def test_a_trace_depends_on_no_driver_and_a_node_without_gpus_has_none() -> None:
    traced = statics()[0].model_copy(update={"environment": STACK})
    assert (environment_of(traced).driver, environment_of(traced).toolkit) == (ABSENT, "cuda 13.0")
    run = timed_run(slot(1, 0, "base"), 0.1, node=Node(name="a", node_class="b", cores=2), environment=STACK)
    assert environment_of(run).driver == ABSENT
    unknown = STACK.model_copy(update={"toolkit": None, "nccl": None, "variables": None})
    old = run.model_copy(update={"environment": unknown})
    assert environment_of(old).unknown == ["container", "variables"], "an old record has no more unknown fields"
