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
from regbot.records.verdict import Status

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
ENGINES = ("local", "slurm")
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
    device: Literal["cpu", "cuda"] = Field(
        default="cuda",
        description="what smoke and module are traced for: a paper GPU (docs/paper-gpu.md), or a CPU program",
    )
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


class SlurmSettings(Record):
    """How seats are asked of a Slurm cluster. What is not set is the cluster's default."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    exclude: list[str] = Field(default=[], description="nodes that are never used")
    extra: list[str] = Field(default=[], description="further options of sbatch, each as one word")
    nodes: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None, description="of one seat, where its ranks need no GPUs; default: 1"
    )
    ranks_per_node: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="default: as many as a node has GPUs"
    )
    gpus_per_node: Annotated[int, Field(ge=0, le=1024)] | None = Field(
        default=None, description="default: all that the nodes of the partition have"
    )
    exclusive: bool = Field(default=True, description="no other job on the nodes: two would time each other")
    slots: Annotated[int, Field(ge=1, le=1000)] = Field(default=1, description="seats at a time")
    time_limit_min: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="of one reservation; default: what the session may take, and a margin"
    )
    queue_min: Annotated[float, Field(gt=0)] = Field(
        default=24 * 60.0, description="how long a reservation may wait to begin"
    )
    silent_s: Annotated[float, Field(ge=10)] = Field(
        default=120.0, description="a reservation whose regbot is silent for so long gives its nodes back"
    )
    lag_s: Annotated[float, Field(ge=0)] = Field(
        default=30.0, description="by how much the shared file system may be late"
    )
    python: str = Field(
        default="", description="regbot's interpreter on the nodes; default: the one it runs under here"
    )
    environment: dict[str, str] = Field(
        default={}, description="variables of every launch on the nodes, such as NCCL_SOCKET_IFNAME"
    )


class SandboxSettings(Record):
    """How code under test is confined (docs/sandbox.md)."""

    untrusted: bool = Field(default=False, description="confine every launch and build, as --untrusted does")
    read: list[str] = Field(default=[], description="files and folders that it may read, beside its own and the system")
    write: list[str] = Field(default=[], description="folders that it may write to; what it leaves, the next run finds")
    network: bool = Field(default=False, description="let runs reach the network; ranks on several nodes always do")
    build_network: bool = Field(default=True, description="let build commands reach the network")
    submodule_hosts: list[str] = Field(
        default=[], description="hosts that submodules may be fetched from, beside the repository's own"
    )
    tmp_mb: Annotated[int, Field(ge=1)] = Field(
        default=2048, description="size of its /tmp, and as much again of its /dev/shm; both are memory"
    )
    disk_mb: Annotated[int, Field(ge=1)] = Field(
        default=4096, description="by which folders on disk that it may write to may grow in one launch"
    )
    pids: Annotated[int, Field(ge=16)] = Field(default=4096, description="processes and threads at a time")
    memory_gb: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="memory of one launch on one node, where a control group can bound it"
    )

    @field_validator("read", "write")
    @classmethod
    def _absolute(cls, value: list[str]) -> list[str]:
        for folder in value:
            if not Path(folder).is_absolute() or ".." in Path(folder).parts or Path(folder) == Path("/"):
                raise ValueError(f"{folder!r}: write the absolute path of one folder, and not the whole system")
        return value


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
        if not Path(value).parts:
            raise ValueError(f"{value!r} is the repository itself; write a folder in it")
        return Path(value).as_posix()  # git knows no ./perf and no perf/


Label = Annotated[str, Field(min_length=1, max_length=50)]


class GitHub(Record):
    """What is posted to GitHub, and what a change has to touch so that more than a role is needed (docs/github.md).

    Of all tables this one alone is read from the default branch and not from a pull request's base: it says how the
    repository is run today.
    """

    shadow: bool = Field(default=False, description="check everything, block nothing: conclusions are neutral")
    conclusions: dict[Status, Literal["success", "failure", "neutral", "action_required"]] = Field(
        default={}, description="of the check run, where they are to differ from regbot's own"
    )
    self_reported: Literal["success", "neutral", "action_required"] = Field(
        default="neutral",
        description="least strict conclusion of a verdict that a pull request's own job has made; action_required: it "
        "stops until somebody has it measured",
    )
    labels: dict[Status, Label] = Field(default={}, description="set on a pull request by its verdict; default: none")
    run_label: Label = Field(default="regbot: measure", description="has a pull request's head measured")
    protected: list[str] = Field(
        default=[".github/**", "regbot.toml", "runners/**", "baselines/**"],
        description="paths whose change needs an approval of its own; ** crosses folders",
    )
    bot: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*(\[bot\])?$")] = Field(
        default="github-actions[bot]", description="login that the workflows' token comments under"
    )

    @field_validator("labels")
    @classmethod
    def _distinct(cls, value: dict[Status, str]) -> dict[Status, str]:
        names = [name.casefold() for name in value.values()]
        if len(set(names)) != len(names):
            raise ValueError("two verdicts have one label; give each a name of its own")
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
    sandbox: SandboxSettings = SandboxSettings()
    slurm: SlurmSettings = SlurmSettings()
    github: GitHub = GitHub()


def load_config(path: Path) -> Config:
    """The configuration in ``path``. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return parse_config(text, str(path))


def on_node(config: Config, file: Path | None) -> Config:
    """``config`` with what belongs to the machine and not to the code, ``[sandbox]``, ``[slurm]`` and ``[local]``, from
    ``file``. None leaves it as it is. Raises ConfigError.

    Whoever chooses the base commit would otherwise choose how the head is confined.
    """
    if file is None:
        return config
    node = load_config(file)
    return config.model_copy(update={name: getattr(node, name) for name in ("sandbox", "slurm", "local")})


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
    if "device" in overrides:
        raise ConfigError("override device: both arms are traced for one device; set workloads.NAME.device instead")
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
