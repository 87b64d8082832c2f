"""Records of the verdict: sharding, throughput, and validity of each workload."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from regbot.records.base import Record
from regbot.records.calibration_summary import CalibrationSummary, PairNoise
from regbot.records.ledger import Count, Kind, Message, Scalar, Text
from regbot.records.run import Arm, Bytes, Tier

Status = Literal["PASS", "FAIL", "INCONCLUSIVE", "INVALID", "REVIEW"]

WallKind = Literal["communication", "compute or host", "not one wall"]
Decision = Literal["regressed", "improved", "no_change", "within_bound", "undecided"]

EXIT_CODES: dict[Status, int] = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3, "INVALID": 4, "REVIEW": 5}
GRAVITY: tuple[Status, ...] = ("FAIL", "INVALID", "REVIEW", "INCONCLUSIVE", "PASS")
"""Statuses of sections, the gravest first. The overall status follows other rules (``compute_overall_status``)."""


MAX_FINDING_LINES = 10


class Volume(Record):
    """Number and bytes of the collectives of one kind in one step."""

    count: int
    bytes: int


class FindingLine(Record):
    """A source line that issued what changed."""

    path: Text = Field(description="relative to the checkout")
    line: PositiveInt
    function: Text = Field("", description="function around the line; '' if unknown")
    in_diff: bool = Field(False, description="whether the diff between the arms changes the line")


class FindingLines(Record):
    """Source lines of a finding in each arm: first those in the diff, at most ``MAX_FINDING_LINES`` each."""

    base: list[FindingLine] = Field([], description="of what went")
    head: list[FindingLine] = Field([], description="of what came")


class Amounts(Record):
    """What one step of both arms computes, holds, launches or waits for."""

    unit: Literal["flops", "bytes", "launches", "waits"]
    base: Count
    head: Count


class Finding(Record):
    """One change between the ledgers of base and head, or between their Programs."""

    pattern: Text = Field(description="name of the kind of change, such as 'host reads removed'")
    status: Status
    axis: Text = Field(
        description="mesh axis of the changed collectives; several are separated by ' -> ' or ', '. With amounts, "
        "the wall: compute, memory or host"
    )
    base: dict[Kind, Volume] = Field(description="the changed collectives in base")
    head: dict[Kind, Volume] = Field(description="the changed collectives in head")
    text: Message = Field(description="what changed and what it means")
    amounts: Amounts | None = Field(None, description="what changed in the Program; null if collectives changed")
    modules: list[Text] = Field([], description="the first modules whose collectives changed, '*' for layer numbers")
    lines: FindingLines = Field(FindingLines(), description="source lines of the change, as far as they are known")
    accepted: Message | None = Field(None, description="reason of the --expect rule that accepts the finding")


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
    findings: list[Finding] = Field([])
    base: dict[Kind, RoleCounts] = Field({}, description="number of base's collectives by kind")
    head: dict[Kind, RoleCounts] = Field({}, description="number of head's collectives by kind")
    source: Text = Field(description="how the collectives were counted, and over how many ranks and steps")
    tier: Tier = Field("static", description="runs whose ledgers were compared: traces, or profiled timed runs")
    variant: Text = Field("", description="variant of the traced shape; '' where the ledger names none")
    identical_program: bool = Field(False, description="no findings, and both device programs are identical")
    wire: WireTime | None = None
    config_changes: dict[str, tuple[Scalar, Scalar]] = Field({}, description="key -> values in base and head")


class ProgramTotals(Record):
    """Totals of the Program of one step."""

    flops: Count
    recomputed_flops: Count
    bytes_moved: Count
    launches: Count
    host_waits: Count
    peak_bytes: Count
    without_formula: Count = Field(0, description="number of operators whose FLOPs are unknown and not in ``flops``")


class ProgramSection(Record):
    """Section of the verdict: did what a step computes, holds, launches and waits for change?"""

    status: Status
    reasons: list[Message]
    findings: list[Finding] = Field([])
    base: ProgramTotals | None = Field(None, description="null if the trace did not observe it")
    head: ProgramTotals | None = Field(None, description="null if the trace did not observe it")
    device_bytes: Count | None = Field(None, description="memory that the peak must fit; null if there is no GPU")


class LedgerDiff(Sharding):
    """Output of ``ledger diff``: a comparison of two ledgers without a check."""

    schema_id: Literal["regbot/ledger-diff@1"] = Field("regbot/ledger-diff@1", alias="schema")
    program: ProgramSection | None = None
    software_changes: dict[str, tuple[Text, Text]] = Field({}, description="package -> versions in base and head")


class PrimaryTest(Record):
    """The median or the mean step time of runs, compared over pairs. Positive: head is slower."""

    summary: Literal["median", "mean"]
    decision: Decision
    estimate_pct: float
    low_pct: float
    high_pct: float
    sd_pct: NonNegativeFloat = Field(description="100 times the standard deviation of one pair's log-ratio")
    log_ratios: list[float] = Field(description="log(head / base) of the pairs that decided, in session order")


class SlowLaunch(Record):
    """A launch that was far slower than the other launches of its session."""

    pair: PositiveInt = Field(description="number of the pair with the launch, in session order")
    arm: Literal["base", "head"]
    slower_pct: float = Field(description="of its pair's log-ratio against the median of all pairs")


class Cost(Record):
    """Cost of the timed runs."""

    runs: Annotated[int, Field(ge=0)]
    minutes: Annotated[float, Field(ge=0)]


StepSeconds = Annotated[float, Field(ge=0)]
RunRole = Literal["warm-up", "stored", "pair", "unused", "void"]
"""warm-up: a discarded launch. stored: a run of head alone, for gate = "stored". pair: of a pair that decided. unused:
of a valid pair that did not. void: it does not count."""


class RankTimes(Record):
    """Medians over the steady steps of a run, or over the runs of an arm; null if unknown."""

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
    """Role of one timed run, and its times after ``cut``. The two runs of a valid pair have the same cut."""

    number: PositiveInt = Field(description="position among the timed runs of this workload, in session order")
    arm: Literal["base", "head"]
    role: RunRole
    pair: PositiveInt | None = Field(None, description="number of its valid pair, in session order")
    reason: Message = Field("", description="why the run was left out; '' if it counts")
    cut: NonNegativeInt | None = Field(None, description="leading steps left out; null where no step is steady")
    median_s: StepSeconds | None = Field(None, description="median step time of the slowest rank")
    mean_s: StepSeconds | None = Field(None, description="mean step time of the slowest rank")
    low_quartile_s: StepSeconds | None = Field(None, description="of the same step times; null with fewer than two")
    high_quartile_s: StepSeconds | None = Field(None, description="upper quartile of the same step times")
    peak_bytes: Bytes = Field(0, description="peak memory of the rank that used most; 0 if unknown")
    wall_s: NonNegativeFloat | None = Field(None, description="seconds of the whole launch")
    ranks: list[RankTimes] = Field([])


class Throughput(Record):
    """Section of the verdict: did throughput change?"""

    status: Status
    reasons: list[Message]
    decision: Decision | None = Field(None, description="null if the times must not decide")
    by: Literal["pairs", "stored", "identity", "runs"] | None = Field(
        None,
        description="what decided. pairs: pairs of runs. stored: stored sessions, without pairs. identity: the proof "
        "that both arms run the same program. runs: unpaired runs from files.",
    )
    estimate_pct: float | None = Field(None, description="change of the median step time; positive: head is slower")
    low_pct: float | None = Field(None, description="low end of the interval of estimate_pct")
    high_pct: float | None = Field(None, description="high end of the interval of estimate_pct")
    bound_pct: float | None = Field(None, description="largest slowdown that a PASS does not exclude")
    pairs: NonNegativeInt = Field(0, description="number of valid pairs that the decision used")
    void_pairs: NonNegativeInt = 0
    unused_pairs: NonNegativeInt = Field(0, description="number of later valid pairs, which the decision did not use")
    alpha: float | None = Field(None, description="two-sided error of one interval at one look")
    mde_pct: float | None = Field(None, description="smallest true slowdown that these pairs detect with power 0.8")
    mde_full_pct: float | None = Field(None, description="the same for a full session")
    tests: list[PrimaryTest] = Field([])
    slow_launches: list[SlowLaunch] = Field([])
    pass_withheld: bool = Field(False, description="no pass, because head has more slow launches than base")
    assumed_luck_pct: NonNegativeFloat = Field(0.0, description="luck that widens the interval before a calibration")
    decision_without_luck: Decision | None = Field(None, description="what undecided pairs would decide without it")
    sessions: NonNegativeInt = Field(0, description="number of stored sessions in the comparison")
    calibrated: CalibrationSummary | None = Field(None, description="calibration of the gate on this node class")
    class_noise: PairNoise | None = Field(None, description="noise of stored pairs that the intervals count")
    base_step_s: float | None = Field(None, description="median over runs of the run's median step time")
    head_step_s: float | None = Field(None, description="the same for head")
    wall: Message = Field("", description="sentence on the part of the step that explains the change; '' if unknown")
    wall_kind: WallKind | None = Field(None, description="the part of the step that explains the change")
    fallback: bool = Field(False, description="whether the times are of another dispatcher than the requested one")
    node: Text = Field("", description="node class of the timed runs")
    variant: Text = Field("", description="variant of the shape that was timed")
    expert_flops_share: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description="of the model FLOPs")
    cost: Cost | None = None
    runs: list[RunVerdict] = Field([], description="every timed run, in session order")
    ranks: list[RankComparison] = Field([], description="medians over the runs of each arm that decided")


class StoredTest(Record):
    """One arm of this session compared with the stored sessions. Positive percentages mean that the arm is slower."""

    arm: Literal["base", "head"]
    summary: Literal["median", "mean"]
    estimate_pct: float = Field(description="difference from the mean of the stored sessions, in percent")
    low_pct: float
    high_pct: float
    p_value: Annotated[float, Field(ge=0, le=1)] = Field(description="below alpha if the interval excludes 0")


class StoredTimes(Record):
    """This session beside the last stored sessions of main. If the session has pairs, the pairs decide."""

    reason: Message = Field("", description="why no session can be compared; '' if there are tests")
    sessions: NonNegativeInt = Field(0, description="number of stored sessions")
    newest: Text = Field("", description="when the newest stored session was measured, UTC")
    age_days: NonNegativeFloat | None = Field(None, description="of the newest stored session when this session began")
    runs: NonNegativeInt = Field(0, description="runs that are averaged, for each arm and each stored session")
    alpha: float | None = Field(None, description="two-sided error of one prediction interval")
    tests: list[StoredTest] = Field([])


class StoredCollectives(Record):
    """Head's collectives, compared with the stored ledger of main. The comparison decides nothing."""

    commit: Text = Field(description="commit of the stored ledger")
    age_days: NonNegativeFloat | None = Field(None, description="of the stored ledger when this session began")
    patterns: list[Text] = Field([], description="names of the patterns that differ; [] if nothing differs")
    reason: Message = Field("", description="why the ledgers cannot be compared; '' if they were compared")


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
    program: ProgramSection | None = Field(None, description="null if no trace observed what its step does")
    throughput: Throughput | None = Field(description="null if the entry was not planned to be timed")
    validity: Validity
    stored: StoredComparison | None = Field(None, description="the stored baseline beside the verdict")
    unconcerned: bool = Field(False, description="the workload was not run, because no changed file matches its paths")

    @property
    def findings(self) -> list[Finding]:
        return [finding for section in (self.sharding, self.program) if section for finding in section.findings]


