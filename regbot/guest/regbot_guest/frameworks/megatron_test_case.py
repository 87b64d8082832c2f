"""A test case of Megatron-LM, such as ``tests/functional_tests/test_cases/moe/NAME/model_config.yaml``.

``MODEL_ARGS`` in this file has flags of the training script with their values, and ``ENV_VARS`` has environment
variables. They are read as Megatron's own test runner (``_run_training.sh``) reads them. Every value is a text. The
text ``true`` stands for a flag without a value, and a text in brackets has several words.
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
"""Flags that name data, a checkpoint or a log, or that are refused without such a flag."""
UNTRACED_FLAGS = ("log_num_zeros_in_grad",)
"""Flags for which the host reads an integer that depends on values. No paper GPU has it."""

FlagValue = str | bool | tuple[str, ...]
"""Value of a flag: one word, several words, or True for a flag without a value."""

_NAME = re.compile(r"(?:--)?[A-Za-z][\w-]*")
_PATH_STARTS = ("/", "./", "../", "~")


@dataclass(frozen=True)
class MegatronTestCase:
    """The flags of a test case by their names with ``_``, and its environment variables.

    ``left_out`` are flags that a trace cannot have, with their values. ``warnings`` say why, unless the flag only names
    data, a checkpoint or a log.
    """

    flags: Mapping[str, FlagValue]
    variables: Mapping[str, str]
    left_out: Mapping[str, FlagValue]
    warnings: Sequence[str] = ()


def read_test_case(root: Path, recipe: str) -> MegatronTestCase:
    """Read the file ``recipe`` in the checkout ``root``. Raises ContractError."""
    path = root / recipe
    if not path.resolve().is_relative_to(root.resolve()) or not path.is_file():
        raise ContractError("config", f"recipe {recipe!r}: there is no such file in the checkout")
    if path.stat().st_size > MAX_BYTES:
        raise ContractError("config", f"recipe {recipe!r} has more than {MAX_BYTES} bytes, so it is no test case")
    sections = _read_sections(path, recipe)
    if FLAGS not in sections:
        raise ContractError("config", f"recipe {recipe!r} has no {FLAGS}; it is not a test case of Megatron-LM")
    kept: dict[str, FlagValue] = {}
    left_out: dict[str, FlagValue] = {}
    warnings: list[str] = []
    for name, value in sections[FLAGS].items():
        if value == "":
            continue  # the test runner leaves such a flag out
        reason = _why_left_out(name, value)
        (kept if reason is None else left_out)[name] = value
        if reason:
            warnings.append(f"{name} of the recipe is left out, because {reason}")
    variables = {name: str(value) for name, value in sections.get(VARIABLES, {}).items()}
    return MegatronTestCase(kept, variables, left_out, warnings)


def set_variables(test_case: MegatronTestCase) -> None:
    """Set the test case's environment variables, except those that are set already."""
    for name, value in test_case.variables.items():
        os.environ.setdefault(name, value)


def _why_left_out(name: str, value: FlagValue) -> str | None:
    """Return why a flag is left out: '' if nobody misses it in a trace, and None if it is not left out."""
    if name in FILE_FLAGS:
        return ""
    if name in UNTRACED_FLAGS:
        return "its value depends on real data"
    if isinstance(value, str) and ("$" in value or value.startswith(_PATH_STARTS)):
        return "its value names a file"
    return None


def _read_sections(path: Path, recipe: str) -> dict[str, dict[str, FlagValue]]:
    """Return the flags and the variables of the file, by section. Raises ContractError."""
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ContractError("config", f"recipe {recipe!r} is YAML; install pyyaml in the workload's python") from error
    try:
        # A node has the texts as they are written. A loaded document would have 1e-2, off and 010 as other values.
        document = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
        sections: dict[str, dict[str, FlagValue]] = {}
        for key, section in document.value if isinstance(document, yaml.MappingNode) else ():
            if key.value not in (FLAGS, VARIABLES):
                continue
            if key.value in sections:
                raise ContractError("config", f"recipe {recipe!r} has {key.value} twice; remove one of them")
            if not isinstance(section, yaml.MappingNode):
                raise ContractError("config", f"recipe {recipe!r}: {key.value} is no table of names and values")
            sections[key.value] = dict(_read_entry(name, value, recipe) for name, value in section.value)
            if len(sections[key.value]) != len(section.value):
                raise ContractError("config", f"recipe {recipe!r}: {key.value} has a name twice; remove one of them")
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        raise ContractError("config", f"recipe {recipe!r} cannot be read as YAML: {error}") from error
    return sections


def _read_entry(name_node: Any, value_node: Any, recipe: str) -> tuple[str, FlagValue]:
    """Return a name with ``_`` and its value. Raises ContractError."""
    name = name_node.value
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ContractError(
            "config", f"recipe {recipe!r} has {str(name)[:80]!r}, which is no name of a flag or variable"
        )
    nodes = value_node.value
    if isinstance(nodes, str):
        value = _parse_text(nodes) if name.startswith("--") else nodes
    elif all(isinstance(getattr(node, "value", None), str) for node in nodes):
        value = tuple(word for node in nodes for word in node.value.split())
    else:
        raise ContractError("config", f"recipe {recipe!r}: the value of {name} is neither a text nor a list of texts")
    if isinstance(value, tuple) and any(word.startswith("--") for word in value):
        raise ContractError("config", f"recipe {recipe!r}: the value of {name} contains another flag")
    return (name.removeprefix("--").replace("-", "_") if name.startswith("--") else name), value


def _parse_text(text: str) -> FlagValue:
    if text == "true":
        return True
    if text.startswith("[") and text.endswith("]"):
        return tuple(text[1:-1].split())
    return text
