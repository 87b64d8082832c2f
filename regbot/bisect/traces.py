"""Measuring a ledger: exact, without a GPU, and never twice for one tree, unless code beside it can change unseen."""

import hashlib
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit

from regbot import __version__
from regbot.bisect.measure import Ground, Prepared, arm_of, observed, unusable, why, without_arm
from regbot.bisect.noisy import Wanted
from regbot.config import LIBRARY_DISPATCHERS
from regbot.engines import Engine
from regbot.judge.backends import DISPATCHER, not_honoured
from regbot.judge.validity import distrust
from regbot.records.bisection import Observation, Point
from regbot.records.files import RecordError, read_record, write_record
from regbot.records.ledger import Ledger
from regbot.records.run import Run
from regbot.trees import Trees, plain_name
from regbot.workloads import Limits, Task, guest_folder, interpreter, trace


class Traces:
    """Static ledgers: exact, without a GPU, kept by what decides them, so that no tree is ever traced twice."""

    def __init__(
        self,
        tasks: Mapping[str, Task],
        ground: Ground,
        trees: Trees,
        engine: Engine,
        out: Path,
        cache: Path,
        limits: Limits,
        index_options: Sequence[str] = (),
    ) -> None:
        self._index_options = list(index_options)
        self._tasks, self._ground, self._trees, self._engine = tasks, ground, trees, engine
        self._out, self._cache, self._limits = out, cache, limits

    def stratum(self, slot: int) -> str:
        return f"slot {slot}"

    def measure(self, wanted: Wanted, slot: int) -> Observation:
        task, point = self._tasks[wanted.entry], wanted.point
        # Code that lies elsewhere and can be edited is named by no version: what was traced with it is not kept.
        fixed = not editable(task, self._ground.repo)
        kept = self._cache / "traces" / f"{self._key(task, point)}.json"
        cached = _kept_trace(kept) if fixed else None
        if cached is not None:
            return self._observed(wanted, cached, cached=True)
        ready = self._ground.prepare(point, task, self._trees)
        if isinstance(ready, str):
            return unusable(wanted, ready)
        used = replace(task, workload=task.workload.model_copy(update={"python": ready.python or task.workload.python}))
        scratch = self._out / "runs" / f"{plain_name(task.entry)}.{plain_name(point.key)}.{slot}"
        run = trace(used, arm_of(point), ready.path, self._engine, scratch, self._limits, environment=ready.environment)
        shutil.rmtree(scratch / "record", ignore_errors=True)
        if run.outcome == "ok" and fixed:
            write_record(kept, run)
        return self._observed(wanted, run, ready)

    def _observed(self, wanted: Wanted, run: Run, ready: Prepared | None = None, cached: bool = False) -> Observation:
        run = run.model_copy(update={"arm": arm_of(wanted.point)})  # of a cached one, whose tree is the same
        name = f"ledgers/{plain_name(run.workload)}.{plain_name(wanted.point.key)}.json"
        write_record(self._out / name, run)
        distrusted = [without_arm(each) for each in self._distrust(run)] if run.outcome == "ok" else []
        usable = run.outcome == "ok" and run.ledger is not None and not distrusted
        return observed(
            wanted,
            "",
            ready,
            usable=usable,
            reason="" if usable else "; ".join(distrusted)[:4000] or why(run),
            state=ledger_state(run.ledger) if usable and run.ledger is not None else "",
            cached=cached,
            wall_s=0.0 if cached else run.wall_s,
            record=name,
        )

    def _distrust(self, run: Run) -> Iterator[str]:
        """Why a check would not believe the trace."""
        yield from distrust(run, run.arm)
        asked = run.backends.get(DISPATCHER)
        if asked is not None and asked.requested in LIBRARY_DISPATCHERS:
            self._ground.note("the traces are of the dispatcher that stands in for the one asked for, which needs GPUs")
        else:
            yield from not_honoured(run)

    def _key(self, task: Task, point: Point) -> str:
        """Of everything that decides a trace: tree, workload, shape, interpreter, regbot itself."""
        parts = {
            "tree": point.tree,
            "version": [self._ground.package, point.version, self._index_options],
            "workload": task.workload.model_dump(mode="json"),
            "variant": repr(task.variant),
            "mesh": repr(task.parallelism),
            "shape": task.shape.id,
            "regbot": [__version__, _guest_digest()],
            "python": _software(task),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def ledger_state(ledger: Ledger) -> str:
    """The same for ledgers that nobody needs to tell apart: what is exchanged, not which module asks for it."""
    cells: Counter[tuple[str, ...]] = Counter()
    sizes: Counter[tuple[str, ...]] = Counter()
    for each in ledger.entries:
        cell = (each.kind, each.axis, str(each.group_size), each.dtype, each.phase, each.role, each.via)
        cells[cell] += each.count
        sizes[cell] += each.bytes
    unknown = sorted((each.name, each.count) for each in ledger.unclassified)
    text = json.dumps([sorted((*cell, cells[cell], sizes[cell]) for cell in cells), unknown, ledger.rank_digests])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _kept_trace(path: Path) -> Run | None:
    try:
        run = read_record(path, Run)
    except RecordError:
        return None
    return run if run.outcome == "ok" and run.ledger is not None else None


def _guest_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(guest_folder().rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def editable(task: Task, repo: Path) -> list[str]:
    """Folders of the packages that the interpreter of a task imports from where they are edited.

    Of regbot itself and of ``repo`` more is known: a digest, and the tree of the checkout that is imported instead.
    """
    python = interpreter(task, Path("/"))
    if python == sys.executable:
        places = [Path(place) for place in sys.path if place]
    else:
        found = shutil.which(python)
        places = list(Path(found).parent.parent.glob("lib*/python*/*-packages")) if found is not None else []
    folders = []
    for file in (file for place in places for file in place.glob("*.dist-info/direct_url.json")):
        try:
            said = json.loads(file.read_text("utf-8"))
            if not said.get("dir_info", {}).get("editable") or file.parent.name.startswith("regbot-"):
                continue
            folder = Path(unquote(urlsplit(said["url"]).path))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        if not folder.resolve().is_relative_to(repo.resolve()):
            folders.append(str(folder))
    return folders


def _software(task: Task) -> str:
    """What the interpreter of a task can import, as far as it can be told without running it."""
    python = interpreter(task, Path("/"))
    if python == sys.executable:
        return json.dumps(sorted(f"{each.metadata['Name']} {each.version}" for each in distributions()))
    found = shutil.which(python)
    if found is None:  # inside the checkout: its tree and build commands decide it
        return python
    home = Path(found).parent.parent
    return json.dumps(
        [found, *sorted(f"{path} {path.stat().st_mtime_ns}" for path in home.glob("lib*/python*/*-packages"))]
    )
