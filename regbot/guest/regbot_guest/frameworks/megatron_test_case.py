"""A test case of Megatron-LM, such as ``tests/functional_tests/test_cases/moe/NAME/model_config.yaml``.

It is read as Megatron's own ``_run_training.sh`` reads it: every value is a text, ``true`` stands for a flag without a
value, and a text in brackets has several words.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regbot_guest.contract import ContractError

FLAGS, VARIABLES = "MODEL_ARGS", "ENV_VARS"
MAX_BYTES = 1024 * 1024

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

_NAME = re.compile(r"(?:--)?[A-Za-z][\w-]*")
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
    if path.stat().st_size > MAX_BYTES:
        raise ContractError("config", f"recipe {recipe!r} has more than {MAX_BYTES} bytes, so it is no test case")
    sections = _read_sections(path, recipe)
    if FLAGS not in sections:
        raise ContractError("config", f"recipe {recipe!r} has no {FLAGS}; it is not a test case of Megatron-LM")
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
    variables = {name: str(value) for name, value in sections.get(VARIABLES, {}).items()}
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
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, OSError) as error:
        raise ContractError("config", f"recipe {recipe!r} cannot be read as YAML: {error}") from error
    sections: dict[str, dict[str, FlagValue]] = {}
    for section, entries in document.items() if isinstance(document, dict) else ():
        if section not in (FLAGS, VARIABLES):
            continue
        if not isinstance(entries, dict):
            raise ContractError("config", f"recipe {recipe!r}: {section} is no table of names and values")
        sections[section] = dict(_read_entry(name, value, recipe) for name, value in entries.items())
    return sections


def _read_entry(name: Any, content: Any, recipe: str) -> tuple[str, FlagValue]:
    """Return name and value of a flag, such as ``--num-layers`` with the name ``num_layers``, or of a variable, which
    has no dashes and is not changed. Raises ContractError.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ContractError(
            "config", f"recipe {recipe!r} has {str(name)[:80]!r}, which is no name of a flag or variable"
        )
    is_flag = name.startswith("--")
    value: FlagValue
    if isinstance(content, str):
        is_list = content.startswith("[") and content.endswith("]")
        value = content
        if is_flag and (content == "true" or is_list):
            value = content == "true" or tuple(content[1:-1].split())
    elif isinstance(content, list) and all(isinstance(item, str) for item in content):
        value = tuple(word for item in content for word in item.split())
    else:
        raise ContractError("config", f"recipe {recipe!r}: the value of {name} is neither a text nor a list of texts")
    if isinstance(value, tuple) and any(word.startswith("--") for word in value):
        raise ContractError("config", f"recipe {recipe!r}: the value of {name} contains another flag")
    return (name.removeprefix("--").replace("-", "_") if is_flag else name), value