class Verdict(Record):
    """Result of one check."""

    schema_id: Literal["regbot/verdict@1"] = Field("regbot/verdict@1", alias="schema")
    verdict: Status
    base: Arm
    head: Arm
    workloads: list[WorkloadVerdict]
    warnings: list[Message] = Field([])


def select_gravest_status(statuses: Iterable[Status]) -> Status:
    """Return the gravest status of several sections. Raises ValueError if ``statuses`` is empty."""
    return min(statuses, key=GRAVITY.index)


def compute_overall_status(workloads: Iterable[WorkloadVerdict]) -> Status:
    """Return the overall status of a verdict. It is the first status in this list that a section of any workload has:

    1. FAIL of sharding, program or validity
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
    traced = {section.status for entry in entries for section in (entry.sharding, entry.program) if section}
    validity = {entry.validity.status for entry in entries}
    throughput = {entry.throughput.status for entry in entries if entry.throughput}
    statuses = traced | validity | throughput
    entries_to_measure = [entry for entry in entries if not entry.unconcerned]
    has_unmeasured = any(entry.sharding is None and entry.throughput is None for entry in entries_to_measure)
    if "FAIL" in traced | validity:
        return "FAIL"
    if not entries or has_unmeasured or "INVALID" in statuses:
        return "INVALID"
    if "FAIL" in throughput:
        return "FAIL"
    for status in ("REVIEW", "INCONCLUSIVE"):
        if status in statuses:
            return status
    return "PASS"
