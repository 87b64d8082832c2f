"""Pool of earlier sessions of the same change. A new session adds pairs to the pool instead of starting a new test.

Without the pool, a check, commits that change only comments, or updates of the branch could be repeated until one
passes by chance. Pairs of the same change on another base measure the same effect, and count as they are. The pool
is in the cache folder of the repository, which code that runs as the same user can change: isolation is the engine's
job.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from regbot.baselines.intake import environment_of
from regbot.judge.clocks import find_contradicted_times
from regbot.judge.pairs import pair_up
from regbot.judge.stored_times import select_whole_comparison
from regbot.records.config import Workload
from regbot.records.files import RecordError, write_text
from regbot.records.run import Run
from regbot.records.session import SessionHeader, TimedPlan, read_session
from regbot.workloads.shapes.model_code import model_hash

FOLDER = "timed"


def pool_file(
    repository_cache: Path,
    header: SessionHeader,
    plan: TimedPlan,
    traced: Sequence[Run],
    node_kind: Sequence[str],
    workload: Workload | None = None,
) -> Path:
    """Return the pool file. Its name is a digest of everything that two sessions must have in common before their runs
    may be judged together.

    ``traced`` are the static runs of the workload, which show the environment. ``node_kind`` identifies the kind of
    node, and ``workload`` is the base's definition of what runs.
    """
    # "compiled": the trace was refused, because code of the step is compiled.
    runs_with_environment = [run for run in traced if run.outcome == "ok" or run.refusal == "compiled"]
    key = {
        "workload": [plan.entry, workload.model_dump(mode="json") if workload is not None else None],
        "terms": [plan.variant, plan.world_size, plan.steps, plan.cut, plan.dispatcher],
        # ``behaviour`` is a digest of all changes of head that may affect a run; None if it is unknown.
        "change": header.head.behaviour or [header.base.tree, header.head.tree],
        "overrides": [sorted(arm.overrides.items()) for arm in (header.base, header.head)],
        "node": list(node_kind),
        "head_only": header.throughput.gate == "stored",  # such a session has no pairs, and must not replace them
        "environments": sorted({environment_of(run).model_dump_json() for run in runs_with_environment}),
        # Hashes of regbot's own model code; '' for an adapter that runs another model.
        "models": sorted({model_hash(run.adapter) or "" for run in traced}),
    }
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    return repository_cache / FOLDER / f"{digest}.jsonl"


def load_pooled_runs(file: Path) -> list[Run]:
    """Return the pooled runs of earlier sessions, marked by the digest of their session; [] if there are none.

    An unreadable file, or one whose step times contradict its clocks, is ignored. That is safe, because anybody who can
    write the cache can also delete it.
    """
    try:
        session = read_session(file)
    except (RecordError, OSError):
        return []
    if find_contradicted_times(session.runs):
        return []
    digest = session_digest(session.header)
    return [run.model_copy(update={"joined": run.joined or digest}) for run in session.runs]


def save_pool(file: Path, header: SessionHeader, runs: Sequence[Run]) -> None:
    """Save the valid pairs and the complete runs of head alone among ``runs``, the timed runs of a workload. A failure
    on one day must not count against the trees forever. Raises OSError.
    """
    valid_pairs = pair_up(runs).valid
    paired_ids = {id(pair.base) for pair in valid_pairs} | {id(pair.head) for pair in valid_pairs}
    paired_runs = [run for run in runs if id(run) in paired_ids]  # in session order
    # ``select_whole_comparison`` returns the runs of head alone, if one attempt at them is complete.
    pooled = [*select_whole_comparison(runs), *paired_runs]
    if not pooled:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, "".join(record.to_line() for record in (header, *pooled)))


def session_digest(header: SessionHeader) -> str:
    """Return a digest of the session that stays the same while the session gets more runs."""
    return hashlib.sha256(header.to_line().encode()).hexdigest()
