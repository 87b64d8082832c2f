"""``regbot.toml``: what to trace in a repository and how to judge it. Every error names the key and a fix."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tomllib
from pydantic import Field, ValidationError, field_validator, model_validator

from regbot.records.base import Record
from regbot.records.ledger import Scalar
from regbot.records.settings import Sharding as Sharding
from regbot.records.settings import Throughput as Throughput
from regbot.records.settings import Wire as Wire

FILE_NAME = "regbot.toml"

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
GEOMETRY_KEYS = frozenset({
    "layers", "hidden", "heads", "kv_heads", "head_dim", "qk_norm", "rope_theta", "experts", "top_k", "expert_width",
    "vocabulary", "sequence", "micro_batch", "world", "ep", "shape", "variant", "mesh", "dtype",
})  # fmt: skip
"""What makes a workload the workload it is: an override of these would compare two different things."""


LIBRARY_DISPATCHERS = ("deepep", "hybridep")
SMOKE_DISPATCHERS = ("alltoall", "allgather", *LIBRARY_DISPATCHERS)
"""What regbot's own model can be asked for; the last two need GPUs and a library (docs/dispatchers.md)."""


Adapter = Literal["smoke", "module", "torchtitan", "megatron", "maxtext", "command"]
FRAMEWORKS = ("torchtitan", "megatron", "maxtext")


class ConfigError(Exception):
    """The configuration cannot be used. The message names file, key and fix."""


class Workload(Record):
    """One ``[workloads.NAME]`` table: the shapes to run in a checkout, and how."""

    adapter: Adapter
    shapes: Annotated[list[str], Field(min_length=1)] = ["qwen3-30b-a3b", "mixtral-8x7b"]
    variant: str = "full"
    meshes: Annotated[list[Literal["ep", "ep-dp"]], Field(min_length=1)] = ["ep", "ep-dp"]
    entry: str | None = Field(default=None, description="module adapter: 'package.module:function'")
    recipe: str = Field(
        default="",
        description="framework adapters: a recipe that the repository ships, run as it is; '' pins the shape's numbers",
    )
    command: list[str] = Field(default=[], description="command adapter: program and arguments of one run")
    log: str = Field(
        default="", description="command adapter: file of the step log in the checkout; '' for what the command prints"
    )
    log_format: str = Field(default="", description="command adapter: format of the step log; '' for what it shows")
    tokens_per_step: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="command adapter: of one step on one rank, for logs that tell tokens per second"
    )
    environment: dict[str, str] = Field(default={}, description="variables of every run, beside a clean environment")
    label: Name | None = Field(
        default=None, description="prefix of the verdict's entries, where two workloads share a shape"
    )
    source_roots: Annotated[list[str], Field(min_length=1)] = ["."]
    watch: list[str] = Field(
        default=[], description="packages that must come from the worktree; default: all that it holds"
    )
    python: str = Field(
        default="", description="interpreter, relative to the worktree; default: the one regbot runs under"
    )
    build: list[str] = Field(default=[], description="shell commands, run once in each new worktree")
    timeout_min: Annotated[float, Field(gt=0, le=24 * 60)] = 10.0
    timed: list[str] | None = Field(
        default=None, description="shapes whose steps are timed; default: all that have a size for it, [] for none"
    )
    timed_variant: str = Field(
        default="", description="variant that is timed; default: smoke with enough GPUs, else cpu"
    )
    dispatcher: str = Field(default="", description="asked of the layer; '' leaves the choice to it (smoke: alltoall)")
    routing: Literal["balanced", "skewed", "natural"] = "balanced"
    config: dict[str, Scalar] = Field(default={}, description="extra keys of the config that build_layer receives")

    @field_validator("entry")
    @classmethod
    def _entry_form(cls, value: str | None) -> str | None:
        if value is not None:
            module, colon, function = value.partition(":")
            if not colon or not function.isidentifier() or not all(p.isidentifier() for p in module.split(".")):
                raise ValueError(f"{value!r} is not an entry point; write it as 'package.module:function'")
        return value

    @field_validator("source_roots")
    @classmethod
    def _inside(cls, value: list[str]) -> list[str]:
        for root in value:
            if Path(root).is_absolute() or ".." in Path(root).parts:
                raise ValueError(f"{root!r} leaves the repository; write a folder relative to its root")
        return value

    @field_validator("config")
    @classmethod
    def _no_geometry(cls, value: dict[str, Scalar]) -> dict[str, Scalar]:
        if fixed := sorted(GEOMETRY_KEYS & value.keys()):
            raise ValueError(f"{', '.join(fixed)}: fixed by the shape; choose another shape or variant instead")
        return value

    @model_validator(mode="after")
    def _timed_is_traced(self) -> "Workload":
        if unknown := sorted(set(self.timed or []) - set(self.shapes)):
            raise ValueError(f"timed: {unknown[0]!r} is not among the shapes of this workload; add it there too")
        return self

    @model_validator(mode="after")
    def _entry_given(self) -> "Workload":
        if self.adapter == "module" and self.entry is None:
            raise ValueError("adapter 'module' needs entry = 'package.module:function' (see docs/module.md)")
        if self.adapter == "smoke" and self.dispatcher not in ("", *SMOKE_DISPATCHERS):
            raise ValueError(
                f"the smoke model has no dispatcher {self.dispatcher!r}; use one of {', '.join(SMOKE_DISPATCHERS)}"
            )
        if self.adapter != "module" and self.entry is not None:
            raise ValueError(f"adapter {self.adapter!r} takes no entry; an entry point is for adapter = 'module'")
        if self.adapter == "command" and not self.command:
            raise ValueError("adapter 'command' needs command = ['program', 'argument', ...] (see docs/frameworks.md)")
        if self.adapter == "command" and not any("{steps}" in argument for argument in self.command):
            raise ValueError(
                "command: has no {steps}; write it where the program takes its number of steps, warm-up included, "
                "because runs of different lengths are started"
            )
        if self.adapter != "command" and (self.command or self.log or self.log_format or self.tokens_per_step):
            raise ValueError(
                f"adapter {self.adapter!r} takes no command and no log of its steps (command, log, log_format, "
                "tokens_per_step); use adapter = 'command'"
            )
        if self.adapter == "maxtext" and self.timed:
            raise ValueError("adapter 'maxtext' only traces; to time MaxText, add a workload with adapter = 'command'")
        if self.recipe and self.adapter not in FRAMEWORKS:
            raise ValueError(f"adapter {self.adapter!r} has no recipes; {', '.join(FRAMEWORKS)} have")
        return self


