"""The checkouts of one check: a worktree for each arm and workload, made when first asked for."""

import threading
from collections.abc import Callable
from pathlib import Path

from regbot.checkout import BuildError, Worktree, check_out
from regbot.engines import clean_environment
from regbot.records.run import Arm, Run
from regbot.workloads import Task

BUILD_TIMEOUT_S = 3600.0
CHANGES_KEPT = 100
"""Of the files that a build changed; one is as bad as all."""


class Trees:
    """Worktrees of ``repo`` in ``cache``. Any number of threads may ask."""

    def __init__(self, repo: Path, cache: Path, say: Callable[[str], None]) -> None:
        self._repo, self._cache, self._say = repo, cache, say
        self._made: dict[tuple[str, str], Worktree | str] = {}
        self._lock = threading.Lock()

    def of(self, arm: Arm, task: Task) -> Worktree | str:
        """The checkout, or why there is none. Raises CheckoutError where git does not do its part."""
        with self._lock:
            key = (arm.name, task.workload_name)
            if key not in self._made:
                self._say(f"check out {arm.name} {arm.commit[:7]}")
                self._made[key] = self._check_out(arm, task)
            return self._made[key]

    def _check_out(self, arm: Arm, task: Task) -> Worktree | str:
        """A build that fails is tried twice: what fails once may be the network's fault."""
        workload = task.at(arm.overrides).workload

        def attempt() -> Worktree:
            environment = clean_environment({})
            return check_out(
                self._repo, arm.commit, self._cache, workload.build, workload.python, BUILD_TIMEOUT_S, environment
            )

        try:
            return attempt()
        except BuildError:
            pass
        try:
            return attempt()
        except BuildError as error:
            return f"the build failed twice: {error}"


def marked(run: Run, tree: Worktree) -> Run:
    """``run``, which says of itself and in a warning which tracked files the build of its tree changed."""
    changed = [name[:500] for name in tree.changed[:CHANGES_KEPT]]
    return run.model_copy(update={"changed_by_build": changed, "warnings": [*run.warnings, *changed_by_build(tree)]})


def changed_by_build(tree: Worktree) -> list[str]:
    """The warning that what runs is not quite the commit; none where the build left tracked files alone."""
    if not tree.changed:
        return []
    names = ", ".join(name[:200] for name in tree.changed[:5])
    return [f"the build changed tracked files: {names}; what ran is not quite the commit"]


def plain_name(name: str) -> str:
    """``name`` as the name of a folder."""
    return "".join(character if character.isalnum() or character in "-." else "_" for character in name)
