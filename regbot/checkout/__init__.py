"""From revisions to folders of code: which two commits are compared, and one built worktree for each of them.

The user's repository is only ever read: no ref, worktree or configuration is written there.
"""

from regbot.checkout.arms import resolve_arm, resolve_arms, resolve_exactly, target_tip
from regbot.checkout.branch import propose
from regbot.checkout.building import Builder, BuildError
from regbot.checkout.changes import changed_files
from regbot.checkout.export import export
from regbot.checkout.git import CheckoutError
from regbot.checkout.worktrees import Worktree, check_out, prune

__all__ = [
    "BuildError",
    "Builder",
    "CheckoutError",
    "Worktree",
    "changed_files",
    "check_out",
    "export",
    "propose",
    "prune",
    "resolve_arm",
    "resolve_arms",
    "resolve_exactly",
    "target_tip",
]
