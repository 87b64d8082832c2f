"""Records of the verdict. For each workload it answers: Did the sharding change? Did throughput change? Is the answer
valid?"""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

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
    """Number and bytes of the collectives of one kind in one step."""

    count: int
    bytes: int


class Finding(Record):
    """One change between the ledgers of base and head."""

    pattern: Text = Field(description="name of the kind of change, such as 'host reads removed'")
    status: Status
    axis: Text = Field(description="mesh axis of the changed collectives; several are separated by ' -> ' or ', '")
    base: dict[Kind, Volume] = Field(description="the changed collectives in base")
    head: dict[Kind, Volume] = Field(description="the changed collectives in head")
    text: Message = Field(description="what changed and what it means")
    modules: list[Text] = Field(
        default_factory=list,
        description="the first few modules whose collectives changed, with '*' in place of layer numbers",
    )
    accepted: Message | None = Field(
        default=None, description="the reason in the --expect rule that accepts the finding; null if no rule does"
    )


class WireTime(Record):
    """Modelled wire time of one step. The model ranks configurations; it is not a measurement."""

    base_s: float
    head_s: float


class RoleCounts(Record):
    """Number of collectives of one kind in one step, by role."""

    payload: int
    control: int


class Sharding(Record):
    """Section of the verdict: did the sharding change?"""

    status: Status
    reasons: list[Message]
    findings: list[Finding] = Field(default_factory=list)
    base: dict[Kind, RoleCounts] = Field(default_factory=dict, description="number of base's collectives by kind")
    head: dict[Kind, RoleCounts] = Field(default_factory=dict, description="number of head's collectives by kind")
    source: Text = Field(description="how the collectives were counted, and over how many ranks and steps")
    tier: Tier = Field(
        default="static", description="runs whose ledgers were compared: traces, or timed runs with profiled steps"
    )
    variant: Text = Field(default="", description="variant of the traced shape; '' where the ledger names none")
    identical_program: bool = Field(
        default=False, description="whether there are no findings and both device programs are identical"
    )
    wire: WireTime | None = None
    config_changes: dict[str, tuple[Scalar, Scalar]] = Field(
        default_factory=dict,
        description="keys of the resolved configuration that differ, with the values in base and head; null if an arm "
        "lacks the key",
    )


class LedgerDiff(Sharding):
    """Output of ``ledger diff``: a comparison of two ledgers without a check."""

    schema_id: Literal["regbot/ledger-diff@1"] = Field(default="regbot/ledger-diff@1", alias="schema")
    software_changes: dict[str, tuple[Text, Text]] = Field(
        default_factory=dict, description="packages with different versions: the versions in base and head"
    )


class PrimaryTest(Record):
    """One primary test: the median or the mean step time of runs, compared over pairs.

    Positive percentages mean that head is slower.
    """

    summary: Literal["median", "mean"]
    decision: Decision
    estimate_pct: float
    low_pct: float
    high_pct: float
    sd_pct: Annotated[float, Field(ge=0)] = Field(
        description="100 times the standard deviation of one pair's log-ratio"
    )
    log_ratios: list[float] = Field(
        description="log(head / base) of the pairs that the decision used, in session order"
    )
    trimmed: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="number of pairs that the interval leaves out at each end, because some runs were far slower",
    )


class SlowLaunch(Record):
    """A launch that was far slower than the other launches of its session."""

    pair: Annotated[int, Field(ge=1)] = Field(description="number of the pair with the launch, in session order")
    arm: Literal["base", "head"]
    slower_pct: float = Field(
        description="how much slower the launch was, in percent; computed from the distance between the log-ratio of "
        "its pair and the median log-ratio of all pairs"
    )


class SecondaryTest(Record):
    """Test of a secondary metric. It helps to explain a decision of the primary tests, and decides nothing."""

    metric: Text = Field(description="name of the metric, such as 'peak memory'")
    estimate_pct: float = Field(description="mean change from base to head; positive means that head's value is larger")
    p_adjusted: float = Field(
        description="p value of a paired t test, adjusted over these metrics by Benjamini and Yekutieli"
    )
    significant: bool


class Cost(Record):
    """Cost of the timed runs."""

    runs: Annotated[int, Field(ge=0)]
    minutes: Annotated[float, Field(ge=0)]


