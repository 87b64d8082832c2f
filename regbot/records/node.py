"""Nodes: what the reference probe found on one, whether that is slow, and when it was taken out of service and back.

One JSON-lines file per node holds its probes, one for all nodes the events; nothing in either is ever changed.
"""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from regbot.records.base import Record
from regbot.records.baseline import Named, canonical
from regbot.records.health import Share
from regbot.records.ledger import Message, Text

MAX_HOSTS = 10_000
MAX_PROBES = 16
"""Of one piece of evidence."""

Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$")]
"""A node's name as its scheduler has it; it names files."""
Took = Annotated[float, Field(gt=0, le=1e4)]
Rank = Annotated[int, Field(ge=0, le=10_000_000)]
Ranks = Annotated[int, Field(ge=1, le=10_000_000)]
Measure = Literal["gemm", "local_all_to_all", "all_to_all", "copy"]
State = Literal["in service", "quarantined", "on trial"]
"""on trial: released, and a fresh probe has not passed yet."""


class Repeated(Record):
    """Seconds of one measurement that was repeated."""

    n: Annotated[int, Field(ge=1, le=1_000_000)]
    median_s: Took
    mad_s: Annotated[float, Field(ge=0, le=1e4)] = Field(description="median absolute deviation")
    fast_s: Took = Field(description="which a tenth of the repetitions did not exceed")


class Sizes(Record):
    """What is computed and moved. Probes of other sizes are not compared."""

    gemm: Annotated[int, Field(ge=8, le=65536)] = Field(description="rows and columns of square matrices")
    dtype: Literal["bfloat16", "float32"]
    all_to_all_bytes: Annotated[int, Field(ge=64, le=2**40)] = Field(description="that each rank gives")
    copy_bytes: Annotated[int, Field(ge=64, le=2**40)]


class RawNodeProbe(Record):
    """What one rank of the probe writes."""

    schema_id: Literal["regbot/node-probe-raw@1"] = Field(default="regbot/node-probe-raw@1", alias="schema")
    request: Text = Field(description="the request's nonce")
    rank: Rank
    refusal: Message = ""
    device: Literal["cpu", "cuda"] | None = None
    device_name: Text = ""
    driver: Text | None = None
    torch: Text = ""
    clock_s: Annotated[float, Field(ge=0, le=1e11)] | None = Field(
        default=None, description="the host's clock when all ranks had met"
    )
    gemm: Repeated | None = None
    local_all_to_all: Repeated | None = Field(default=None, description="None for a host of one rank")
    all_to_all: Repeated | None = Field(default=None, description="None where all ranks are on one host")
    copy_: Repeated | None = Field(default=None, alias="copy")


class NodeProbe(Record):
    """One probe of one node: of each measurement, its slowest rank."""

    schema_id: Literal["regbot/node-probe@1"] = Field(default="regbot/node-probe@1", alias="schema")
    host: Host
    when: Text = Field(description="UTC, by the clock of who asked")
    node_class: Text
    driver: Text | None = Field(description="'none' where there are no GPUs")
    container: Text | None
    software: Text = Field(description="torch, which brings the kernels")
    device: Literal["cpu", "cuda"]
    device_name: Text
    ranks: Ranks = Field(description="on this host")
    hosts: Annotated[list[Host], Field(min_length=1, max_length=MAX_HOSTS)] = Field(
        description="probed at the same time, in the order of their ranks"
    )
    engine: Text
    job: Text = ""
    sizes: Sizes
    gemm: Repeated
    gemm_rank: Rank = Field(description="the slowest")
    local_all_to_all: Repeated | None = Field(description="among the ranks of this host")
    all_to_all: Repeated | None = Field(description="among all ranks of all hosts")
    copy_: Repeated = Field(alias="copy")
    gemm_tflops: Annotated[float, Field(gt=0, le=1e6)] = Field(description="per second, of the slowest rank")
    local_all_to_all_gbs: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        description="10**9 bytes per second that a rank sends to others"
    )
    all_to_all_gbs: Annotated[float, Field(gt=0, le=1e6)] | None
    copy_gbs: Annotated[float, Field(gt=0, le=1e6)] = Field(description="read and written")
    skew_s: Annotated[float, Field(ge=-1e11, le=1e11)] = Field(
        default=0.0, description="of its clock, against the middle one of the hosts"
    )
    others_share: Share | None = Field(
        default=None, description="of the cores' time that other work took; None: unknown"
    )
    causes: Annotated[list[Message], Field(max_length=64)] = Field(
        default_factory=list, description="what else was wrong with the node meanwhile, not its speed"
    )
    slow: bool = Field(default=False, description="as it was judged when it was taken; no reference for later ones")

    _when = field_validator("when")(canonical)

    def of(self, measure: Measure) -> Repeated | None:
        """One measurement; None where it was not made."""
        found: Repeated | None = self.copy_ if measure == "copy" else getattr(self, measure)
        return found


