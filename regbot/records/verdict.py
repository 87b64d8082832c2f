"""Records of the verdict. For each workload it answers: Did the sharding change? Did throughput change? Is the answer
valid?"""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, field_validator

from regbot.records.base import Record
from regbot.records.calibration_summary import CalibrationSummary, PairNoise
from regbot.records.ledger import Kind, Message, Scalar, Text
from regbot.records.run import Arm, Bytes, Tier

Status = Literal["PASS", "FAIL", "INCONCLUSIVE", "INVALID", "REVIEW"]

WallKind = Literal["communication", "compute or host", "not one wall"]
Decision = Literal["regressed", "improved", "no_change", "within_bound", "undecided"]

EXIT_CODES: dict[Status, int] = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3, "INVALID": 4, "REVIEW": 5}
GRAVITY: tuple[Status, ...] = ("FAIL", "INVALID", "REVIEW", "INCONCLUSIVE", "PASS")
"""Statuses of sections, the gravest first. The overall status follows other rules (``compute_overall_status``)."""


class Volume(Record):
    """Count and bytes of one kind of collective in one step."""

    count: int
    bytes: int


RENAMED_PATTERNS = {
    "expert axis mapped twice": "all-to-all replaced by gather and sum",
    "count exchange added": "exchange of token counts or indices added",
    "count exchange removed": "exchange of token counts or indices removed",
}
"""Patterns that have another name in records of earlier versions. The value is the name of today."""


class Finding(Record):
    """One change, with the name of its pattern and what it means."""

    pattern: Text
    status: Status
    axis: Text
    base: dict[Kind, Volume]
    head: dict[Kind, Volume]
    text: Message
    modules: list[Text] = Field(
        default_factory=list, description="changed modules, with layer numbers as '*'; at most a few"
    )
    accepted: Message | None = Field(default=None, description="the reason of the --expect rule that accepts it")

    @field_validator("pattern")
    @classmethod
    def _use_name_of_today(cls, value: str) -> str:
        return RENAMED_PATTERNS.get(value, value)


class WireTime(Record):
    """Modelled wire time of one step. The model ranks configurations; it is not a measurement."""

    base_s: float
    head_s: float


class RoleCounts(Record):
    """Counts of one kind of collective, by role."""

    payload: int
    control: int


class Sharding(Record):
    """Section of the verdict: did the sharding change?"""

    status: Status
    reasons: list[Message]
    findings: list[Finding] = Field(default_factory=list)
    base: dict[Kind, RoleCounts] = Field(default_factory=dict)
    head: dict[Kind, RoleCounts] = Field(default_factory=dict)
    source: Text
    tier: Tier = Field(
        default="static", description="runs whose ledgers were compared: traces, or timed runs with profiled steps"
    )
    variant: Text = Field(default="", description="variant of the traced shape; '' where the ledger names none")
    identical_program: bool = False
    wire: WireTime | None = None
    config_changes: dict[str, tuple[Scalar, Scalar]] = Field(default_factory=dict)


class LedgerDiff(Sharding):
    """Output of ``ledger diff``: a comparison of two ledgers without a check."""

    schema_id: Literal["regbot/ledger-diff@1"] = Field(default="regbot/ledger-diff@1", alias="schema")
    software_changes: dict[str, tuple[Text, Text]] = Field(
        default_factory=dict, description="packages with different versions: the versions in base and head"
    )


class PrimaryTest(Record):
    """One primary test: one summary of a run, compared over pairs. Positive percentages mean that head is slower."""

    summary: Literal["median", "mean"]
    decision: Decision
    estimate_pct: float
    low_pct: float
    high_pct: float
    sd_pct: Annotated[float, Field(ge=0)] = Field(
        description="sd of the log-ratio of one pair, in percent of a log unit"
    )
    log_ratios: list[float] = Field(description="log(head / base) of the pairs used, in session order")
    trimmed: Annotated[int, Field(ge=0)] = Field(
        default=0, description="pairs that the interval leaves out at each end, because some runs were far slower"
    )


class SlowLaunch(Record):
    """A launch that was far slower than the other launches of its session."""

    pair: Annotated[int, Field(ge=1)] = Field(description="number of its pair, in session order")
    arm: Literal["base", "head"]
    slower_pct: float = Field(
        description="how much slower the launch is, from the ratio of its pair beside the median ratio of all pairs"
    )


class SecondaryTest(Record):
    """Test of a secondary metric. It helps to explain a decision of the primary tests, and decides nothing."""

    metric: Text
    estimate_pct: float
    p_adjusted: float = Field(
        description="p value of a paired t test, adjusted over these metrics by Benjamini and Yekutieli"
    )
    significant: bool


