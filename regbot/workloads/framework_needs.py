"""What a fresh Python needs, beside regbot, to trace each framework's own repository without a GPU.

The pages in docs/frameworks/ print these lists, ``regbot init`` writes them into the workflow of the hosted runner, and
``regbot doctor --workload`` compares them with an interpreter. The main branches of August 2026 were traced with them.
A later one may import more.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement

from regbot.records.config import Workload


@dataclass(frozen=True)
class FrameworkNeeds:
    """An environment for traces: a Python with these packages, and commands."""

    packages: tuple[str, ...]
    python: str = "3.12"
    torch: str = "torch==2.13.0"
    """Requirement for torch. '' if the framework does not use torch. torch may come from another index than
    ``packages``.
    """
    module: str = ""
    """The framework's own module, which a checkout of the framework has in a source root."""
    distribution: str = ""
    """Package to install if the checkout lacks ``module``. '' if only the checkout's code is traced."""
    source: str = ""
    """Folder to install the framework from, because the package in the index is incomplete. '' if it is complete."""
    commands: tuple[str, ...] = ()


TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""Package index of torch's CPU builds. They are smaller than builds with CUDA, and a trace needs no more."""

NEWER_GLIBC: Mapping[str, str] = {"nvidia-resiliency-ext": "manylinux_2_39"}
"""Packages whose wheels ask pip for a newer glibc than the Python code in them needs, and the platform of the wheel."""

MODULES: Mapping[str, str] = {
    "aqtp": "aqt",
    "hydra-core": "hydra",
    "megatron-energon": "megatron.energon",
    "nvidia-modelopt": "modelopt",
    "orbax-checkpoint": "orbax.checkpoint",
    "pillow": "PIL",
    "pyyaml": "yaml",
    "tensorflow-cpu": "tensorflow",
}


def module_name(package: str) -> str:
    return MODULES.get(package, package.replace("-", "_"))


def package_names(packages: Iterable[str]) -> list[str]:
    """Return the names in requirements, for use beside other requirements that have versions."""
    return [Requirement(package).name for package in packages]


_TORCHTITAN_PACKAGES = (
    "torchdata", "torch_checkpointing", "datasets<4.8.0,>=3.6.0", "tokenizers", "safetensors", "tyro", "tensorboard",
    "einops", "pillow", "spmd_types==0.2.3", "grain==0.2.18", "portpicker", "triton",
)  # fmt: skip
# regex: Megatron-LM's main branch imports it up to February 2026. transformer_engine: only Python, without its extras.
_MEGATRON_PACKAGES = (
    "triton", "einops", "pyyaml", "packaging", "pybind11", "omegaconf", "six", "pydantic", "onnx", "onnxscript",
    "regex", "transformer_engine==2.20.2",
)  # fmt: skip
# The last five packages are those that nvidia-resiliency-ext requires.
_MEGATRON_BRIDGE_PACKAGES = (
    "triton", "transformers<=5.12.1,>=5.8", "accelerate", "datasets", "diffusers", "einops", "hydra-core",
    "megatron-energon==7.4.1", "mistral-common", "nvidia-modelopt", "nvidia-resiliency-ext==0.6.0", "omegaconf",
    "onnx", "onnxscript", "packaging", "peft", "pybind11", "pydantic", "pyyaml", "regex", "six", "tensorboard",
    "transformer_engine==2.20.2", "defusedxml", "grpcio-tools", "httpx", "nvidia-ml-py", "psutil",
)  # fmt: skip
_MAXTEXT_PACKAGES = (
    "jax==0.12.0.1", "jaxlib==0.12.0.1", "flax==0.12.12", "optax==0.2.8", "orbax-checkpoint==0.12.8", "grain==0.2.18",
    "tokamax==0.0.17", "qwix==0.1.8", "aqtp==0.9.0", "drjax==0.2.1", "pathwaysutils==0.1.13", "omegaconf==2.4.0",
    "tensorflow-cpu==2.21.0", "transformers==5.23.0", "sentencepiece==0.2.3", "tiktoken==0.14.0", "jinja2==3.1.6",
    "pillow==13.0.0", "sympy==1.14.0",
)  # fmt: skip

FRAMEWORK_NEEDS: Mapping[str, FrameworkNeeds] = {
    # torch 2.13 refuses the default SPMD backend of torchtitan's main branch
    "torchtitan": FrameworkNeeds(
        _TORCHTITAN_PACKAGES, torch="torch==2.14.1", module="torchtitan", distribution="torchtitan"
    ),
    "megatron": FrameworkNeeds(
        _MEGATRON_PACKAGES,
        module="megatron.core",
        distribution="megatron-core",
        source="path/to/Megatron-LM",  # its packages lack the Makefile of the dataset helpers
        commands=("make",),  # compiles Megatron's helpers for datasets
    ),
    "megatron-bridge": FrameworkNeeds(_MEGATRON_BRIDGE_PACKAGES, module="megatron.bridge", commands=("make",)),
    "maxtext": FrameworkNeeds(_MAXTEXT_PACKAGES, torch="", module="maxtext"),
}
"""What each framework needs, by adapter. Recipes of Megatron Bridge have an entry of their own, but their adapter is
``megatron``.
"""

TESTED_TORCH = ("2.11", "2.14")
"""Oldest and newest torch on which the tests of static traces pass. The extra ``smoke`` requires at least the oldest
one.
"""

_major, _minor = TESTED_TORCH[1].split(".")
_torch = f"torch<{_major}.{int(_minor) + 1},>={TESTED_TORCH[0]}"
OWN_MODEL_NEEDS = FrameworkNeeds(packages=(), python="3.10", torch=_torch)
"""Needs of the adapters ``smoke`` and ``module``. A user's layer may import more."""


def needs_of(workload: Workload) -> FrameworkNeeds:
    if workload.runs_bridge:
        return FRAMEWORK_NEEDS["megatron-bridge"]
    return FRAMEWORK_NEEDS.get(workload.adapter, OWN_MODEL_NEEDS)
