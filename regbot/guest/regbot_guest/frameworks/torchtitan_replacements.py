"""Everything that regbot changes so that torchtitan's own ``train.py`` runs without files, a network or a GPU. A change
whose target this revision lacks is skipped, with a warning. No change affects sharding, the token dispatch, or FSDP's
groups of parameters; what would is refused (``torchtitan_config.check_backend``).
"""

import contextlib
import dataclasses
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist

from regbot_guest.contract import ContractError
from regbot_guest.crash import call_unchanged
from regbot_guest.replaced import replaced

SETTINGS = "regbot's keys are set in the configuration after ConfigManager has loaded the recipe"
DATA = "data is torchtitan's dataset c4_test, with texts and a tokenizer of regbot"
TIMEOUT = "torch.distributed.set_timeout does nothing, because this torch lacks it"
TEST_DATASET = "c4_test"
ASSETS = "tests/assets"
"""Folder of torchtitan's test assets, relative to the working directory. Paths in recipes are relative too."""
WORDS = "abcdefghijklmnopqrstuvwxyz"
MIN_TEXTS, WORDS_PER_TEXT = 64, 997


@dataclass
class Changes:
    made: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


@contextlib.contextmanager
def replacements(
    configure: Callable[[Any], None], refuse_recipe: Callable[[Exception], ContractError], changes: Changes, world: int
) -> Iterator[None]:
    """While active, torchtitan runs in a folder with test assets for ``world`` ranks, and ``configure`` changes each
    configuration that it loads. Raises ContractError if torchtitan cannot be imported or loads no configuration.
    """
    with _asset_folder(max(MIN_TEXTS, world)), _no_op_timeout(changes):
        manager = import_torchtitan("torchtitan.config").ConfigManager
        load = manager._load_config

        def load_config(*args: Any, **kwargs: Any) -> Any:
            try:
                loaded = call_unchanged(load, args, kwargs)
            except (ValueError, ImportError) as error:
                raise refuse_recipe(error) from error
            loaded_config = loaded[0]
            configure(loaded_config)
            return loaded

        changes.made.append(SETTINGS)
        with replaced(manager, "_load_config", load_config):
            yield


def import_torchtitan(name: str) -> Any:
    """Import a module. Raises ContractError if torchtitan or a package that it needs is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        reason = "it is neither in the checkout nor installed" if error.name == "torchtitan" else f"{error}"
        raise ContractError(
            "no_framework",
            f"torchtitan cannot be imported: {reason}; install it and its requirements in {sys.executable}, the "
            "workload's 'python', and set 'source_roots' to the folder that contains torchtitan/",
        ) from error


def use_test_data(config: Any, changes: Changes) -> None:
    config.hf_assets_path = f"./{ASSETS}/tokenizer"
    known_datasets = getattr(importlib.import_module("torchtitan.hf_datasets.text_datasets"), "DATASETS", {})
    missing = ""
    if TEST_DATASET not in known_datasets:
        missing = f"dataset {TEST_DATASET!r} in torchtitan.hf_datasets.text_datasets.DATASETS"
    elif not hasattr(config.dataloader, "dataset"):
        missing = f"field 'dataset' in {type(config.dataloader).__qualname__}"
    if missing:
        changes.skipped.append(f"skipped, because there is no {missing}: {DATA}")
    else:
        config.dataloader = _with_test_dataset(config.dataloader, known_datasets[TEST_DATASET])
        changes.made.append(DATA)


def _with_test_dataset(config: Any, test_dataset: Any) -> Any:
    """A dataset is a name, or from August 2026 on a configuration, which may contain an inner dataset."""
    dataset = config.dataset
    if hasattr(dataset, "dataset"):
        return dataclasses.replace(config, dataset=_with_test_dataset(dataset, test_dataset))
    if not isinstance(dataset, str):
        return dataclasses.replace(config, dataset=test_dataset)
    no_path = {"dataset_path": None} if hasattr(config, "dataset_path") else {}
    return dataclasses.replace(config, dataset=TEST_DATASET, **no_path)


@contextlib.contextmanager
def _no_op_timeout(changes: Changes) -> Iterator[None]:
    """torchtitan calls ``torch.distributed.set_timeout`` between steps, which some versions of torch lack."""
    if hasattr(dist, "set_timeout"):
        yield
        return
    changes.made.append(TIMEOUT)
    with replaced(dist, "set_timeout", lambda *_, **__: None):
        yield


@contextlib.contextmanager
def _asset_folder(texts: int) -> Iterator[None]:
    """Each data-parallel rank needs a text of its own."""
    with tempfile.TemporaryDirectory() as name, mock.patch.dict(os.environ, {"HF_HOME": f"{name}/cache"}):
        _write_assets(Path(name, ASSETS), texts)
        with contextlib.chdir(name):
            yield


def _write_assets(folder: Path, texts: int) -> None:
    """The files have the names and formats of torchtitan's own test assets."""
    tokenizer, dataset = folder / "tokenizer", folder / TEST_DATASET
    unknown, begin, end = special_tokens = ("<unk>", "<s>", "</s>")
    switched_off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added_tokens = [
        {"id": number, "content": token, "special": True, **switched_off} for number, token in enumerate(special_tokens)
    ]
    vocabulary = {token: number for number, token in enumerate((*special_tokens, *WORDS))}
    document = {
        "version": "1.0",
        "added_tokens": added_tokens,
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": unknown},
    }
    tokenizer.mkdir(parents=True)
    dataset.mkdir()
    (tokenizer / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    (tokenizer / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": begin, "eos_token": end}), encoding="utf-8"
    )
    lines = []
    for stride in range(1, texts + 1):  # each text goes through the alphabet in steps of another length
        words = [WORDS[stride * position % len(WORDS)] for position in range(WORDS_PER_TEXT)]
        lines.append(json.dumps({"text": " ".join(words)}) + "\n")
    (dataset / "data.json").write_text("".join(lines), encoding="utf-8")
