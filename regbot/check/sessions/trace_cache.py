"""Traces of earlier checks, so that a base is traced once for all pull requests on it.

A trace is a file in the cache folder of the repository. Its name is a digest of everything that decides what a trace
finds: the tree, the build, the configuration, the sandbox, regbot's own files, the variables of the environment, and
the files that regbot's own interpreter can import. Traces by other interpreters, and on Slurm, are never stored.

A trace of a pull request's head is stored for this head and this base alone, and never where the head is untrusted: its
code could have written it.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import regbot
from regbot.check.sessions.recording import RunSetup
from regbot.engines.local import LocalEngine, clean_environment
from regbot.records.files import RecordError, read_record, write_record
from regbot.records.run import Arm, Run
from regbot.workloads.guest import RawRecord, interpreter, request_document
from regbot.workloads.task import Task

FOLDER = "traces"
KEPT_TRACES = 500
"""Number of traces that the cache of a repository keeps, the latest used ones."""
MAX_FILES = 200_000
"""Largest number of files that an interpreter can import. With more, no trace is stored."""
_HOOK = re.compile(r"\A(?=.*editable).*^import ", re.S | re.M)
"""Name and text of a .pth file that imports an editable package from a place that ``sys.path`` does not show."""
_VOLATILE = ("TMPDIR", "PWD", "OLDPWD", "SHLVL", "COLUMNS", "LINES", "TERM")


class TraceCache:
    def __init__(self, setup: RunSetup, *, untrusted: bool) -> None:
        self._setup, self._header = setup, setup.recorder.header
        self._folder = setup.trees.repository_cache / FOLDER
        sandbox = setup.engine.sandbox
        # On Slurm, the packages of the node are not seen here. Without a sandbox, untrusted code can write the cache.
        self._is_on = isinstance(setup.engine, LocalEngine) and not (untrusted and sandbox is None)
        self._is_trusted = not untrusted
        self._sandbox = sandbox.model_dump(mode="json") if sandbox is not None else None
        self._own_digest = _digest_package()
        self._packages: dict[str, str] = {}  # by variables of the environment; '' if they cannot be identified

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
        return run.model_copy(update={"arm": arm, "from_cache": True}) if run.workload == task.entry else None

    def keep(self, arm: Arm, task: Task, run: Run) -> None:
        """Store a trace that has just been made, if a later check may use it."""
        device = "cuda" if task.wants_paper_gpu else "cpu"
        is_complete = run.outcome == "ok" and run.ledger is not None and run.ledger.device == device
        may_keep = self._is_trusted or arm.name == "base"  # in a sandbox, head cannot change base's run
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
        variables = _stable(clean_environment(task.workload.environment))
        python = interpreter(task, nowhere)
        if not self._is_on or python != sys.executable:  # another one may be code under test, and is not started
            return None
        if (name := json.dumps(variables)) not in self._packages:
            self._packages[name] = _identify_packages(python, variables)
        if not self._packages[name]:
            return None
        base, head = self._header.base.commit, self._header.head.commit
        request = request_document(task, nowhere, RawRecord(nowhere, ""))
        key = [
            arm.tree,
            arm.name if arm.name == "base" else [base, head],
            request,
            [task.workload.gpu, task.workload.device, python, list(task.workload.build), self._sandbox],
            self._own_digest,
            [variables, self._packages[name]],
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


def _identify_packages(python: str, variables: Mapping[str, str]) -> str:
    """Return a digest of the files that the interpreter can import with these variables: names, sizes and times. '' if
    they cannot be listed, are too many, or if a hook imports packages from places that ``sys.path`` does not show.
    """
    try:
        command = [python, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
        places = subprocess.run(command, env=variables, cwd="/", capture_output=True, timeout=60, check=True).stdout
        digest = hashlib.sha256(places)
        number = 0
        for folder, _, names in (entry for place in json.loads(places) for entry in os.walk(place)):
            number += len(names)
            for name in sorted(names):
                path = Path(folder, name)
                if name.endswith(".pth") and _HOOK.search(f"{name}\n{path.read_text('utf-8', 'replace')}"):
                    return ""
                if not name.endswith(".pyc"):
                    status = path.lstat()
                    digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode("utf-8", "replace"))
            if number > MAX_FILES:
                return ""
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    return digest.hexdigest()
