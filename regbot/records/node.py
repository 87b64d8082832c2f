"""Records of nodes: results of the reference probe, verdicts whether a node is slow, and events of its quarantine.

Each node has one JSON-lines file with its probes. The events of all nodes are in one further file. Lines are only
appended and never changed.
"""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from regbot.records.base import Record
from regbot.records.baseline import NonEmptyText, require_canonical_time
from regbot.records.health import Share
from regbot.records.ledger import Message, Text

MAX_HOSTS = 10_000
MAX_PROBES = 16
"""Largest number of probes in the evidence for one quarantine."""

Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$")]
"""Name of a node in its scheduler. The name is also used in file names."""
ProbeSeconds = Annotated[float, Field(gt=0, le=1e4)]
Rank = Annotated[int, Field(ge=0, le=10_000_000)]
Ranks = Annotated[int, Field(ge=1, le=10_000_000)]
Measure = Literal["gemm", "local_all_to_all", "all_to_all", "copy"]
"""What a probe measures. gemm: a matrix product. local_all_to_all: an all-to-all among the ranks of one host.
all_to_all: an all-to-all among the ranks of all hosts. copy: a memory copy."""
NodeState = Literal["in service", "quarantined", "on trial"]
"""State of a node. on trial: the node was released from quarantine, but no new probe has passed yet."""


class RepeatedTiming(Record):
    """Seconds of a repeated measurement."""

    n: Annotated[int, Field(ge=1, le=1_000_000)] = Field(description="number of repetitions")
    median_s: ProbeSeconds
    mad_s: Annotated[float, Field(ge=0, le=1e4)] = Field(description="median absolute deviation")
    fast_s: ProbeSeconds = Field(description="10th percentile of the repetitions")


class Sizes(Record):
    """Sizes of the probe's computations and transfers. Only probes of equal sizes are compared."""

    gemm: Annotated[int, Field(ge=8, le=65536)] = Field(description="rows and columns of square matrices")
    dtype: Literal["bfloat16", "float32"]
    all_to_all_bytes: Annotated[int, Field(ge=64, le=2**40)] = Field(description="bytes that each rank sends")
    copy_bytes: Annotated[int, Field(ge=64, le=2**40)]


class RawNodeProbe(Record):
    """Result of one rank of the probe, as the rank wrote it. ``refusal`` says why the rank could not measure; '' if it
    could."""

    schema_id: Literal["regbot/node-probe-raw@1"] = Field(default="regbot/node-probe-raw@1", alias="schema")
    request: Text = Field(description="the request's nonce")
    rank: Rank
    refusal: Message = ""
    device: Literal["cpu", "cuda"] | None = None
    device_name: Text = ""
    driver: Text | None = None
    torch: Text = ""
    clock_s: Annotated[float, Field(ge=0, le=1e11)] | None = Field(
        default=None, description="the host's clock when all ranks had joined"
    )
    gemm: RepeatedTiming | None = None
    local_all_to_all: RepeatedTiming | None = Field(default=None, description="None for a host of one rank")
    all_to_all: RepeatedTiming | None = Field(default=None, description="None where all ranks are on one host")
    copy_: RepeatedTiming | None = Field(default=None, alias="copy")


