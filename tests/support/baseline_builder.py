"""Builders of stored sessions, as files and as records, and of a matching reference query."""

from pathlib import PurePosixPath

from regbot.baselines.intake import DistilledSession, distil
from regbot.baselines.names import session_path
from regbot.baselines.query import RollingReference, read_workload, select_rolling_reference
from regbot.baselines.store import Store, record_digest
from regbot.judge import judge
from regbot.records.baseline import Baseline
from regbot.records.calibration import Calibration, CalibrationSession
from regbot.records.config import Config
from regbot.records.session import Session
from support.baseline_cases import NOW, block_runs, header_of, make_intake
from support.ledger_builder import WORKLOAD
from support.timed_builder import PLAN, statics

CPU = "cpu"


def session_of(number: int = 0, **changes: object) -> Session:
    return Session(header=header_of(number, **changes), runs=[*statics(), *block_runs(number)])


def distilled(session: Session) -> DistilledSession:
    """Return the content that ``regbot baseline add`` stores of ``session``."""
    return distil(session, judge(session, Config()), make_intake(), NOW)


def timed_baseline(number: int = 0, **changes: object) -> Baseline:
    """Return a stored session whose level matches its runs, also after changes."""
    (stored_session,) = (baseline for baseline in distilled(session_of(number)).baselines if baseline.tier == "timed")
    return stored_session.model_copy(update={"step_s": None, **changes})


BASELINE = timed_baseline()


def put(store: Store, *baselines: Baseline) -> list[PurePosixPath]:
    """Write session files like ``add``, but without syncs."""
    paths = []
    for baseline in baselines:
        path = session_path(baseline, record_digest(baseline))
        (store.root / path).parent.mkdir(parents=True, exist_ok=True)
        (store.root / path).write_text(baseline.to_json())
        paths.append(path)
    return paths


def placebo(number: int, injected_pct: float, *log_ratios: float) -> CalibrationSession:
    both = {"median": [*log_ratios], "mean": [2 * value for value in log_ratios]}
    return CalibrationSession(
        session=f"{number:064x}", injected_pct=injected_pct, decision="undecided", pairs=len(log_ratios), covered=None,
        log_ratios=both,
    )  # fmt: skip


def calibration(like: Baseline, *sessions: CalibrationSession, steps: int = PLAN.steps) -> Calibration:
    return Calibration(
        measured="2026-01-02T00:00:00Z", session="d" * 64, workload=like.workload, variant=like.variant,
        shape_version=like.shape_version, node_class=like.node_class, world_size=PLAN.world_size, steps=steps,
        cut=PLAN.cut, clock="perf_counter", dispatcher=PLAN.dispatcher, environment=like.environment,
        provenance=like.provenance,
        sessions=[*sessions],
    )  # fmt: skip


def load_rolling_reference(store: Store) -> RollingReference:
    """Return the sessions that are comparable with a run like the stored ones."""
    stored = read_workload(store, WORKLOAD, CPU)
    return select_rolling_reference(stored, PLAN, BASELINE.environment, "perf_counter", NOW)
