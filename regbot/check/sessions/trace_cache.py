"""Traces of earlier checks, so that a base is traced once for all pull requests on it.

A trace is a file in the cache folder of the repository. Its name is a digest of everything that decides what a trace
finds: the tree, the build, the configuration, regbot's own files, the variables of the environment, and the packages of
the interpreter. Only complete traces on the device that the workload wants are stored. A trace of a pull request's head
is stored for this head and this base alone, and never where the head is untrusted: its code could have written it.
"""

import hashlib
import json
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

import regbot
from regbot.check.sessions.recording import RunSetup
from regbot.engines.local import clean_environment
from regbot.records.files import RecordError, read_record, write_record
from regbot.records.run import Arm, Run
from regbot.workloads.guest import RawRecord, interpreter, request_document
from regbot.workloads.task import Task

FOLDER = "traces"
KEPT_TRACES = 500
"""Number of traces that the cache of a repository keeps, the latest used ones."""
MAX_SOURCES = 5000
"""Largest number of source files of editable packages. With more, no trace is stored."""
_VOLATILE = ("TMPDIR", "PWD", "OLDPWD", "SHLVL", "COLUMNS", "LINES", "TERM")


class TraceCache:
    def __init__(self, setup: RunSetup, *, untrusted: bool) -> None:
        self._setup, self._header = setup, setup.recorder.header
        self._folder = setup.trees.repository_cache / FOLDER
        self._is_trusted = not untrusted
        self._may_keep_base = (
            not untrusted or setup.engine.sandbox is not None
        )  # confined, head cannot change base's run
        self._own_digest = _digest_package()
        self._packages: dict[str, str] = {}  # by interpreter; '' if they cannot be identified

    def find(self, arm: Arm, task: Task) -> Run | None:
        """Return the trace of ``task`` at ``arm`` that an earlier check stored, or None."""
        file = self._file(arm, task)
        if file is None or not (self._is_trusted or arm.name == "base"):
            return None
        try:
            run = read_record(file, Run)
            file.touch()  # it is used, so ``_prune`` keeps it
        except (RecordError, OSError):
            return None
        return run.model_copy(update={"arm": arm}) if run.workload == task.entry else None

    def keep(self, arm: Arm, task: Task, run: Run) -> None:
        """Store a trace that has just been made, if a later check may use it."""
        device = "cuda" if task.wants_paper_gpu else "cpu"
        is_complete = (
            run.outcome == "ok" and run.ledger is not None and run.ledger.device == device and not run.warnings
        )
        may_keep = self._is_trusted or (arm.name == "base" and self._may_keep_base)
        file = self._file(arm, task) if is_complete and may_keep else None
        if file is not None:
            with suppress(OSError):  # a full disk costs only the entry
                file.parent.mkdir(parents=True, exist_ok=True)
                write_record(file, run)
                self._prune()

    def _file(self, arm: Arm, task: Task) -> Path | None:
        """Return the file of a trace, or None if its environment cannot be identified."""
        task = task.at(arm.overrides)
        nowhere = Path("/")
        python = interpreter(task, nowhere)
        if python not in self._packages:
            is_in_checkout = "/" in task.workload.python and not Path(task.workload.python).is_absolute()
            self._packages[python] = "" if is_in_checkout else _identify_packages(python)
        if not self._packages[python]:
            return None
        base, head = self._header.base.commit, self._header.head.commit
        request = request_document(task, nowhere, RawRecord(nowhere, ""))
        key = [
            arm.tree,
            arm.name if arm.name == "base" else [base, head],
            request,
            [task.workload.gpu, task.workload.device, python, list(task.workload.build)],
            self._own_digest,
            self._packages[python],
            _stable(clean_environment(task.workload.environment)),
        ]
        return self._folder / f"{hashlib.sha256(json.dumps(key, default=str).encode()).hexdigest()}.json"

    def _prune(self) -> None:
        files = sorted(self._folder.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
        for file in files[KEPT_TRACES:]:
            file.unlink(missing_ok=True)


def _stable(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in sorted(variables.items()) if name not in _VOLATILE}


def _digest_package() -> str:
    root = Path(regbot.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".cpp", ".h", ".json", ".toml"):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _identify_packages(python: str) -> str:
    """Return a text that changes whenever a package of the interpreter does: the folders of its packages with their
    times, and the files of packages that are imported from elsewhere. '' if there are none, or too many of these files.
    """
    program = sys.executable if python == sys.executable else shutil.which(python)
    if program is None:
        return ""
    own_root = Path(regbot.__file__).parents[1]
    folders = sorted(Path(program).parent.parent.glob("lib/python3*/*-packages"))  # ENVIRONMENT/bin/python
    elsewhere: list[Path] = []
    for file in (file for folder in folders for file in sorted(folder.glob("*.pth"))):
        places = [Path(line) for line in file.read_text("utf-8", "replace").splitlines() if line.startswith("/")]
        folders += [place for place in places if place.name.endswith("-packages") and place.is_dir()]
        elsewhere += [place for place in places if not place.name.endswith("-packages") and place != own_root]
    sources = [path for place in elsewhere for path in islice(place.rglob("*.py"), MAX_SOURCES + 1)]
    if not folders or len(sources) > MAX_SOURCES:
        return ""
    times = [(str(path), path.stat().st_mtime_ns) for path in (*folders, *sources)]
    return json.dumps([str(Path(program).resolve()), times])
