"""Resolve the base arm and the head arm to commits. This module only reads the user's repository."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from regbot.records.ledger import Scalar
from regbot.records.run import Arm
from regbot.records.text.clip import clip, clip_label
from regbot.records.text.printable import printable
from regbot.records.text.words import count
from regbot.workloads.checkout.git import (
    DEEPEN_ADVICE,
    OFFLINE,
    CheckoutError,
    common_dir,
    find_commit,
    git,
    is_shallow,
    try_git,
)

_TARGET_REFS = ("refs/remotes/origin/main", "refs/heads/main", "refs/remotes/origin/master", "refs/heads/master")
"""Target branches to try if the repository has no origin/HEAD, as in a checkout in CI."""


def resolve_arms(
    repo: Path, base: str | None, head: str, base_overrides: Mapping[str, Scalar], head_overrides: Mapping[str, Scalar]
) -> tuple[Arm, Arm, list[str]]:
    """Return the base arm, the head arm, and warnings about commits that the user may not expect.

    The base arm is the merge base of ``base`` (None: the guessed target branch) and ``head``. If ``head`` is an
    ancestor of ``base``, it is ``base`` itself. The overrides are configuration keys of one arm. Raises CheckoutError.
    """
    common_dir(repo)  # raises CheckoutError if ``repo`` is no repository
    base = base if base is not None else _guess_target(repo)
    base_tip, head_commit = find_commit(repo, base, "--base"), find_commit(repo, head, "--head")
    warnings = []
    base_commit = _merge_base(repo, base, base_tip, head, head_commit)
    if base_commit == head_commit and head_commit != base_tip:  # head is older
        base_commit = base_tip
        warnings.append(
            f"{printable(head)} is an ancestor of {printable(base)}: compared with {base_tip[:10]} itself, "
            "because the merge base is head; are base and head swapped?"
        )
    elif base_commit != base_tip:
        behind_count = int(git(repo, "rev-list", "--count", f"{base_commit}..{base_tip}"))
        warnings.append(
            f"compared with the merge base {base_commit[:10]}, {count(behind_count, 'commit')} behind {printable(base)}"
        )
    work_tree_warnings = uncommitted_warnings(repo)
    if base_commit == head_commit and dict(base_overrides) == dict(head_overrides):
        problem = f"{base!r} and {head!r} are both commit {base_commit[:10]}, with the same overrides"
        # With uncommitted changes, the user probably expects that they are measured.
        advice = "name another revision (--base HEAD~1) or let the arms differ by --base-set or --head-set"
        raise CheckoutError(f"{repo}: nothing to compare: {problem}", "; ".join(work_tree_warnings) or advice)
    base_arm = _make_arm(repo, "base", base, base_commit, base_overrides)
    head_arm = _make_arm(repo, "head", head, head_commit, head_overrides)
    return base_arm, head_arm, warnings + work_tree_warnings


def resolve_exactly(repo: Path, base: str, head: str) -> tuple[Arm, Arm, list[str]]:
    """Return arms of exactly these two revisions, and warnings. Both may be the same commit. Raises CheckoutError."""
    base_arm = _make_arm(repo, "base", base, find_commit(repo, base, "--base"), overrides={})
    head_arm = _make_arm(repo, "head", head, find_commit(repo, head, "--head"), overrides={})
    return base_arm, head_arm, uncommitted_warnings(repo)


def target_tip(repo: Path, base: str | None) -> str:
    """Return the commit of ``base``; None stands for the guessed target branch. Raises CheckoutError."""
    return find_commit(repo, base if base is not None else _guess_target(repo), "--base")


def has_commits_of_its_own(repo: Path, base: str | None, head: str) -> bool:
    """Return whether ``head`` has commits that ``base`` (None: the guessed target branch) lacks, and a common history.

    Raises CheckoutError, also if a shallow clone lacks the history.
    """
    base_tip, head_commit = target_tip(repo, base), find_commit(repo, head, "--head")
    has_no_merge_base = try_git(repo, "merge-base", base_tip, head_commit).code == 1
    if has_no_merge_base and not is_shallow(repo):
        return False
    return _merge_base(repo, base or base_tip, base_tip, head, head_commit) != head_commit


def resolve_arm(repo: Path, revision: str) -> Arm:
    """Return an arm of ``revision``, to measure it alone. Raises CheckoutError."""
    return _make_arm(repo, "head", revision, find_commit(repo, revision, "--rev"), overrides={})


def _guess_target(repo: Path) -> str:
    origin_head = try_git(repo, "symbolic-ref", "--quiet", "refs/remotes/origin/HEAD").out.strip()
    for ref in (origin_head, *_TARGET_REFS):
        if ref and try_git(repo, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}").code == 0:
            return ref.removeprefix("refs/remotes/").removeprefix("refs/heads/")
    raise CheckoutError(f"{repo}: has no origin/HEAD, main or master to compare with", "name a revision with --base")


def _merge_base(repo: Path, base: str, base_commit: str, head: str, head_commit: str) -> str:
    result = try_git(repo, "merge-base", base_commit, head_commit, env=OFFLINE)
    if result.code == 0:
        return result.out.strip()
    if result.code != 1:  # 1: there is no merge base
        raise CheckoutError(f"{repo}: git merge-base failed: {result.error_line}")
    if is_shallow(repo):
        problem = f"the merge base of {base!r} and {head!r} is missing, because the repository is shallow"
        raise CheckoutError(f"{repo}: {problem}", DEEPEN_ADVICE)
    problem = f"{base!r} and {head!r} have unrelated histories and no merge base"
    raise CheckoutError(f"{repo}: {problem}", "name a --base that is in the history of head")


def uncommitted_warnings(repo: Path) -> list[str]:
    if git(repo, "rev-parse", "--is-inside-work-tree").strip() != "true":
        return []
    status = git(repo, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=no", env=OFFLINE)
    # Each line has a status of two characters, a space, and the path.
    paths = [printable(line[3:]) for line in status.split("\0") if line]
    files = f"{count(len(paths), 'file')}: {', '.join(paths[:3])}{', ...' if len(paths) > 3 else ''}"
    return [f"uncommitted changes are not measured ({files}); commit them first"] if paths else []


def _make_arm(
    repo: Path, name: Literal["base", "head"], revision: str, commit: str, overrides: Mapping[str, Scalar]
) -> Arm:
    tree, _, subject = git(repo, "log", "-1", "--no-show-signature", "--format=%T %s", commit).partition(" ")
    return Arm(
        name=name,
        revision=clip_label(printable(revision)),
        commit=commit,
        tree=tree,
        subject=clip(printable(subject.strip()), 200),
        overrides=dict(overrides),
    )
