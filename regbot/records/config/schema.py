"""The schema of ``regbot.toml``: what to trace in a repository and how to judge it."""

from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import (
    Discriminator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Tag,
    field_validator,
    model_validator,
)

from regbot.errors import UserError
from regbot.records.base import Record
from regbot.records.config.pathspecs import find_pathspec_fault
from regbot.records.ledger import DEFAULT_PAPER_GPU, PaperGpu, Scalar
from regbot.records.meshes import MeshName, OwnMesh
from regbot.records.settings import ProgramThresholds, ShardingThresholds, ThroughputThresholds, WireBandwidths
from regbot.records.verdict import Status

FILE_NAME = "regbot.toml"
PLACEHOLDER_ENTRY = "yourpackage.moe:build_layer"
"""Entry that ``regbot init`` writes if it detects no MoE layer. A check is INVALID while a workload has it."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
HostOrUrl = Annotated[
    str, Field(pattern=r"^([A-Za-z0-9._-]+|(https?|ssh|git)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?)$")
]
GEOMETRY_KEYS = frozenset({
    "layers", "hidden", "heads", "kv_heads", "head_dim", "qk_norm", "rope_theta", "experts", "top_k", "expert_width",
    "vocabulary", "sequence", "micro_batch", "world", "ep", "shape", "variant", "mesh", "dtype",
})  # fmt: skip
"""Keys that a shape defines. If an override changed one of them, the two arms would run different workloads."""

LIBRARY_DISPATCHERS = ("deepep", "hybridep")
SMOKE_DISPATCHERS = ("alltoall", "allgather", *LIBRARY_DISPATCHERS)
"""Dispatchers of regbot's smoke model. The last two need GPUs and an additional library (docs/frameworks.md)."""


Adapter = Literal["smoke", "module", "torchtitan", "megatron", "maxtext", "command"]
ENGINES = ("local", "slurm")
FRAMEWORKS = ("torchtitan", "megatron", "maxtext")
MEGATRON_PROGRAM, BRIDGE_PROGRAM = "pretrain_gpt.py", "scripts/training/run_recipe.py"
"""Training scripts of Megatron-LM and of Megatron Bridge, relative to the root of their repositories."""
FLAG_FILE_SUFFIXES = (".yaml", ".yml")
"""A recipe of Megatron-LM is a file of flags. One of Megatron Bridge is the name of a function."""
AXIS_KEYS: dict[str, dict[str, str]] = {
    "smoke": {},
    "module": {},
    "torchtitan": {"tp": "parallelism.tensor_parallel_degree", "cp": "parallelism.context_parallel_degree"},
    "megatron": {
        "tp": "tensor_model_parallel_size",
        "cp": "context_parallel_size",
        "etp": "expert_tensor_parallel_size",
    },
    "maxtext": {"tp": "ici_tensor_parallelism", "cp": "ici_context_parallelism"},
}
"""Axes of a workload's own mesh by adapter, with the framework's key for their size. Ranks and EP are part of every
request."""


WorkloadMesh = Annotated[
    Annotated[MeshName, Tag("name")] | Annotated[OwnMesh, Tag("table")],
    Discriminator(lambda value: "name" if isinstance(value, str) else "table"),
]
"""A mesh of the shape, by its name, or a mesh that the workload defines."""


class ConfigError(UserError):
    """The configuration cannot be used. The message names the file, the key and how to fix it."""


def _require_inside_repository(path: str) -> None:
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise ValueError(f"{path!r} leaves the repository; write a path relative to its root")