class Cost(Record):
    """Cost of the timed runs."""

    runs: Annotated[int, Field(ge=0)]
    minutes: Annotated[float, Field(ge=0)]


StepSeconds = Annotated[float, Field(ge=0)]
RunRole = Literal["warm-up", "stored", "screen", "pair", "unused", "void"]
"""Role of a timed run. warm-up: a discarded launch. stored: a run of head alone that is compared with stored sessions,
called screen in version 0.1.0. pair: a run of a pair that the decision used. unused: a run of a valid pair that the
decision did not use. void: a run that does not count."""


class RankTimes(Record):
    """Medians of one rank over the steady steps of a run, or over the runs of an arm; null if unknown."""

    rank: Text
    step_s: StepSeconds | None
    cpu_s: StepSeconds | None
    wait_s: StepSeconds | None
    peak_bytes: Bytes = Field(description="0 if unknown")


class RankComparison(Record):
    """Times of one rank in both arms; null if the arm lacks the rank."""

    rank: Text
    base: RankTimes | None
    head: RankTimes | None


class RunVerdict(Record):
    """Role of one timed run, and its summary numbers. Steps before ``cut`` are left out of all of them.

    For a run of a pair, they are the numbers that the pair compares.
    """

    number: Annotated[int, Field(ge=1)] = Field(
        description="position among the timed runs of this workload, in session order"
    )
    arm: Literal["base", "head"]
    role: RunRole
    pair: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="number of its valid pair, in session order"
    )
    reason: Message = Field(default="", description="why the run was left out")
    cut: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="leading steps left out; null where no steady step is left"
    )
    median_s: StepSeconds | None = Field(default=None, description="median step time of the slowest rank")
    mean_s: StepSeconds | None = Field(default=None, description="mean step time of the slowest rank")
    low_quartile_s: StepSeconds | None = Field(
        default=None,
        description="lower quartile of the slowest rank's step times; null with fewer than two steady steps",
    )
    high_quartile_s: StepSeconds | None = None
    peak_bytes: Bytes = Field(default=0, description="largest of all ranks; 0 if unknown")
    wall_s: Annotated[float, Field(ge=0)] | None = Field(default=None, description="of the whole launch")
    ranks: list[RankTimes] = Field(default_factory=list)


class Throughput(Record):
    """Section of the verdict: did throughput change? ``decision`` is null where times may not decide."""

    status: Status
    reasons: list[Message]
    decision: Decision | None = None
    by: Literal["pairs", "look0", "screen", "stored", "identity", "runs"] | None = Field(
        default=None,
        description="look0: pairs of the first block, with the noise of the node class; runs: unpaired runs from "
        "files; screen: head alone, in sessions of version 0.1.0, which decides nothing any more",
    )
    estimate_pct: float | None = Field(
        default=None, description="estimate for the median; positive means that head is slower"
    )
    low_pct: float | None = None
    high_pct: float | None = None
    bound_pct: float | None = Field(default=None, description="largest slowdown that a PASS does not exclude")
    pairs: Annotated[int, Field(ge=0)] = Field(default=0, description="valid pairs that the decision used")
    void_pairs: Annotated[int, Field(ge=0)] = 0
    unused_pairs: Annotated[int, Field(ge=0)] = 0
    alpha: float | None = Field(default=None, description="two-sided error of one interval at one look")
    mde_pct: float | None = Field(
        default=None, description="smallest true slowdown that these pairs detect with probability 0.8"
    )
    mde_full_pct: float | None = Field(
        default=None, description="smallest true slowdown that a full session would detect with probability 0.8"
    )
    tests: list[PrimaryTest] = Field(default_factory=list)
    secondary: list[SecondaryTest] = Field(default_factory=list)
    slow_launches: list[SlowLaunch] = Field(default_factory=list)
    pass_withheld: bool = Field(
        default=False, description="head does not pass although its interval would: it has more slow runs than base"
    )
    assumed_luck_pct: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="luck of an arm by which the interval is widened because no calibration has measured it; else 0",
    )
    decision_without_luck: Decision | None = Field(
        default=None,
        description="what these pairs would decide without the assumed luck; None where it makes no difference",
    )
    sessions: Annotated[int, Field(ge=0)] = Field(
        default=0, description="number of stored sessions, or of separate sessions of base files, in the comparison"
    )
    calibrated: CalibrationSummary | None = Field(
        default=None, description="calibration of the gate on this node class"
    )
    class_noise: PairNoise | None = Field(
        default=None, description="noise of stored pairs that look 0 used; null without a look 0"
    )
    base_warmup_steps: float | None = Field(default=None, description="median over runs; None where not measured")
    head_warmup_steps: float | None = None
    base_step_s: float | None = Field(default=None, description="median over runs of the run's median step time")
    head_step_s: float | None = None
    wall: Message = Field(default="", description="cause of the change: memory, communication, compute or host")
    wall_kind: WallKind | None = Field(default=None, description="the part that explains most of the change")
    fallback: bool = Field(
        default=False, description="whether the times are of another dispatcher than the requested one"
    )
    node: Text = ""
    variant: Text = ""
    expert_flops_share: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None,
        description="share of the routed experts in the step's model FLOPs; null for models that a shape does not fix",
    )
    cost: Cost | None = None
    runs: list[RunVerdict] = Field(default_factory=list, description="every timed run, in session order")
    ranks: list[RankComparison] = Field(
        default_factory=list, description="each rank: medians over the runs of each arm that the decision used"
    )