class NodeThresholds(Record):
    """When a node is slow."""

    pct: Annotated[float, Field(gt=0, le=1000)] = Field(default=10.0, description="slower than the reference by this")
    sds: Annotated[float, Field(gt=0, le=1000)] = Field(
        default=5.0, description="and by so many robust sd of it, once that is known"
    )
    scatters: Annotated[float, Field(ge=0, le=1000)] = Field(
        default=3.0, description="and its median by so many robust sd of the repetitions of one probe"
    )
    least: Annotated[int, Field(ge=1, le=1000)] = Field(default=3, description="probes of its own that say anything")
    long: Annotated[int, Field(ge=3, le=1000)] = Field(default=8, description="probes from which an sd is known")
    window: Annotated[int, Field(ge=3, le=1000)] = Field(default=20, description="probes that are looked back on")


class NodeFinding(Record):
    """One measurement that took too long."""

    measure: Measure
    against: Literal["history", "peers"]
    accuses: Literal["node", "set"] = Field(description="an exchange over several hosts cannot tell which one it was")
    hosts: Annotated[list[Host], Field(min_length=1, max_length=MAX_HOSTS)]
    pct: float = Field(description="by which the median and the fastest tenth are above, the smaller of the two")
    seconds: Took
    reference_s: Took
    sd_pct: Annotated[float, Field(ge=0)] | None = Field(description="robust, of the reference; None: too few")
    compared: Annotated[int, Field(ge=1)] = Field(description="probes, or peers")
    text: Message


class NodeVerdict(Record):
    """Is this node slow? unknown: there is nothing to compare it with."""

    host: Host
    status: Literal["ok", "slow", "unknown"]
    findings: list[NodeFinding] = Field(default_factory=list)
    notes: list[Message] = Field(default_factory=list)


class NodeJudgement(Record):
    """Nodes that were probed together. ``sets`` and ``fleet`` accuse no single node."""

    schema_id: Literal["regbot/node-judgement@1"] = Field(default="regbot/node-judgement@1", alias="schema")
    nodes: list[NodeVerdict]
    sets: list[NodeFinding] = Field(default_factory=list)
    fleet: list[Message] = Field(default_factory=list, description="many nodes became slower at once")


class Straggled(Record):
    """A session in which a rank of the node came late."""

    session: Text
    rank: Rank
    pct: float = Field(description="of a step")
    text: Message = ""


class Evidence(Record):
    """Why a node was taken out of service."""

    host: Host
    when: Text = Field(description="UTC")
    who: Named = Field(description="'regbot', or an operator")
    automatic: bool
    reason: Annotated[str, Field(min_length=1, max_length=4000)]
    findings: Annotated[list[NodeFinding], Field(max_length=32)] = Field(default_factory=list)
    probes: Annotated[list[NodeProbe], Field(max_length=MAX_PROBES)] = Field(
        default_factory=list, description="the one that was slow last"
    )
    stragglers: Annotated[list[Straggled], Field(max_length=MAX_PROBES)] = Field(default_factory=list)
    thresholds: NodeThresholds | None = Field(default=None, description="None: somebody decided")

    _when = field_validator("when")(canonical)


class NodeEvent(Record):
    """A node left service, was released, or passed its trial."""

    schema_id: Literal["regbot/node-event@1"] = Field(default="regbot/node-event@1", alias="schema")
    event: Literal["quarantined", "released", "passed"]
    host: Host
    when: Text = Field(description="UTC")
    who: Named
    automatic: bool
    reason: Annotated[str, Field(min_length=1, max_length=4000)]
    evidence: Evidence | None = None

    _when = field_validator("when")(canonical)


class NodeRow(Record):
    """One node as it is listed."""

    host: Host
    state: State
    since: Text | None = Field(description="of the state, UTC; None where nothing ever happened")
    reason: Message = ""
    probes: Annotated[int, Field(ge=0)]
    last: NodeProbe | None
    verdict: NodeVerdict | None = Field(description="of the last probe, against those before it and its peers")


class NodeListing(Record):
    """What ``node list`` prints."""

    schema_id: Literal["regbot/node-list@1"] = Field(default="regbot/node-list@1", alias="schema")
    nodes: list[NodeRow]
    sets: list[NodeFinding] = Field(default_factory=list)
    fleet: list[Message] = Field(default_factory=list)


class NodeReport(Record):
    """What ``node show`` prints: everything that is known of one node, oldest first."""

    schema_id: Literal["regbot/node-show@1"] = Field(default="regbot/node-show@1", alias="schema")
    node: NodeRow
    events: list[NodeEvent]
    probes: list[NodeProbe]


class NodeChanged(Record):
    """What ``node quarantine`` and ``node release`` print."""

    schema_id: Literal["regbot/node-changed@1"] = Field(default="regbot/node-changed@1", alias="schema")
    event: NodeEvent
    state: State
    warnings: list[Message] = Field(default_factory=list)


class NodesProbed(Record):
    """What ``node probe`` prints: fresh probes, what they show, and what followed from that."""

    schema_id: Literal["regbot/nodes-probed@1"] = Field(default="regbot/nodes-probed@1", alias="schema")
    probes: list[NodeProbe]
    judgement: NodeJudgement
    events: list[NodeEvent] = Field(default_factory=list)
    warnings: list[Message] = Field(default_factory=list)