class Local(Record):
    """Limits of the local engine."""

    parallel: Annotated[int, Field(ge=1, le=256)] = Field(default=2, description="static traces at a time")
    max_output_mb: Annotated[float, Field(gt=0)] = 8.0
    max_record_mb: Annotated[float, Field(gt=0)] = 32.0


class Session(Record):
    """What a timed session may cost, and how long its runs are."""

    budget_min: Annotated[float, Field(gt=0)] = Field(
        default=60.0, description="minutes of timed runs in one check, all workloads together"
    )
    steps: Annotated[int, Field(ge=5, le=10_000)] | None = Field(
        default=None, description="timed steps of one run; default: the shape's, 40"
    )
    warmup: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None, description="steps before them that count for nothing; default: the shape's, 10"
    )


class Baselines(Record):
    """Where the stored references are."""

    folder: str = Field(default="baselines", description="in the repository; those of the base commit judge a change")
    creep_budget_pct: Annotated[float, Field(gt=0, le=100)] = Field(
        default=2.0, description="slower than the anchor by this, all changes since together: a refresh absorbs no more"
    )

    @field_validator("folder")
    @classmethod
    def _inside(cls, value: str) -> str:
        if not value or Path(value).is_absolute() or ".." in Path(value).parts:
            raise ValueError(f"{value!r} leaves the repository; write a folder relative to its root")
        return value


class Config(Record):
    """The whole of ``regbot.toml``."""

    version: Literal[1] = 1
    workloads: dict[Name, Workload] = Field(default={}, description="empty: regbot's own smoke model")
    sharding: Sharding = Sharding()
    throughput: Throughput = Throughput()
    session: Session = Session()
    baselines: Baselines = Baselines()
    wire: Wire = Wire()
    local: Local = Local()


def load_config(path: Path) -> Config:
    """The configuration in ``path``. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return parse_config(text, str(path))


def parse_config(text: str, origin: str) -> Config:
    """``text`` as a configuration; ``origin`` names it in errors. Raises ConfigError with every fault at once."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin}: is not TOML: {error}") from error
    try:
        return Config.model_validate(document)
    except ValidationError as error:
        raise ConfigError("\n".join(_faults(error, origin))) from error


def parse_override(text: str, option: str) -> tuple[str, Scalar]:
    """``K=V`` of --base-set and --head-set; V is read as TOML where it can be, else as text. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{option} {text!r}: write KEY=VALUE, for example dispatcher=allgather")
    key = key.strip()
    if key in GEOMETRY_KEYS:
        raise ConfigError(f"{option} {key}: fixed by the shape; two arms of different geometry cannot be compared")
    try:
        parsed = tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        parsed = value
    if not isinstance(parsed, str | int | float | bool):
        raise ConfigError(f"{option} {key}: {value!r} is not a single value")
    return key, parsed


def override(workload: Workload, overrides: Mapping[str, Scalar]) -> Workload:
    """``workload`` with an arm's overrides: its own keys where it has them, else keys of its ``config``."""
    own: dict[str, Any] = {}
    extra = dict(workload.config)
    for key, value in overrides.items():
        if key in ("dispatcher", "routing", "python", "timeout_min"):
            own[key] = value
        else:
            extra[key] = value
    try:
        return Workload.model_validate({**workload.model_dump(), **own, "config": extra})
    except ValidationError as error:
        raise ConfigError("\n".join(_faults(error, "override"))) from error


_FIXES = {
    "missing": "add it",
    "extra_forbidden": "there is no such key; see docs/configuration.md for the list",
    "literal_error": "use one of the values named",
    "string_type": "put the value in quotes",
    "list_type": 'write a list: ["..."]',
    "bool_type": "write true or false",
    "int_type": "write a whole number",
    "float_type": "write a number",
    "dict_type": "write a table",
    "model_type": "write a table",
}


def _faults(error: ValidationError, origin: str) -> list[str]:
    lines = []
    for fault in error.errors(include_url=False):
        key = ".".join(str(part) for part in fault["loc"] if part != "[key]")
        message = fault["msg"].removeprefix("Value error, ")
        fix = _FIXES.get(fault["type"])
        lines.append(f"{origin}: {key or 'the document'}: {message}{f'; {fix}' if fix else ''}")
    return lines