StepSeconds = Annotated[float, Field(ge=0)]
RunRole = Literal["warm-up", "stored", "pair", "unused", "void"]
"""Role of a timed run. warm-up: a discarded launch. stored: a run of head alone that is compared with stored sessions.
pair: a run of a pair that the decision used. unused: a run of a valid pair that the
decision did not use. void: a run that does not count."""


class RankTimes(Record):
    """Times of one rank per step, as medians over the steady steps of a run, or over the runs of an arm. A time is null
    if it is unknown."""

    rank: Text
    step_s: StepSeconds | None
    cpu_s: StepSeconds | None = Field(description="CPU seconds of the process, all its threads")
    wait_s: StepSeconds | None = Field(description="seconds in collectives")
    peak_bytes: Bytes = Field(description="0 if unknown")


class RankComparison(Record):
    """Times of one rank in both arms. The times of an arm that lacks the rank are null."""

    rank: Text
    base: RankTimes | None
    head: RankTimes | None


class RunVerdict(Record):
    """Role of one timed run, and its times. All times leave out the steps before ``cut``.

    The two runs of a valid pair have the same cut. Their times are those with which they were compared.
    """

    number: Annotated[int, Field(ge=1)] = Field(
        description="position among the timed runs of this workload, in session order"
    )
    arm: Literal["base", "head"]
    role: RunRole
    pair: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="number of its valid pair, in session order; null if it is in no valid pair"
    )
    reason: Message = Field(default="", description="why the run was left out; '' if it counts")
    cut: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="number of leading steps that are left out; null where no steady step is left"
    )
    median_s: StepSeconds | None = Field(default=None, description="median step time of the slowest rank")
    mean_s: StepSeconds | None = Field(default=None, description="mean step time of the slowest rank")
    low_quartile_s: StepSeconds | None = Field(
        default=None,
        description="lower quartile of the slowest rank's step times; null with fewer than two steady steps",
    )
    high_quartile_s: StepSeconds | None = Field(default=None, description="upper quartile of the same step times")
    peak_bytes: Bytes = Field(default=0, description="peak memory of the rank that used most; 0 if unknown")
    wall_s: Annotated[float, Field(ge=0)] | None = Field(default=None, description="seconds of the whole launch")
    ranks: list[RankTimes] = Field(default_factory=list)


class Throughput(Record):
    """Section of the verdict: did throughput change?"""

    status: Status
    reasons: list[Message]
    decision: Decision | None = Field(default=None, description="null if the times must not decide")
    by: Literal["pairs", "look0", "stored", "identity", "runs"] | None = Field(
        default=None,
        description="what decided. pairs: pairs of runs. look0: the pairs of the first block, with the noise of the "
        "node class. stored: stored sessions, without pairs. identity: the proof that both arms run the same program. "
        "runs: unpaired runs from files.",
    )
    estimate_pct: float | None = Field(
        default=None, description="change of the median step time; positive means that head is slower"
    )
    low_pct: float | None = Field(default=None, description="low end of the interval of estimate_pct")
    high_pct: float | None = Field(default=None, description="high end of the interval of estimate_pct")
    bound_pct: float | None = Field(
        default=None, description="largest slowdown that a PASS does not exclude, by the median and the mean step time"
    )
    pairs: Annotated[int, Field(ge=0)] = Field(default=0, description="number of valid pairs that the decision used")
    void_pairs: Annotated[int, Field(ge=0)] = 0
    unused_pairs: Annotated[int, Field(ge=0)] = Field(
        default=0, description="number of later valid pairs, which the decision did not use"
    )
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
        default=False,
        description="whether head does not pass, although its interval would, because it has more slow launches than "
        "base",
    )
    assumed_luck_pct: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="luck of an arm by which the interval is widened because no calibration has measured it; else 0",
    )
    decision_without_luck: Decision | None = Field(
        default=None,
        description="what these undecided pairs would decide without the assumed luck; None if they would stay "
        "undecided, or if no luck is assumed",
    )
    sessions: Annotated[int, Field(ge=0)] = Field(default=0, description="number of stored sessions in the comparison")
    calibrated: CalibrationSummary | None = Field(
        default=None, description="calibration of the gate on this node class"
    )
    class_noise: PairNoise | None = Field(
        default=None, description="noise of stored pairs that look 0 used; null without a look 0"
    )
    base_warmup_steps: float | None = Field(
        default=None, description="number of warm-up steps of base, as the median over runs; None if not measured"
    )
    head_warmup_steps: float | None = Field(default=None, description="the same for head")
    base_step_s: float | None = Field(
        default=None, description="step time of base: the median over runs of the run's median step time"
    )
    head_step_s: float | None = Field(default=None, description="the same for head")
    wall: Message = Field(
        default="", description="sentence on the part of the step that explains the change; '' if it is unknown"
    )
    wall_kind: WallKind | None = Field(default=None, description="the part of the step that explains the change")
    fallback: bool = Field(
        default=False, description="whether the times are of another dispatcher than the requested one"
    )
    node: Text = Field(default="", description="node class of the timed runs")
    variant: Text = Field(default="", description="variant of the shape that was timed")
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
    estimate_pct: float = Field(description="difference from the mean of the stored sessions, in percent")
    low_pct: float
    high_pct: float
    p_value: Annotated[float, Field(ge=0, le=1)] = Field(
        description="two-sided; below alpha if the interval does not contain 0"
    )


