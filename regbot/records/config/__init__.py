"""The configuration file ``regbot.toml``, from a file or a commit. Errors name the key and say how to fix it. A caller
that has a repository passes a function ``TextAt``."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any

import tomllib
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from regbot.records.config.schema import (
    AXIS_KEYS,
    BRIDGE_PROGRAM,
    ENGINES,
    FILE_NAME,
    FRAMEWORKS,
    GEOMETRY_KEYS,
    LIBRARY_DISPATCHERS,
    MEGATRON_PROGRAM,
    PLACEHOLDER_ENTRY,
    SMOKE_DISPATCHERS,
    Config,
    ConfigError,
    GitHub,
    SandboxSettings,
    SessionSettings,
    SlurmSettings,
    Workload,
)
from regbot.records.ledger import Scalar
from regbot.records.settings import ShardingThresholds, WireBandwidths
from regbot.records.text.clip import short_commit

TextAt = Callable[[str], str | None]
"""Function that returns the text of ``regbot.toml`` at a revision; None if the revision has no such file."""


class SourceKind(StrEnum):
    """The kinds of places that a configuration can come from."""

    FILE = "file"
    BASE = "base"
    TARGET = "target"
    """The tip of the target branch."""
    HEAD = "head"
    DEFAULT_BRANCH = "default branch"
    COMMIT = "commit"
    """A commit that is measured alone, without a comparison."""
    DEFAULTS = "defaults"
    """No file was read. regbot's default configuration applies."""


@dataclass(frozen=True)
class ConfigSource:
    """The place that a configuration comes from."""

    kind: SourceKind
    name: str = ""
    """Path of the file, or name of the revision."""

    @property
    def short_name(self) -> str:
        """A short form of a revision: the first 12 digits of a commit id, or a branch name without its prefix."""
        if len(self.name) >= 40 and "/" not in self.name:
            return short_commit(self.name)
        return self.name.removeprefix("refs/remotes/origin/").removeprefix("refs/heads/")

    def __str__(self) -> str:
        return self.name if self.kind is SourceKind.FILE else f"{FILE_NAME} at {self.short_name}"


class ConfigWarning(StrEnum):
    """Facts about the configuration that a reader of the verdict must know."""

    BASE_HAS_NONE = "base has none"
    """The base commit has no ``regbot.toml``, so another source was used."""
    HEAD_DIFFERS = "head differs"
    """Base and head have different ``regbot.toml`` files. The file of the base was used."""


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration, the source it comes from, and warnings about the source."""

    config: Config
    source: ConfigSource
    """Source of all tables except the machine tables."""
    machine_source: ConfigSource
    """Source of the machine tables ``[sandbox]``, ``[slurm]`` and ``[local]``. It may differ from ``source``."""
    text: str = ""
    """Text of the file at ``source``; '' if no file was read."""
    warnings: tuple[ConfigWarning, ...] = ()

    def messages(self) -> list[str]:
        """Return the warnings as sentences."""
        return [self._message(warning) for warning in self.warnings]

    def _message(self, warning: ConfigWarning) -> str:
        """Return one warning as a sentence. Without a file at the base commit, the sentence names the source used."""
        if warning is ConfigWarning.HEAD_DIFFERS:
            reason = "so that a change cannot judge itself"
            return f"{FILE_NAME} differs between base and head; the base's was used, {reason}"
        if self.source.kind is SourceKind.HEAD:
            return f"the base has no {FILE_NAME}; the head's was used"
        is_default = self.source.kind is SourceKind.DEFAULT_BRANCH
        branch = "the default branch" if is_default else f"the target branch {self.source.short_name}"
        return f"the base commit has no {FILE_NAME}; that of {branch} was used"


DEFAULTS = LoadedConfig(Config(), ConfigSource(SourceKind.DEFAULTS), ConfigSource(SourceKind.DEFAULTS))


def load_config(path: Path) -> Config:
    """Load the configuration file ``path``. Raises ConfigError."""
    return load_file(path).config


def load_file(path: Path) -> LoadedConfig:
    """Load the configuration file ``path`` together with its source. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return _load_text(text, ConfigSource(SourceKind.FILE, str(path)))


def load_commit(text_at: TextAt, commit: str) -> LoadedConfig:
    """Load the configuration of one commit. Raises ConfigError, also if the commit has no ``regbot.toml``."""
    source = ConfigSource(SourceKind.COMMIT, commit)
    if (text := text_at(commit)) is None:
        raise ConfigError(f"{source.short_name} has no {FILE_NAME}", "commit one, or give --config FILE")
    return _load_text(text, source)


