"""Which two commits are compared. Reads the user's repository and writes nothing anywhere."""

from collections.abc import Mapping
from pathlib import Path

from regbot.checkout.git import DEEPEN, CheckoutError, common_dir, find_commit, git, is_shallow, try_git
from regbot.records.ledger import Scalar
from regbot.records.run import Arm
from regbot.text import printable

_TARGETS = ("refs/remotes/origin/main", "refs/heads/main", "refs/remotes/origin/master", "refs/heads/master")
"""Tried after what origin calls its HEAD, which a checkout in CI does not have."""


def resolve_arms(
    repo: Path,
    base: str | None,
    head: str,
    base_overrides: Mapping[str, Scalar],
    head_overrides: Mapping[str, Scalar],
) -> tuple[Arm, Arm, list[str]]:
    """The two arms, and warnings on what is compared instead of what may have been expected.

    The base arm is the merge base of ``base`` (default: the target branch, as far as it can be guessed) and ``head``,
    as a pull request shows it. Raises CheckoutError.
    """
    common_dir(repo)
    base = base if base is not None else _target(repo)
    base_tip, head_commit = find_commit(repo, base, "--base"), find_commit(repo, head, "--head")
    warnings = []
    base_commit = _merge_base(repo, base, base_tip, head, head_commit)
    if base_commit == head_commit != base_tip:
        base_commit = base_tip
        warnings.append(
            f"{printable(head)} is an ancestor of {printable(base)}: compared with {base_tip[:10]} itself, "
            "there being no merge base but head; are base and head swapped?"
        )
    elif base_commit != base_tip:
        behind = git(repo, "rev-list", "--count", f"{base_commit}..{base_tip}").strip()
        warnings.append(
            f"compared with the merge base {base_commit[:10]}, "
            f"{behind} commit{'s' * (behind != '1')} behind {printable(base)}"
        )
    left = uncommitted(repo)
    if base_commit == head_commit and dict(base_overrides) == dict(head_overrides):
        if left:
            raise CheckoutError(
                f"{repo}: nothing to compare: {base!r} and {head!r} are both commit {base_commit[:10]}; "
                f"{'; '.join(left)}"
            )
        raise CheckoutError(
            f"{repo}: nothing to compare: {base!r} and {head!r} are both commit {base_commit[:10]}, with the same "
            "overrides; name another revision (--base HEAD~1) or let the arms differ by --base-set or --head-set"
        )
    warnings += left
    return (
        _arm(repo, "base", base, base_commit, base_overrides),
        _arm(repo, "head", head, head_commit, head_overrides),
        warnings,
    )


def resolve_exactly(repo: Path, base: str, head: str) -> tuple[Arm, Arm, list[str]]:
    """The two arms as named, whatever their history; they may be one commit. Raises CheckoutError."""
    common_dir(repo)
    arms = (("base", base), ("head", head))
    found = [_arm(repo, name, rev, find_commit(repo, rev, f"--{name}"), {}) for name, rev in arms]
    return found[0], found[1], uncommitted(repo)


def target_tip(repo: Path, base: str | None) -> str:
    """The commit that ``base``, or the branch that is guessed without it, points to. Raises CheckoutError."""
    return find_commit(repo, base if base is not None else _target(repo), "--base")


def resolve_arm(repo: Path, revision: str) -> Arm:
    """The arm of one revision that is compared with nothing yet. Raises CheckoutError."""
    common_dir(repo)
    return _arm(repo, "head", revision, find_commit(repo, revision, "--rev"), {})


def _target(repo: Path) -> str:
    origin_head = try_git(repo, "symbolic-ref", "--quiet", "refs/remotes/origin/HEAD").out.strip()
    for ref in (origin_head, *_TARGETS):
        if ref and try_git(repo, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}").code == 0:
            return ref.removeprefix("refs/remotes/").removeprefix("refs/heads/")
    raise CheckoutError(f"{repo}: has no origin/HEAD, main or master to compare with; name a revision with --base")


def _merge_base(repo: Path, base: str, base_commit: str, head: str, head_commit: str) -> str:
    answer = try_git(repo, "merge-base", base_commit, head_commit)
    if answer.code == 0:
        return answer.out.split()[0]
    if answer.code != 1:
        raise CheckoutError(f"{repo}: git merge-base failed: {answer.last_word}")
    if is_shallow(repo):
        raise CheckoutError(
            f"{repo}: the merge base of {base!r} and {head!r} is not here, because the repository is shallow; {DEEPEN}"
        )
    raise CheckoutError(
        f"{repo}: {base!r} and {head!r} have unrelated histories, so no merge base; name a --base that head came from"
    )


def uncommitted(repo: Path) -> list[str]:
    """A warning where the work tree of ``repo`` has changes that no commit has. Raises CheckoutError."""
    if git(repo, "rev-parse", "--is-inside-work-tree").strip() != "true":
        return []
    status = git(repo, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=no")
    paths = [printable(line[3:]) for line in status.split("\0") if line]
    if not paths:
        return []
    some = ", ".join(paths[:3]) + (", ..." if len(paths) > 3 else "")
    return [
        f"uncommitted changes are not measured ({len(paths)} file{'s' * (len(paths) != 1)}: {some}); commit them first"
    ]


def _arm(repo: Path, name: str, revision: str, commit: str, overrides: Mapping[str, Scalar]) -> Arm:
    tree, _, subject = git(repo, "log", "-1", "--no-show-signature", "--format=%T %s", commit).partition(" ")
    return Arm.model_validate(
        {
            "name": name,
            "revision": printable(revision)[:500],
            "commit": commit,
            "tree": tree,
            "subject": printable(subject.strip())[:200],
            "overrides": dict(overrides),
        }
    )
