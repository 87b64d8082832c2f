"""Worktrees of one check: one per commit and workload, created at first use."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from regbot.records.config import SandboxSettings
from regbot.records.run import Arm, Run
from regbot.records.text.clip import clip, clip_label
from regbot.workloads.checkout.building import Build, BuildError
from regbot.workloads.checkout.cache import repository_cache
from regbot.workloads.checkout.worktrees import Worktree, check_out
from regbot.workloads.paper import Libraries
from regbot.workloads.task import Task

BUILD_TIMEOUT_S = 3600.0
MAX_CHANGED_FILES = 100
"""Maximum number of changed file names in a run. One changed file already invalidates the run."""


class Worktrees:
    """Built worktrees of ``repo`` in its folder of the node's ``cache``. Thread-safe."""

    def __init__(
        self, repo: Path, cache: Path, say: Callable[[str], None], sandbox: SandboxSettings | None = None
    ) -> None:
        """``sandbox`` confines builds and limits the hosts from which git fetches submodules. Raises CheckoutError."""
        self.repo, self.cache, self._say, self._sandbox = repo, cache, say, sandbox
        self.repository_cache = repository_cache(cache, repo)
        self._build_sandbox = sandbox and sandbox.model_copy(update={"network": sandbox.build_network})
        self._hosts = sandbox.submodule_hosts if sandbox is not None else None
        # (arm, commit, workload name) -> worktree, or the reason why there is none
        self._by_key: dict[tuple[str, str, str], Worktree | str] = {}
        self._lock = threading.Lock()

    def open_libraries(self, folder: Path) -> Libraries:
        """``folder`` gets the output of compilers that fail."""
        writable = [] if self._sandbox is None else [self.repo, *map(Path, self._sandbox.write)]
        untrusted = [self.repository_cache.parent, *writable]  # first, the worktrees of all repositories
        return Libraries(self.cache, folder, self._say, self._sandbox, untrusted)

    def worktree(self, arm: Arm, task: Task) -> Worktree | str:
        """Return the worktree, or the reason why there is none. Raises CheckoutError if git fails."""
        with self._lock:
            key = (arm.name, arm.commit, task.workload_name)
            tree = self._by_key.get(key)
            if isinstance(tree, Worktree) and tree.path.is_dir():
                tree = replace(tree, built=False)  # not created by this call
            elif not isinstance(tree, str):  # not made yet, or removed by somebody
                self._say(f"check out {arm.name} {arm.commit[:7]}")
                workload = task.at(arm.overrides).workload
                tree = self.check_out(arm.commit, workload.build, workload.python)
            self._by_key[key] = tree
            return tree

    def check_out(self, commit: str, commands: Sequence[str], python: str) -> Worktree | str:
        """Return the worktree of ``commit`` built by ``commands``, or the reason why there is none.

        ``python`` is the workload's interpreter. A failed build is repeated once: the network may be the cause.
        """
        build = Build(commands, python, BUILD_TIMEOUT_S, self._build_sandbox)
        with suppress(BuildError):
            return check_out(self.repo, commit, self.repository_cache, build, self._hosts)
        try:
            return check_out(self.repo, commit, self.repository_cache, build, self._hosts)
        except BuildError as error:
            return f"the build failed twice: {error}"


def with_build_changes(run: Run, tree: Worktree) -> Run:
    """Return ``run`` with the tracked files that its build changed. The warning comes first, because the code under
    test can write the others, and a comment shows only the first few.
    """
    changed = [clip_label(name) for name in tree.changed[:MAX_CHANGED_FILES]]
    warnings = [*build_change_warnings(tree), *run.warnings]
    return run.model_copy(update={"changed_by_build": changed, "warnings": warnings})


def build_change_warnings(tree: Worktree) -> list[str]:
    """Return one warning if the build changed tracked files, so that the code is not exactly the commit; else []."""
    if not tree.changed:
        return []
    names = ", ".join(clip(name, 200) for name in tree.changed[:5])
    return [f"the build changed tracked files: {names}; the code that ran is not exactly the commit"]


def folder_name(name: str) -> str:
    """Return ``name``, with every character that is unsafe in folder names replaced by ``_``."""
    return "".join(character if character.isalnum() or character in "-." else "_" for character in name)
