"""Stored sessions made of a few numbers, as files and as records, and the question of a run like them."""

from pathlib import PurePosixPath
from typing import Any

from baseline_cases import NOW, asked, block_runs, header_of
from ledger_builder import WORKLOAD
from regbot.baselines.intake import distil
from regbot.baselines.names import session_path
from regbot.baselines.query import Asked
from regbot.baselines.store import Store, digest_of
from regbot.records.baseline import Baseline
from regbot.records.session import Session
from timed_builder import statics

CPU = "cpu"


def session_of(number: int = 0, **changes: object) -> Session:
    return Session(header=header_of(number, **changes), runs=[*statics(), *block_runs(number)])


def timed_baseline(number: int = 0, **changes: object) -> Baseline:
    (found,) = (each for each in distil(session_of(number), asked(), NOW).baselines if each.tier == "timed")
    return found.model_copy(update=changes)


BASELINE = timed_baseline()


def question(**changes: Any) -> Asked:
    """What a run like those that are stored asks."""
    usual: dict[str, Any] = {
        "workload": WORKLOAD,
        "variant": CPU,
        "node_class": BASELINE.node_class,
        "environment": BASELINE.environment,
        "world_size": 2,
        "steps": 8,
        "cut": 2,
        "clock": "perf_counter",
    }
    return Asked(**(usual | changes))


def put(store: Store, *baselines: Baseline) -> list[PurePosixPath]:
    """Files as ``add`` leaves them, without its cost."""
    paths = []
    for baseline in baselines:
        path = session_path(baseline, digest_of(baseline))
        (store.root / path).parent.mkdir(parents=True, exist_ok=True)
        (store.root / path).write_text(baseline.to_json())
        paths.append(path)
    return paths