class StoredTimes(Record):
    """Step times of this session, compared with the last stored sessions of main. If the session has pairs, the pairs
    decide, and this comparison is only shown beside the verdict."""

    reason: Message = Field(default="", description="why no session can be compared; '' if there are tests")
    sessions: Annotated[int, Field(ge=0)] = Field(default=0, description="number of stored sessions")
    newest: Text = Field(default="", description="when the newest stored session was measured, UTC")
    age_days: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="age of the newest stored session when this session began; null if unknown"
    )
    runs: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="number of runs whose step times are averaged, for each arm and for each stored session",
    )
    alpha: float | None = Field(default=None, description="two-sided error of one prediction interval")
    tests: list[StoredTest] = Field(default_factory=list)
    base_drifted: bool = Field(
        default=False,
        description="whether base's step time is outside of the range that the stored sessions predict, and enough "
        "sessions are stored for a warning",
    )


class StoredCollectives(Record):
    """Head's collectives, compared with the stored ledger of main. The comparison decides nothing."""

    commit: Text = Field(description="commit of the stored ledger")
    age_days: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="age of the stored ledger when this session began; null if unknown"
    )
    patterns: list[Text] = Field(
        default_factory=list, description="names of the patterns that differ; [] if nothing differs"
    )
    reason: Message = Field(default="", description="why the ledgers cannot be compared; '' if they were compared")


class StoredComparison(Record):
    """One workload of this session, compared with the stored baseline of its node class and environment."""

    times: StoredTimes | None = None
    collectives: StoredCollectives | None = None


class Validity(Record):
    """Section of the verdict: is the answer valid?"""

    status: Status
    reasons: list[Message]


class WorkloadVerdict(Record):
    """Verdict on one entry: one workload on one mesh."""

    name: Text = Field(description="name of the entry, such as 'mixtral-8x7b@1/ep'")
    sharding: Sharding | None = Field(description="null if no collectives were compared")
    throughput: Throughput | None = Field(description="null if the entry was not planned to be timed")
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
    """Return the overall status of a verdict. It is the first status in this list that a section of any workload has:

    1. FAIL of sharding or validity
    2. INVALID
    3. FAIL of throughput
    4. REVIEW
    5. INCONCLUSIVE
    6. PASS

    A verdict with a workload that was not measured is INVALID, so a check that measured nothing never passes. A
    workload that the change does not concern (``unconcerned``) need not be measured. Its validity counts, which is PASS
    only with a proof.
    """
    entries = list(workloads)
    sharding = {entry.sharding.status for entry in entries if entry.sharding}
    validity = {entry.validity.status for entry in entries}
    throughput = {entry.throughput.status for entry in entries if entry.throughput}
    statuses = sharding | validity | throughput
    entries_to_measure = [entry for entry in entries if not entry.unconcerned]
    has_unmeasured = any(entry.sharding is None and entry.throughput is None for entry in entries_to_measure)
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
