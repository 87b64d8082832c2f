"""Resolve revisions to commits, and build one worktree for each commit.

regbot only reads the user's repository. It writes no worktree and no configuration there. The only exception is
``create_branch``, which adds a commit and a branch.
"""