def load_first(text_at: TextAt, sources: Iterable[ConfigSource]) -> LoadedConfig | None:
    """Load the first of ``sources``, a lazy iterator, that has a ``regbot.toml``; None if none has. The result has a
    warning if this is not the base commit. Raises ConfigError."""
    for source in sources:
        if (text := text_at(source.name)) is not None:
            warnings = () if source.kind is SourceKind.BASE else (ConfigWarning.BASE_HAS_NONE,)
            return replace(_load_text(text, source), warnings=warnings)
    return None


def with_machine_tables(loaded: LoadedConfig, file: Path | None) -> LoadedConfig:
    """Return ``loaded`` with the machine tables of ``file``, if any. They say how the head is confined, so they should
    not come from the base commit, which the author of a pull request chooses. Raises ConfigError."""
    if file is None:
        return loaded
    machine = load_file(file)
    tables = {name: getattr(machine.config, name) for name in ("sandbox", "slurm", "local")}
    return replace(loaded, config=loaded.config.model_copy(update=tables), machine_source=machine.source)


def _load_text(text: str, source: ConfigSource) -> LoadedConfig:
    return LoadedConfig(parse_config(text, str(source)), source, source, text)


def parse_toml(text: str, origin: str) -> dict[str, Any]:
    """Parse ``text`` as a TOML document. ``origin`` names the document in errors. Raises ConfigError."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin}: is not TOML: {error}") from error


def parse_config(text: str, origin: str) -> Config:
    """Parse a configuration. Raises a ConfigError that names ``origin`` and lists all faults."""
    document = parse_toml(text, origin)
    try:
        return Config.model_validate(document)
    except ValidationError as error:
        raise ConfigError("\n".join(_describe_faults(error, origin))) from error


def parse_override(text: str, option: str) -> tuple[str, Scalar]:
    """Parse ``KEY=VALUE`` of ``option``. A value that is not TOML is text. Raises ConfigError, also for keys of the
    shape."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{option} {text!r}: write KEY=VALUE, for example dispatcher=allgather")
    key = key.strip()
    if key in GEOMETRY_KEYS:
        raise ConfigError(f"{option} {key}: fixed by the shape", "two arms of different geometry cannot be compared")
    try:
        # TOML parses only documents, so the value needs a key. The key ``v`` stands for any key.
        parsed = tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        parsed = value
    if not isinstance(parsed, str | int | float | bool):
        raise ConfigError(f"{option} {key}: {value!r} is not a single value", "give text, a number, true or false")
    return key, parsed


def override(workload: Workload, overrides: Mapping[str, Scalar]) -> Workload:
    """Return ``workload`` with the overrides of an arm: fields, or else keys of its ``config``. Raises ConfigError."""
    workload_fields: dict[str, Any] = {}
    extra_config = dict(workload.config)
    for key, value in overrides.items():
        if key in ("device", "gpu"):
            raise ConfigError(f"override {key}: both arms have the same", f"set workloads.NAME.{key} instead")
        if key in ("dispatcher", "routing", "python", "timeout_min"):
            workload_fields[key] = value
        else:
            extra_config[key] = value
    try:
        return Workload.model_validate({**workload.model_dump(), **workload_fields, "config": extra_config})
    except ValidationError as error:
        raise ConfigError("\n".join(_describe_faults(error, "override"))) from error


_ADVICE_BY_FAULT = {
    "missing": "add it",
    "extra_forbidden": "there is no such key; see docs/configuration.md for the list",
    "literal_error": "use one of these values",
    "string_type": "put the value in quotes",
    "list_type": 'write a list: ["..."]',
    "bool_type": "write true or false",
    "int_type": "write a whole number",
    "float_type": "write a number",
    "dict_type": "write a table",
    "model_type": "write a table",
}


def _describe_faults(error: ValidationError, origin: str) -> list[str]:
    """Return one line for each fault: where it is, what is wrong, and how to fix it if that is known."""
    lines = []
    for fault in error.errors(include_url=False):
        # pydantic adds "[key]" to the location if the key of a table is at fault, and not its value.
        key = ".".join(str(part) for part in fault["loc"] if part != "[key]")
        message = fault["msg"].removeprefix("Value error, ")
        advice = _suggest_literal(fault) or _ADVICE_BY_FAULT.get(fault["type"])
        advice_text = f"; {advice}" if advice else ""
        lines.append(f"{origin}: {key or 'the document'}: {message}{advice_text}")
    return lines


def _suggest_literal(fault: ErrorDetails) -> str:
    """Return for example "did you mean 'alltoall'?"; '' if no permitted value is similar."""
    if fault["type"] != "literal_error":
        return ""
    expected = str(fault.get("ctx", {}).get("expected", ""))  # such as "'ep' or 'ep-dp'"
    permitted = re.findall(r"'([^']*)'", expected)
    nearest = get_close_matches(str(fault["input"]).lower(), permitted, n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else ""
