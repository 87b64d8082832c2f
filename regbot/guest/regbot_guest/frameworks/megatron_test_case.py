"""A test case of Megatron-LM, such as ``tests/functional_tests/test_cases/moe/NAME/model_config.yaml``, as a command
line.

``MODEL_ARGS`` in this file has flags of the training script with their values, and ``ENV_VARS`` has environment
variables. Flags that name files are left out. The others are kept as they are.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regbot_guest.contract import ContractError
from regbot_guest.frameworks.training_loop import Scalar

FLAGS, VARIABLES = "MODEL_ARGS", "ENV_VARS"

FILE_FLAGS = frozenset({
    "data_path", "data_cache_path", "data_args_path", "vocab_file", "merge_file", "tokenizer_model", "save", "load",
    "tensorboard_dir", "wandb_project", "save_interval", "save_retain_interval", "async_save",
})  # fmt: skip
"""Flags that name a file or a service, or that are refused without such a flag."""
UNTRACED_FLAGS = ("log_num_zeros_in_grad",)
"""Flags for which the host reads an integer that depends on values. No paper GPU has it."""


@dataclass(frozen=True)
class MegatronTestCase:
    """The flags of a test case by their names with ``_``, its environment variables, and warnings for the ledger."""

    flags: Mapping[str, Scalar]
    variables: Mapping[str, str]
    warnings: Sequence[str] = ()

    def size(self, flag: str) -> int:
        """Return the number of a flag; 1 if it is not set. Raises ContractError."""
        value = self.flags.get(flag)
        if value is None:
            return 1
        if not isinstance(value, int) or value < 1:
            raise ContractError("config", f"--{flag.replace('_', '-')} must be a positive number, not {value!r}")
        return value

    @property
    def micro_batches(self) -> int:
        """Smallest number of micro-batches on each rank. An interleaved pipeline needs as many as it has stages."""
        is_interleaved = any(
            self.flags.get(flag)
            for flag in ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank",
                         "pipeline_model_parallel_layout")
        )  # fmt: skip
        return self.size("pipeline_model_parallel_size") if is_interleaved else 1


def read_test_case(root: Path, recipe: str) -> MegatronTestCase:
    """Read the file ``recipe`` in the checkout ``root``. Raises ContractError."""
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ContractError("config", f"recipe {recipe!r} is YAML; install pyyaml in the workload's python") from error
    path = root / recipe
    if not path.resolve().is_relative_to(root.resolve()) or not path.is_file():
        raise ContractError("config", f"recipe {recipe!r}: there is no such file in the checkout")
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ContractError("config", f"recipe {recipe!r} is not YAML: {error}") from error
    flags = document.get(FLAGS) if isinstance(document, dict) else None
    if not isinstance(flags, dict):
        raise ContractError("config", f"recipe {recipe!r} has no {FLAGS}; it is not a test case of Megatron-LM")
    named = {str(flag).removeprefix("--").replace("-", "_"): _parse_value(value) for flag, value in flags.items()}
    left_out = [flag for flag in UNTRACED_FLAGS if named.get(flag)]
    variables = document.get(VARIABLES)
    return MegatronTestCase(
        flags={
            flag: value
            for flag, value in named.items()
            if flag not in (*FILE_FLAGS, *UNTRACED_FLAGS) and not _names_file(value)
        },
        variables={str(key): str(value) for key, value in variables.items()} if isinstance(variables, dict) else {},
        warnings=[f"{flag} of the recipe is off, because its value depends on real data" for flag in left_out],
    )


def set_variables(test_case: MegatronTestCase) -> None:
    """Set the test case's environment variables, except those that are set already."""
    for name, value in test_case.variables.items():
        os.environ.setdefault(name, value)


def _names_file(value: Scalar) -> bool:
    return isinstance(value, str) and bool(set("/$") & set(value))


def _parse_value(value: Any) -> Scalar:
    """Return the value of a flag. A flag with several words is a list, of YAML or in the form ``[a b]``."""
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    if not isinstance(value, str):
        return value if value is None or isinstance(value, (bool, int, float)) else str(value)
    if value.startswith("("):
        return value.replace(" ", "")  # an expression such as ([0] * 3 + [1] * 12) is one word
    return value.removeprefix("[").removesuffix("]").replace(",", " ") if value.startswith("[") else value