class Workload(Record):
    """One table ``[workloads.NAME]``: which shapes to run in a checkout, and how to run them."""

    adapter: Adapter
    shapes: Annotated[list[str], Field(min_length=1)] = ["qwen3-30b-a3b", "mixtral-8x7b"]
    variant: str = "full"  # of the traces; timed_variant is that of the timed runs
    meshes: Annotated[list[WorkloadMesh], Field(min_length=1)] = ["ep", "ep-dp"]
    entry: str | None = Field(None, description="module adapter: 'package.module:function'")
    recipe: str = Field("", description="framework adapters: a recipe of the repository, with its own numbers")
    program: str = Field("", description="megatron adapter: training script of the checkout (docs/frameworks.md)")
    command: list[str] = Field([], description="command adapter: program and arguments of one run")
    log_format: str = Field("", description="command adapter: format of the step log; '' detects it")
    tokens_per_step: PositiveFloat | None = Field(None, description="of one rank, where logs report tokens/s")
    environment: dict[str, str] = Field({}, description="variables added to the clean environment of every run")
    label: Name | None = Field(None, description="prefix of its entries, for two workloads that share a shape")
    source_roots: Annotated[list[str], Field(min_length=1)] = ["."]  # folders that contain the packages
    watch: list[str] = Field([], description="packages that must come from the worktree; default: all packages in it")
    python: str = Field("", description="interpreter, relative to the worktree; default: the interpreter of regbot")
    build: list[str] = Field([], description="shell commands, run once in each new worktree")
    timeout_min: Annotated[float, Field(gt=0, le=24 * 60)] = 10.0  # time limit of one run
    stand_ins: str = Field("", description="file that declares stand-ins for compiled extensions (docs/module.md)")
    stand_ins_text: str = Field("", description="text of that file, which regbot fills in")
    numa_pinning: bool = Field(True, description="pin a rank to its GPU's NUMA node, unless the launcher has pinned it")
    paths: list[str] = Field([], description="pathspecs of files that it depends on (docs/configuration.md)")
    timed: list[str] | None = Field(None, description="shapes to time; default: all with a timed variant; [] for none")
    timed_variant: str = Field("", description="variant that is timed; default: smoke with enough GPUs, else cpu")
    dispatcher: str = Field("", description="requested from the layer; '' lets the layer choose (smoke: alltoall)")
    device: Literal["cpu", "cuda"] = Field("cuda", description="of smoke and module traces; cuda: a paper GPU")
    gpu: PaperGpu = Field(DEFAULT_PAPER_GPU, description="GPU that the paper GPU imitates (docs/paper-gpu.md)")
    routing: Literal["balanced", "skewed", "natural"] = "balanced"
    config: dict[str, Scalar] = Field({}, description="extra keys of the config that build_layer receives")

    @field_validator("entry")
    @classmethod
    def _check_entry(cls, value: str | None) -> str | None:
        if value is not None:
            module, colon, function = value.partition(":")
            if not colon or not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
                raise ValueError(f"{value!r} is not an entry point; write it as 'package.module:function'")
        return value

    @field_validator("program", "source_roots", "stand_ins")
    @classmethod
    def _check_inside_repository(cls, value: str | list[str]) -> str | list[str]:
        for path in [value] if isinstance(value, str) else value:
            _require_inside_repository(path)
        return Path(value).as_posix() if isinstance(value, str) and value else value  # as git writes it

    @field_validator("paths")
    @classmethod
    def _check_pathspecs(cls, value: list[str]) -> list[str]:
        for pathspec in value:
            if fault := find_pathspec_fault(pathspec):
                raise ValueError(fault)
        return value

    @field_validator("config")
    @classmethod
    def _check_geometry(cls, value: dict[str, Scalar]) -> dict[str, Scalar]:
        if fixed := sorted(GEOMETRY_KEYS & value.keys()):
            raise ValueError(f"{', '.join(fixed)}: fixed by the shape; choose another shape or variant instead")
        return value

    @model_validator(mode="after")
    def _check_gpu(self) -> "Workload":
        if self.device == "cpu" and self.adapter in ("torchtitan", "megatron"):
            raise ValueError(f"device: the adapter {self.adapter} has no CPU program; leave device out")
        has_paper_gpu = self.device != "cpu" and self.adapter not in ("maxtext", "command")
        if self.gpu != DEFAULT_PAPER_GPU and not has_paper_gpu:
            subject = "a CPU program" if self.device == "cpu" else f"the adapter {self.adapter}"
            raise ValueError(f"gpu: {subject} has no paper GPU; leave gpu out")
        return self

    @model_validator(mode="after")
    def _check_timed_shapes(self) -> "Workload":
        if unknown := sorted(set(self.timed or []) - set(self.shapes)):
            raise ValueError(f"timed: {unknown[0]!r} is not among the shapes of this workload; add it there too")
        return self

    @property
    def runs_bridge(self) -> bool:
        """Whether the workload is a recipe of Megatron Bridge. A recipe of Megatron-LM is a file of flags instead."""
        return self.adapter == "megatron" and bool(self.recipe) and not self.recipe.lower().endswith(FLAG_FILE_SUFFIXES)

    @property
    def training_script(self) -> str:
        """Path of the script that the adapter ``megatron`` runs, in the checkout. '' for other adapters."""
        if self.adapter != "megatron":
            return ""
        return self.program or (BRIDGE_PROGRAM if self.runs_bridge else MEGATRON_PROGRAM)

    @model_validator(mode="after")
    def _check_own_meshes(self) -> "Workload":
        """The adapter must be able to set all axes of such a mesh, and ``config`` must not set the same keys. A
        workload is never timed on a mesh of its own."""
        for mesh in self.meshes:
            if not isinstance(mesh, OwnMesh):
                continue
            if self.adapter not in AXIS_KEYS:
                raise ValueError(f"meshes: adapter {self.adapter!r} is not traced, so it takes only 'ep' and 'ep-dp'")
            axis_keys = AXIS_KEYS[self.adapter]
            if missing := [axis for axis, size in mesh.axis_sizes.items() if size > 1 and axis not in axis_keys]:
                known = ", ".join(["world", "ep", *axis_keys])
                raise ValueError(f"meshes: adapter {self.adapter!r} has no axis {missing[0]!r}; it has {known}")
            # A training script for Megatron takes its flags with hyphens or underscores. So map each key of ``config``,
            # written with underscores, to the key as it stands in the file.
            config_keys = {(key.replace("-", "_") if self.training_script else key): key for key in self.config}
            if clashes := sorted(config_keys[key] for key in axis_keys.values() if key in config_keys):
                raise ValueError(f"config.{clashes[0]}: a mesh of this workload sets it; remove it from config")
        if self.timed and all(isinstance(mesh, OwnMesh) for mesh in self.meshes):
            raise ValueError("timed: meshes of the workload's own are only traced; add 'ep' or 'ep-dp' to meshes")
        return self

    @model_validator(mode="after")
    def _check_adapter(self) -> "Workload":
        if self.adapter == "module" and self.entry is None:
            raise ValueError("adapter 'module' needs entry = 'package.module:function' (see docs/module.md)")
        if self.adapter == "smoke" and self.dispatcher not in ("", *SMOKE_DISPATCHERS):
            raise ValueError(
                f"the smoke model has no dispatcher {self.dispatcher!r}; use one of {', '.join(SMOKE_DISPATCHERS)}"
            )
        if self.adapter != "module" and self.entry is not None:
            raise ValueError(f"adapter {self.adapter!r} takes no entry; an entry point is for adapter = 'module'")
        if self.program and self.adapter != "megatron":
            raise ValueError(f"adapter {self.adapter!r} takes no program; 'megatron' does")
        # The file name of the script decides what a recipe may be.
        script = PurePosixPath(self.training_script).name
        if self.runs_bridge and (script == MEGATRON_PROGRAM or not self.recipe.isidentifier()):
            raise ValueError(
                f"recipe: {self.recipe!r} is neither a .yaml file of Megatron-LM's flags nor, with program = "
                f"{BRIDGE_PROGRAM!r}, the name of a recipe of Megatron Bridge"
            )
        if self.recipe and not self.runs_bridge and script == PurePosixPath(BRIDGE_PROGRAM).name:
            raise ValueError(f"recipe: {script} takes the name of a recipe of Megatron Bridge, not {self.recipe!r}")
        if self.training_script and self.timed != []:  # [] times no shape, and None all that can be timed
            raise ValueError(
                f"timed: {self.training_script} is traced and not timed; set timed = [], and time it with adapter = "
                "'command'"
            )
        if self.adapter == "command" and not self.command:
            raise ValueError("adapter 'command' needs command = ['program', 'argument', ...] (see docs/frameworks.md)")
        has_steps = any("{steps}" in argument for argument in self.command)
        if self.adapter == "command" and not has_steps:
            raise ValueError(
                "command: has no {steps}; put {steps} where the program takes its number of steps, warm-up included, "
                "because regbot starts runs of different lengths"
            )
        has_keys_of_commands = bool(self.command or self.log_format or self.tokens_per_step)
        if self.adapter != "command" and has_keys_of_commands:
            raise ValueError(
                f"adapter {self.adapter!r} takes no command and no step log (command, log_format, "
                "tokens_per_step); use adapter = 'command'"
            )
        if self.adapter == "maxtext" and self.timed:
            raise ValueError(
                "adapter 'maxtext' cannot time steps; to time MaxText, add a workload with adapter = 'command'"
            )
        if self.recipe and self.adapter not in FRAMEWORKS:
            raise ValueError(f"adapter {self.adapter!r} has no recipes; {', '.join(FRAMEWORKS)} have")
        return self


