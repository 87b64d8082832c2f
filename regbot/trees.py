"""The checkouts of one check: a worktree for each commit and workload, made when first asked for."""

import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from regbot.checkout import Builder, BuildError, Worktree, check_out
from regbot.engines import EngineError, Launch, LocalEngine, Sandbox, clean_environment
from regbot.records.run import Arm, Run
from regbot.workloads import Task

BUILD_TIMEOUT_S = 3600.0
BUILD_OUTPUT_BYTES = 2**20
CHANGES_KEPT = 100
"""Of the files that a build changed; one is as bad as all."""


class Trees:
    """Worktrees of ``repo`` in ``cache``. Any number of threads may ask."""

    def __init__(self, repo: Path, cache: Path, say: Callable[[str], None], sandbox: Sandbox | None = None) -> None:
        """``sandbox`` confines the build commands, and says whom git may ask for submodules."""
        self._repo, self._cache, self._say = repo, cache, say
        self.builder = confined_builder(sandbox.of_builds) if sandbox is not None else None
        self._hosts = sandbox.submodule_hosts if sandbox is not None else None
        self._made: dict[tuple[str, str, str], Worktree | str] = {}
        self._lock = threading.Lock()

    def of(self, arm: Arm, task: Task) -> Worktree | str:
        """The checkout, or why there is none. Raises CheckoutError where git does not do its part."""
        with self._lock:
            key = (arm.name, arm.commit, task.workload_name)
            if key not in self._made:
                self._say(f"check out {arm.name} {arm.commit[:7]}")
                self._made[key] = self._check_out(arm, task)
            elif isinstance(made := self._made[key], Worktree):
                # One that was removed meanwhile is made again; any other was told of when it was made.
                self._made[key] = replace(made, built=False) if made.path.is_dir() else self._check_out(arm, task)
            return self._made[key]

    def _check_out(self, arm: Arm, task: Task) -> Worktree | str:
        """A build that fails is tried twice: what fails once may be the network's fault."""
        workload = task.at(arm.overrides).workload

        def attempt() -> Worktree:
            environment = clean_environment({})
            return check_out(
                self._repo,
                arm.commit,
                self._cache,
                workload.build,
                workload.python,
                BUILD_TIMEOUT_S,
                environment,
                self.builder,
                self._hosts,
            )

        try:
            return attempt()
        except BuildError:
            pass
        try:
            return attempt()
        except BuildError as error:
            return f"the build failed twice: {error}"


def confined_builder(sandbox: Sandbox) -> Builder:
    """Runs build commands in ``sandbox``: they write to the checkout and its caches, and see nothing else of ours."""

    def build(
        command: str, at: Path, private: Path, env: Mapping[str, str], seconds: float
    ) -> tuple[int | None, bytes]:
        with tempfile.TemporaryDirectory(prefix="regbot-") as name:
            launch = Launch(
                command=("bash", "-euo", "pipefail", "-c", command),
                cwd=at,
                env=env,
                log=Path(name) / "build.log",
                record_dir=Path(name) / "record",
                timeout_s=seconds,
                max_output_bytes=BUILD_OUTPUT_BYTES,
                max_dir_bytes=BUILD_OUTPUT_BYTES,
                writable=(at, private),
            )
            try:
                ended = LocalEngine(sandbox=sandbox).run(launch)
            except EngineError as error:
                raise BuildError(f"the build command {command} could not be confined: {error}") from error
        if ended.dir_overflow:
            raise BuildError(f"the build command {command} wrote more than sandbox.disk_mb allows, and was ended")
        return ended.exit_code, ended.log_tail.encode()

    return build


def marked(run: Run, tree: Worktree) -> Run:
    """``run``, which says of itself which tracked files the build of its tree changed, and in a warning: the first, for
    code under test writes others, and a comment shows only so many."""
    changed = [name[:500] for name in tree.changed[:CHANGES_KEPT]]
    return run.model_copy(update={"changed_by_build": changed, "warnings": [*changed_by_build(tree), *run.warnings]})


def changed_by_build(tree: Worktree) -> list[str]:
    """The warning that what runs is not quite the commit; none where the build left tracked files alone."""
    if not tree.changed:
        return []
    names = ", ".join(name[:200] for name in tree.changed[:5])
    return [f"the build changed tracked files: {names}; what ran is not quite the commit"]


def plain_name(name: str) -> str:
    """``name`` as the name of a folder."""
    return "".join(character if character.isalnum() or character in "-." else "_" for character in name)
