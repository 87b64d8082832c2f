"""Resolve revisions to commits, and build one worktree for each commit.

regbot only reads the user's repository. It writes no worktree and no configuration there. The only exception is
``create_branch``, which adds a commit and a branch.
"""

from regbot.workloads.checkout.arms import (
    has_commits_of_its_own,
    resolve_arm,
    resolve_arms,
    resolve_exactly,
    target_tip,
)
from regbot.workloads.checkout.building import Build, Builder, BuildError
from regbot.workloads.checkout.cache import repository_cache
from regbot.workloads.checkout.changes import digest_behaviour, list_changed_files
from regbot.workloads.checkout.commits import create_branch
from regbot.workloads.checkout.export import export
from regbot.workloads.checkout.git import CheckoutError
from regbot.workloads.checkout.worktrees import Worktree, check_out, prune

__all__ = [
    "Build",
    "BuildError",
    "Builder",
    "CheckoutError",
    "Worktree",
    "check_out",
    "create_branch",
    "digest_behaviour",
    "export",
    "has_commits_of_its_own",
    "list_changed_files",
    "prune",
    "repository_cache",
    "resolve_arm",
    "resolve_arms",
    "resolve_exactly",
    "target_tip",
]
