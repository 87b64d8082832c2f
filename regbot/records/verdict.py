"""The verdict: per workload did the sharding change, did throughput change, can the answer be trusted."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from regbot.records.base import Record
from regbot.records.calibrated import Calibrated
from regbot.records.ledger import Kind, Message, Scalar, Text
from regbot.records.run import Arm

Status = Literal["PASS", "FAIL", "INCONCLUSIVE", "INVALID", "REVIEW"]

Decision = Literal["regressed", "improved", "no_change", "within_bound", "undecided"]

EXIT_CODES: dict[Status, int] = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3, "INVALID": 4, "REVIEW": 5}
USAGE_ERROR = 2
GRAVITY: tuple[Status, ...] = ("FAIL", "INVALID", "REVIEW", "INCONCLUSIVE", "PASS")
"""Of sections side by side, the gravest first. A whole verdict is not told by it alone: see ``overall``."""


class Volume(Record):
    """Count and bytes of one kind in one step."""

    count: int
    bytes: int


class Finding(Record):
    """One thing that changed, with the name of its pattern and what that means."""

    pattern: Text
    status: Status
    axis: Text
    base: dict[Kind, Volume]
    head: dict[Kind, Volume]
    text: Message
    modules: list[Text] = Field(default_factory=list, description="where, layer numbers as '*', at most a few")
    accepted: Message | None = Field(default=None, description="the reason somebody declared with --expect")


class Wire(Record):
    """Modelled wire time of one step. A model that ranks, never a measurement."""

    base_s: float
    head_s: float


class Roles(Record):
    """Counts of one kind."""

    payload: int
    control: int


class Sharding(Record):
    """Did the sharding change?"""

    status: Status
    reasons: list[Message]
    findings: list[Finding] = Field(default_factory=list)
    base: dict[Kind, Roles] = Field(default_factory=dict)
    head: dict[Kind, Roles] = Field(default_factory=dict)
    source: Text
    variant: Text = Field(default="", description="of the shape that was traced; '' where the ledger knows of none")
    identical_program: bool = False
    wire: Wire | None = None
    config_changes: dict[str, tuple[Scalar, Scalar]] = Field(default_factory=dict)


class LedgerDiff(Sharding):
    """What ``ledger diff`` prints: two ledgers compared, without a check around them."""

    schema_id: Literal["regbot/ledger-diff@1"] = Field(default="regbot/ledger-diff@1", alias="schema")


class PrimaryTest(Record):
    """One primary test: one summary of a run, compared over pairs. Positive percentages mean that head is slower."""

    summary: Literal["median", "mean"]
    decision: Decision
    estimate_pct: float
    low_pct: float
    high_pct: float
    sd_pct: Annotated[float, Field(ge=0)] = Field(description="of the log-ratio of one pair, in percent of a log unit")
    log_ratios: list[float] = Field(description="log(head / base) of the pairs used, in session order")


class SecondaryTest(Record):
    """What else differs where a primary test has decided: it explains, and decides nothing."""

    metric: Text
    estimate_pct: float
    p_adjusted: float = Field(description="of a paired t test, after Benjamini and Yekutieli over these metrics")
    significant: bool


class Cost(Record):
    """What the timed runs took."""

    runs: Annotated[int, Field(ge=0)]
    minutes: Annotated[float, Field(ge=0)]


class Throughput(Record):
    """Did throughput change? ``decision`` is null where times are shown and may decide nothing."""

    status: Status
    reasons: list[Message]
    decision: Decision | None = None
    by: Literal["pairs", "screen", "stored", "identity", "runs"] | None = Field(
        default=None, description="runs: of files that are no pairs"
    )
    estimate_pct: float | None = Field(default=None, description="the median's; positive means that head is slower")
    low_pct: float | None = None
    high_pct: float | None = None
    bound_pct: float | None = Field(default=None, description="the largest slowdown that a PASS does not exclude")
    pairs: Annotated[int, Field(ge=0)] = Field(default=0, description="valid pairs that the decision used")
    void_pairs: Annotated[int, Field(ge=0)] = 0
    unused_pairs: Annotated[int, Field(ge=0)] = 0
    alpha: float | None = Field(default=None, description="two-sided error of one interval at one look")
    mde_pct: float | None = Field(
        default=None, description="smallest true slowdown that these pairs would show with probability 0.8"
    )
    mde_full_pct: float | None = Field(default=None, description="the same with all the pairs of a full session")
    tests: list[PrimaryTest] = Field(default_factory=list)
    secondary: list[SecondaryTest] = Field(default_factory=list)
    sessions: Annotated[int, Field(ge=0)] = Field(default=0, description="stored sessions that it was held against")
    calibrated: Calibrated | None = Field(default=None, description="what placebo sessions show of this gate here")
    base_warmup_steps: float | None = Field(default=None, description="median over runs; None where not measured")
    head_warmup_steps: float | None = None
    base_step_s: float | None = Field(default=None, description="median over runs of the run's median step time")
    head_step_s: float | None = None
    wall: Message = Field(default="", description="what a change is made of: memory, communication, compute or host")
    fallback: bool = Field(default=False, description="times of another dispatcher than the one asked for")
    node: Text = ""
    variant: Text = ""
    cost: Cost | None = None


class Validity(Record):
    """Can the answer be trusted?"""

    status: Status
    reasons: list[Message]


class WorkloadVerdict(Record):
    """The verdict on one workload entry."""

    name: Text
    sharding: Sharding | None
    throughput: Throughput | None
    validity: Validity


class Verdict(Record):
    """The answer to one check."""

    schema_id: Literal["regbot/verdict@1"] = Field(default="regbot/verdict@1", alias="schema")
    verdict: Status
    base: Arm
    head: Arm
    workloads: list[WorkloadVerdict]
    warnings: list[Message] = Field(default_factory=list)


def gravest(statuses: Iterable[Status]) -> Status:
    """The gravest of sections side by side. Raises ValueError where there is none."""
    return min(statuses, key=GRAVITY.index)


def overall(workloads: Iterable[WorkloadVerdict]) -> Status:
    """FAIL of sharding or of correctness, then INVALID, FAIL of throughput, REVIEW, INCONCLUSIVE, PASS.

    A verdict on nothing is INVALID: a gate that measured nothing is never green.
    """
    entries = list(workloads)
    sharding = {entry.sharding.status for entry in entries if entry.sharding}
    validity = {entry.validity.status for entry in entries}
    throughput = {entry.throughput.status for entry in entries if entry.throughput}
    everything = sharding | validity | throughput
    unmeasured = any(entry.sharding is None and entry.throughput is None for entry in entries)
    if "FAIL" in sharding | validity:
        return "FAIL"
    if not entries or unmeasured or "INVALID" in everything:
        return "INVALID"
    if "FAIL" in throughput:
        return "FAIL"
    for status in ("REVIEW", "INCONCLUSIVE"):
        if status in everything:
            return status
    return "PASS"