class LocalSettings(Record):
    """Limits that apply if runs execute on this machine (the local engine)."""

    parallel: Annotated[int, Field(ge=1, le=256)] = Field(2, description="number of static traces at the same time")
    max_output_mb: Annotated[float, Field(gt=0)] = 8.0  # output that is kept of each run
    max_record_mb: Annotated[float, Field(gt=0)] = 32.0  # largest record that regbot reads


class SlurmSettings(Record):
    """How nodes are requested from a Slurm cluster. An unset key means the cluster's default."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    exclude: list[str] = Field([], description="nodes that are never used")
    extra: list[str] = Field([], description="more srun options, one word per list entry")
    nodes: Annotated[int, Field(ge=1, le=10_000)] | None = Field(None, description="without GPUs; default: 1")
    ranks_per_node: Annotated[int, Field(ge=1, le=1024)] | None = Field(None, description="default: one rank per GPU")
    gpus_per_node: Annotated[int, Field(ge=0, le=1024)] | None = Field(None, description="default: all GPUs of a node")
    exclusive: bool = Field(True, description="no other job on the nodes, because it would disturb the timings")
    time_limit_min: PositiveFloat | None = Field(None, description="default: the longest session and a margin")
    queue_min: PositiveFloat = Field(24 * 60.0, description="how long a reservation may wait in the queue")
    silent_s: Annotated[float, Field(ge=10)] = Field(
        120.0, description="its nodes are released after this much silence from regbot"
    )
    lag_s: NonNegativeFloat = Field(30.0, description="longest delay until a write is visible on all nodes")
    python: str = Field("", description="regbot's interpreter on the nodes; default: the same path as here")
    environment: dict[str, str] = Field({}, description="variables of every launch, such as NCCL_SOCKET_IFNAME")


class SandboxSettings(Record):
    """How code under test is confined (docs/operator.md)."""

    untrusted: bool = Field(False, description="confine every launch and build, as --untrusted does")
    read: list[str] = Field([], description="paths that the code may read, besides its own and the system's")
    write: list[str] = Field([], description="folders that the code may write to; their content persists")
    network: bool = Field(False, description="let runs reach the network; ranks on several nodes always can")
    build_network: bool = Field(True, description="let build commands reach the network")
    submodule_hosts: list[HostOrUrl] = Field([], description="further hosts of submodules; a URL allows its port")
    tmp_mb: PositiveInt = Field(2048, description="size of /tmp and, separately, of /dev/shm; both use memory")
    disk_mb: PositiveInt = Field(4096, description="limit on the growth of its writable folders on disk in one launch")
    disk_files: PositiveInt = Field(200_000, description="limit on the growth of their number of files in one launch")
    pids: Annotated[int, Field(ge=16)] = Field(4096, description="processes and threads at the same time")
    memory_gb: PositiveFloat | None = Field(None, description="memory of one launch on one node; needs a control group")

    @field_validator("read", "write")
    @classmethod
    def _check_absolute(cls, value: list[str]) -> list[str]:
        for folder in value:
            if not Path(folder).is_absolute() or ".." in Path(folder).parts or Path(folder) == Path("/"):
                raise ValueError(f"{folder!r}: write the absolute path of a folder other than / and without ..")
        return value


class SessionSettings(Record):
    """Time budget of the timed runs in a check, and the number of steps of a run."""

    budget_min: PositiveFloat = Field(60.0, description="minutes of timed runs in one check, all workloads together")
    steps: Annotated[int, Field(ge=5, le=10_000)] | None = Field(None, description="timed steps of a run; default: 40")
    warmup: Annotated[int, Field(ge=1, le=10_000)] | None = Field(None, description="before them; default: 10")


class Baselines(Record):
    """Folder of the stored references, and the limit on a slow creep of the step time."""

    folder: str = Field("baselines", description="folder in the repository; those of base judge a change")
    creep_budget_pct: Annotated[float, Field(gt=0, le=100)] = Field(2.0, description="most slowdown since the anchor")

    @field_validator("folder")
    @classmethod
    def _check_inside_repository(cls, value: str) -> str:
        _require_inside_repository(value)
        if not Path(value).parts:
            raise ValueError(f"{value!r} is the repository itself; write a path in it")
        return Path(value).as_posix()  # git does not accept the forms ./perf and perf/


Label = Annotated[str, Field(min_length=1, max_length=50)]


class GitHub(Record):
    """What regbot posts to GitHub, and which changed paths need an explicit approval (docs/github.md). Read from the
    default branch, because it says how the repository is run today; other tables are the base commit's."""

    shadow: bool = Field(False, description="check everything, block nothing: conclusions are neutral")
    conclusions: dict[Status, Literal["success", "failure", "neutral", "action_required"]] = Field(
        {}, description="check run conclusions by verdict that differ from regbot's own"
    )
    self_reported: Literal["success", "neutral", "action_required"] = Field(
        "neutral", description="mildest conclusion of a verdict that a pull request's own job reports"
    )
    queue: Literal["static", "timed"] = Field(
        "static", description="what is done with a merge group; timed: a node measures it like a pull request"
    )
    run_label: Label = Field("regbot: measure", description="label that requests a measurement of a pull request")
    protected: list[str] = Field(
        [".github/**", "regbot.toml", "runners/**", "baselines/**"],
        description="paths whose change needs an explicit approval; ** matches across folders",
    )
    bot: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*(\[bot\])?$")] = Field(
        "github-actions[bot]", description="login under which the workflows' token writes comments"
    )


class Config(Record):
    """The whole ``regbot.toml``."""

    version: Literal[1] = 1
    inert: list[str] = Field([], description="globs of files that cannot affect a run; after ! of files that can")
    workloads: dict[Name, Workload] = Field({}, description="empty: regbot's own smoke model")
    sharding: ShardingThresholds = ShardingThresholds()
    program: ProgramThresholds = ProgramThresholds()
    throughput: ThroughputThresholds = ThroughputThresholds()
    session: SessionSettings = SessionSettings()
    baselines: Baselines = Baselines()
    wire: WireBandwidths = WireBandwidths()
    local: LocalSettings = LocalSettings()
    sandbox: SandboxSettings = SandboxSettings()
    slurm: SlurmSettings = SlurmSettings()
    github: GitHub = GitHub()

    @field_validator("inert")
    @classmethod
    def _check_globs(cls, value: list[str]) -> list[str]:
        for glob in value:
            pattern = glob.removeprefix("!")
            if not pattern or pattern != pattern.strip("/"):
                raise ValueError(f"{glob!r} matches no file; write a path from the root, such as 'tests/**'")
        return value