class NodeProbe(Record):
    """One probe of one node: for each measurement, the slowest rank."""

    schema_id: Literal["regbot/node-probe@1"] = Field(default="regbot/node-probe@1", alias="schema")
    host: Host
    when: Text = Field(description="UTC, by the clock of the requesting machine")
    node_class: Text
    driver: Text | None = Field(description="'none' where there are no GPUs")
    container: Text | None
    software: Text = Field(description="version of torch, which supplies the kernels")
    device: Literal["cpu", "cuda"]
    device_name: Text
    ranks: Ranks = Field(description="number of ranks on this host")
    hosts: Annotated[list[Host], Field(min_length=1, max_length=MAX_HOSTS)] = Field(
        description="all hosts of the same probe, in the order of their ranks"
    )
    engine: Text
    job: Text = ""
    sizes: Sizes
    gemm: RepeatedTiming
    gemm_rank: Rank = Field(description="the rank with the slowest matrix product")
    local_all_to_all: RepeatedTiming | None = Field(
        description="all-to-all among the ranks of this host; None for a host of one rank"
    )
    all_to_all: RepeatedTiming | None = Field(
        description="all-to-all among the ranks of all hosts; None where all ranks are on one host"
    )
    copy_: RepeatedTiming = Field(alias="copy")
    gemm_tflops: Annotated[float, Field(gt=0, le=1e6)] = Field(
        description="TFLOP/s of the matrix product on the slowest rank"
    )
    local_all_to_all_gbs: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        description="GB/s that a rank sends to others"
    )
    all_to_all_gbs: Annotated[float, Field(gt=0, le=1e6)] | None
    copy_gbs: Annotated[float, Field(gt=0, le=1e6)] = Field(description="GB/s read and written")
    skew_s: Annotated[float, Field(ge=-1e11, le=1e11)] = Field(
        default=0.0,
        description="seconds by which the clock of this host is ahead of the median clock of all hosts of the probe",
    )
    others_share: Share | None = Field(
        default=None, description="share of the cores' time that other work used; None if unknown"
    )
    causes: Annotated[list[Message], Field(max_length=64)] = Field(
        default_factory=list, description="other faults of the node during the probe, apart from its speed"
    )
    slow: bool = Field(
        default=False, description="verdict at the time of the probe; a slow probe is no reference for later ones"
    )

    _when = field_validator("when")(require_canonical_time)

    def get_timing(self, measure: Measure) -> RepeatedTiming | None:
        """Return the timing of one measurement; None where the probe did not make this measurement."""
        timing: RepeatedTiming | None = self.copy_ if measure == "copy" else getattr(self, measure)
        return timing


class NodeThresholds(Record):
    """Thresholds above which a node is slow. A time is too slow only if it exceeds its reference by each of the three
    limits ``pct``, ``sds`` and ``scatters``, not by their sum.

    The reference is computed from earlier probes of the node, or from its peers.
    """

    pct: Annotated[float, Field(gt=0, le=1000)] = Field(
        default=10.0, description="minimum excess over the reference, in percent"
    )
    sds: Annotated[float, Field(gt=0, le=1000)] = Field(
        default=5.0,
        description="minimum excess, in robust standard deviations of the reference; used if at least ``long`` probes "
        "give this standard deviation",
    )
    scatters: Annotated[float, Field(ge=0, le=1000)] = Field(
        default=3.0,
        description="minimum excess of the median, in robust standard deviations of the repetitions within one probe",
    )
    least: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=3, description="minimum number of the node's own earlier probes for a comparison with them"
    )
    long: Annotated[int, Field(ge=3, le=1000)] = Field(
        default=8, description="minimum number of probes for a standard deviation of the reference"
    )
    window: Annotated[int, Field(ge=3, le=1000)] = Field(
        default=20, description="maximum number of earlier probes in the reference; the latest are used"
    )


class NodeFinding(Record):
    """One measurement that was too slow."""

    measure: Measure
    against: Literal["history", "peers"] = Field(
        description="reference. history: earlier probes of the node. peers: other nodes of its class"
    )
    accuses: Literal["node", "set"] = Field(
        description="node: the host is slow; set: the hosts are slow together, because an exchange over several hosts "
        "does not show which of them is slow"
    )
    hosts: Annotated[list[Host], Field(min_length=1, max_length=MAX_HOSTS)]
    pct: float = Field(
        description="percent above the reference; computed for the median and for the 10th percentile, and the smaller "
        "value counts"
    )
    seconds: ProbeSeconds = Field(description="the measured time")
    reference_s: ProbeSeconds = Field(description="the time of the reference")
    sd_pct: Annotated[float, Field(ge=0)] | None = Field(
        description="robust standard deviation of the reference in percent; None if there are too few probes"
    )
    compared: Annotated[int, Field(ge=1)] = Field(description="number of probes, or of peers, in the reference")
    text: Message


class NodeVerdict(Record):
    """Whether a node is slow. Its status is unknown if there is nothing to compare it with."""

    host: Host
    status: Literal["ok", "slow", "unknown"]
    findings: list[NodeFinding] = Field(default_factory=list)
    notes: list[Message] = Field(default_factory=list)