class StoredTest(Record):
    """One arm of this session compared with the stored sessions. Positive percentages mean that the arm is slower."""

    arm: Literal["base", "head"]
    summary: Literal["median", "mean"]
    estimate_pct: float = Field(description="difference to the mean of the stored sessions")
    low_pct: float
    high_pct: float
    p_value: Annotated[float, Field(ge=0, le=1)] = Field(
        description="two-sided; below alpha if the interval does not contain 0"
    )


class StoredTimes(Record):
    """Step times of this session against the last stored sessions of main. They decide nothing where pairs were run."""

    reason: Message = Field(default="", description="why no session can be compared; '' where there are tests")
    sessions: Annotated[int, Field(ge=0)] = 0
    newest: Text = Field(default="", description="when the newest stored session was measured, UTC")
    age_days: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="of the newest stored session when this session began; null if unknown"
    )
    runs: Annotated[int, Field(ge=0)] = Field(
        default=0, description="runs from which the level of each arm and of each stored session is computed"
    )
    alpha: float | None = Field(default=None, description="two-sided error of one prediction interval")
    tests: list[StoredTest] = Field(default_factory=list)
    base_drifted: bool = Field(
        default=False, description="whether base is outside of its interval, and enough sessions are stored to warn"
    )


class StoredCollectives(Record):
    """Head's collectives against the stored ledger of main. The comparison decides nothing."""

    commit: Text = Field(description="of the stored ledger")
    age_days: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="of the stored ledger when this session began; null if unknown"
    )
    patterns: list[Text] = Field(default_factory=list, description="of the differences, [] if there are none")
    reason: Message = Field(default="", description="why the ledgers cannot be compared; '' where they were")


class StoredComparison(Record):
    """One workload of this session against the stored baseline of its node class and environment."""

    times: StoredTimes | None = None
    collectives: StoredCollectives | None = None


class Validity(Record):
    """Section of the verdict: is the answer valid?"""

    status: Status
    reasons: list[Message]


class WorkloadVerdict(Record):
    """Verdict on one workload's entry."""

    name: Text
    sharding: Sharding | None
    throughput: Throughput | None
    validity: Validity
    stored: StoredComparison | None = Field(
        default=None, description="the stored baseline beside the verdict; null if nothing is stored"
    )
    unconcerned: bool = Field(
        default=False, description="the workload was not run, because no changed file matches its paths"
    )


class Verdict(Record):
    """Result of one check."""

    schema_id: Literal["regbot/verdict@1"] = Field(default="regbot/verdict@1", alias="schema")
    verdict: Status
    base: Arm
    head: Arm
    workloads: list[WorkloadVerdict]
    warnings: list[Message] = Field(default_factory=list)


def select_gravest_status(statuses: Iterable[Status]) -> Status:
    """Return the gravest status of several sections. Raises ValueError if ``statuses`` is empty."""
    return min(statuses, key=GRAVITY.index)


def compute_overall_status(workloads: Iterable[WorkloadVerdict]) -> Status:
    """Return the overall status of a verdict. It is the first of these that some workload has: FAIL of sharding or
    validity, INVALID, FAIL of throughput, REVIEW, INCONCLUSIVE, PASS.

    A verdict without any measurement is INVALID. A check that measured nothing therefore never passes. A workload that
    the change does not concern counts by its validity, which is PASS only with a proof.
    """
    entries = list(workloads)
    sharding = {entry.sharding.status for entry in entries if entry.sharding}
    validity = {entry.validity.status for entry in entries}
    throughput = {entry.throughput.status for entry in entries if entry.throughput}
    statuses = sharding | validity | throughput
    has_unmeasured = any(
        entry.sharding is None and entry.throughput is None and not entry.unconcerned for entry in entries
    )
    if "FAIL" in sharding | validity:
        return "FAIL"
    if not entries or has_unmeasured or "INVALID" in statuses:
        return "INVALID"
    if "FAIL" in throughput:
        return "FAIL"
    for status in ("REVIEW", "INCONCLUSIVE"):
        if status in statuses:
            return status
    return "PASS"
