"""Earlier sessions on the same trees: who times them again adds pairs to them, instead of a new chance to pass.

They are kept in the cache, one file for each pair of trees, configuration, node class and environment: pairs, and the
runs of a screen, so that neither can be tried until it is green. A cache can be deleted, and code that runs as the same
user can reach it: against that helps what the engine isolates, and not this module.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from regbot.baselines.intake import environment_of
from regbot.judge.clocks import contradicted
from regbot.judge.pairs import pair_up
from regbot.judge.screen import whole_screen
from regbot.records.files import RecordError, write_text
from regbot.records.run import Run
from regbot.records.session import SessionHeader, TimedPlan, read_session

FOLDER = "timed"


def kept_file(cache: Path, header: SessionHeader, plan: TimedPlan, traced: Sequence[Run], kind: Sequence[str]) -> Path:
    """Where the sessions on these trees are kept. ``traced``: the static runs of the workload, which tell its
    environment; a command has none. ``kind``: of the nodes."""
    key = {
        "workload": plan.entry,
        "terms": [plan.variant, plan.world_size, plan.steps, plan.cut, plan.dispatcher],
        "trees": [header.base.tree, header.head.tree],
        "overrides": [sorted(arm.overrides.items()) for arm in (header.base, header.head)],
        "node": list(kind),
        "environments": sorted({environment_of(run).model_dump_json() for run in traced if run.outcome == "ok"}),
    }
    return cache / FOLDER / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()}.jsonl"


def earlier_runs(file: Path) -> list[Run]:
    """The runs of earlier sessions that count, each with the session that it is of; [] where there are none.

    A file that cannot be read is as good as none, and so is one whose times contradict the clocks beside them: it is a
    cache, and whoever could write it could have removed it.
    """
    try:
        session = read_session(file)
    except (RecordError, OSError):
        return []
    if contradicted(session.runs):
        return []
    digest = identity(session.header)
    return [run.model_copy(update={"joined": run.joined or digest}) for run in session.runs]


def keep(file: Path, header: SessionHeader, runs: Sequence[Run]) -> None:
    """Keep what counts of a workload's timed runs, those taken over from earlier sessions among them. Raises OSError.

    Pairs and whole screens: a failure is of one day, and is not held against the trees for ever.
    """
    counted = {id(run) for pair in pair_up(runs).valid for run in (pair.base, pair.head)}
    kept = [*whole_screen(runs), *(run for run in runs if id(run) in counted)]
    if not kept:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, "".join(each.to_line() for each in (header, *kept)))


def identity(header: SessionHeader) -> str:
    """The same for one session however far it has gone."""
    return hashlib.sha256(header.to_line().encode()).hexdigest()
