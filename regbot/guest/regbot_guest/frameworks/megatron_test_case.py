"""A test case of Megatron-LM, such as ``tests/functional_tests/test_cases/moe/NAME/model_config.yaml``.

It is read as Megatron's own ``_run_training.sh`` reads it: every value is a text, ``true`` stands for a flag without a
value, and a text in brackets has several words.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regbot_guest.contract import ContractError

FLAGS, VARIABLES = "MODEL_ARGS", "ENV_VARS"

FILE_FLAGS = frozenset({
    "data_path", "data_cache_path", "data_args_path", "vocab_file", "merge_file", "tokenizer_model", "save", "load",
    "tensorboard_dir", "wandb_project", "wandb_exp_name", "wandb_entity", "wandb_save_dir", "save_interval",
    "save_retain_interval", "async_save",
})  # fmt: skip
"""Flags that name data, a checkpoint or a log, and flags that Megatron accepts only beside such a flag."""
UNTRACED_FLAGS = ("log_num_zeros_in_grad",)
"""Flags for which the host reads an integer that depends on the values of tensors. A paper GPU has no values."""

FlagValue = str | bool | tuple[str, ...]
"""Value of a flag: one word, several words, or True for a flag without a value."""

_PATH_STARTS = ("/", "./", "../", "~")


@dataclass(frozen=True)
class MegatronTestCase:
    """The flags and the environment variables of a test case. Names of flags are written with ``_``."""

    flags: Mapping[str, FlagValue]
    variables: Mapping[str, str]
    left_out: Mapping[str, FlagValue]
    """Flags that a trace cannot have."""
    warnings: Sequence[str] = ()
    """Why flags are left out. Flags in ``FILE_FLAGS`` need no warning."""


def read_test_case(root: Path, recipe: str) -> MegatronTestCase:
    """Read the test case in the file ``recipe`` of the checkout ``root``. Raises ContractError."""
    path = root / recipe
    if not path.resolve().is_relative_to(root.resolve()) or not path.is_file():
        raise ContractError("config", f"recipe {recipe!r}: there is no such file in the checkout")
    sections = _read_sections(path, recipe)
    traced_flags: dict[str, FlagValue] = {}
    left_out_flags: dict[str, FlagValue] = {}
    warnings: list[str] = []
    for name, value in sections[FLAGS].items():
        if value == "":
            continue  # the test runner leaves such a flag out
        names_file = isinstance(value, str) and ("$" in value or value.startswith(_PATH_STARTS))
        if name not in FILE_FLAGS and name not in UNTRACED_FLAGS and not names_file:
            traced_flags[name] = value
            continue
        left_out_flags[name] = value
        if name not in FILE_FLAGS:
            reason = "its value depends on real data" if name in UNTRACED_FLAGS else "its value names a file"
            warnings.append(f"{name} of the recipe is left out, because {reason}")
    variables = {name: str(value) for name, value in sections[VARIABLES].items()}
    return MegatronTestCase(traced_flags, variables, left_out_flags, warnings)


def set_variables(test_case: MegatronTestCase) -> None:
    for name, value in test_case.variables.items():
        os.environ.setdefault(name, value)


def _read_sections(path: Path, recipe: str) -> dict[str, dict[str, FlagValue]]:
    """Return the entries of the sections ``FLAGS`` and ``VARIABLES``. Raises ContractError."""
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ContractError("config", f"recipe {recipe!r} is YAML; install pyyaml in the workload's python") from error
    try:
        # This loader keeps all values as they are written. Others turn 1e-2, off and 010 into numbers and booleans.
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
        variables = document.get(VARIABLES) or {}
        return {
            FLAGS: dict(_read_flag(name, value) for name, value in document[FLAGS].items()),
            VARIABLES: {name: str(value) for name, value in variables.items()},
        }
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, KeyError, RecursionError, OSError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ContractError("config", f"recipe {recipe!r} is not a test case of Megatron-LM ({reason})") from error


def _read_flag(option: str, content: Any) -> tuple[str, FlagValue]:
    """Return name and value of a flag, such as ``--num-layers`` with the name ``num_layers``. Raises ValueError."""
    name = option.removeprefix("--").replace("-", "_")
    if isinstance(content, str) and not (content.startswith("[") and content.endswith("]")):
        return name, content == "true" or content
    words = content[1:-1].split() if isinstance(content, str) else [word for item in content for word in item.split()]
    if any(word.startswith("--") for word in words):
        raise ValueError(f"the value of {option} contains another flag")
    return name, tuple(words)