class NodeJudgement(Record):
    """Verdicts on nodes that were probed together. ``sets`` and ``fleet`` have findings that accuse no single node."""

    schema_id: Literal["regbot/node-judgement@1"] = Field(default="regbot/node-judgement@1", alias="schema")
    nodes: list[NodeVerdict]
    sets: list[NodeFinding] = Field(
        default_factory=list, description="slow exchanges over several hosts, of which any host may be the cause"
    )
    fleet: list[Message] = Field(
        default_factory=list, description="sentences on several nodes that became slower at once, after a common change"
    )


class StragglerSession(Record):
    """A session in which a rank on the node was late."""

    session: Text = Field(description="job of the scheduler in which the session ran")
    rank: Rank = Field(description="the late rank; 0 if all ranks of the node were late")
    pct: float = Field(description="percent by which the rank's own work took longer than that of the other ranks")
    text: Message = ""


class Evidence(Record):
    """Why a node was quarantined. ``automatic`` is true if regbot decided, and false if a person did.

    ``probes`` has the slow probe, or the node's last probe if a person decided; [] if the node was never probed.
    """

    host: Host
    when: Text = Field(description="UTC")
    who: NonEmptyText = Field(description="'regbot', or an operator")
    automatic: bool
    reason: Annotated[str, Field(min_length=1, max_length=4000)]
    findings: Annotated[list[NodeFinding], Field(max_length=32)] = Field(default_factory=list)
    probes: Annotated[list[NodeProbe], Field(max_length=MAX_PROBES)] = Field(
        default_factory=list, description="the slow probe; the last one if several were slow"
    )
    stragglers: Annotated[list[StragglerSession], Field(max_length=MAX_PROBES)] = Field(
        default_factory=list, description="sessions in which ranks on the node were late"
    )
    thresholds: NodeThresholds | None = Field(
        default=None, description="thresholds of the automatic decision; None if a person decided"
    )

    _when = field_validator("when")(require_canonical_time)


class NodeEvent(Record):
    """A change of a node's state: it was quarantined, was released on trial, or passed its trial with a good probe.

    ``automatic`` is true if regbot made the change, and false if a person did.
    """

    schema_id: Literal["regbot/node-event@1"] = Field(default="regbot/node-event@1", alias="schema")
    event: Literal["quarantined", "released", "passed"]
    host: Host
    when: Text = Field(description="UTC")
    who: NonEmptyText
    automatic: bool
    reason: Annotated[str, Field(min_length=1, max_length=4000)]
    evidence: Evidence | None = None

    _when = field_validator("when")(require_canonical_time)


class NodeRow(Record):
    """One node in a list."""

    host: Host
    state: NodeState
    since: Text | None = Field(description="start of the state, UTC; None without any event")
    reason: Message = ""
    probes: Annotated[int, Field(ge=0)] = Field(description="number of stored probes")
    last: NodeProbe | None = Field(description="the latest probe")
    verdict: NodeVerdict | None = Field(
        description="verdict on the latest probe, compared with earlier probes and with the node's peers"
    )


class NodeListing(Record):
    """Output of ``node list``. ``sets`` and ``fleet`` have findings that accuse no single node (``NodeJudgement``)."""

    schema_id: Literal["regbot/node-list@1"] = Field(default="regbot/node-list@1", alias="schema")
    nodes: list[NodeRow]
    sets: list[NodeFinding] = Field(default_factory=list)
    fleet: list[Message] = Field(default_factory=list)


class NodeReport(Record):
    """Output of ``node show``: everything known about one node, oldest first."""

    schema_id: Literal["regbot/node-show@1"] = Field(default="regbot/node-show@1", alias="schema")
    node: NodeRow
    events: list[NodeEvent]
    probes: list[NodeProbe]


class NodeChange(Record):
    """Output of ``node quarantine`` and ``node release``."""

    schema_id: Literal["regbot/node-changed@1"] = Field(default="regbot/node-changed@1", alias="schema")
    event: NodeEvent
    state: NodeState
    warnings: list[Message] = Field(default_factory=list)


class ProbeReport(Record):
    """Output of ``node probe``: new probes, their verdicts, and the resulting events."""

    schema_id: Literal["regbot/nodes-probed@1"] = Field(default="regbot/nodes-probed@1", alias="schema")
    probes: list[NodeProbe]
    judgement: NodeJudgement
    events: list[NodeEvent] = Field(default_factory=list)
    warnings: list[Message] = Field(default_factory=list)
