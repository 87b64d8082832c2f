"""The commits between good and bad, as the points of a bisection.

This module only reads the user's repository. Subjects, authors and dates are text by the commits' authors, so they are
made printable.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from regbot.records.bisection import Point
from regbot.records.text.clip import clip_label, short_commit
from regbot.records.text.printable import printable
from regbot.workloads.checkout.arms import uncommitted_warnings
from regbot.workloads.checkout.changes import have_same_code
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

_FIELDS = ("%H", "%T", "%P", "%an", "%aI", "%s")
"""Fields of a commit in the format of git log: hash, tree, parents, author, author's date, subject."""
_PULL_REQUEST = re.compile(r"Merge pull request #([1-9][0-9]{0,9}) from |.* \(#([1-9][0-9]{0,9})\)$")
"""The two places where GitHub writes the number of a pull request: the subject of a merge, and the end of a squashed
commit's subject.
"""


@dataclass(frozen=True)
class CommitRange:
    """Commits from good (first) to bad (last)."""

    points: list[Point]
    warnings: list[str]


def list_commits(repo: Path, good: str, bad: str, inert: Sequence[str] = ()) -> CommitRange:
    """Return good, followed by the commits after ``good`` on bad's line of first parents, oldest first.

    ``inert`` is the setting of that name of good. Raises CheckoutError.
    """
    common_dir(repo)
    good_commit, bad_commit = find_commit(repo, good, "GOOD"), find_commit(repo, bad, "BAD")
    _check_order(repo, (good, good_commit), (bad, bad_commit))
    points = _list_range(repo, good_commit, bad_commit, inert)
    warnings = list(uncommitted_warnings(repo))
    if good_commit not in points[1].parents[:1]:
        warnings.append(
            f"the good commit {short_commit(good_commit)} entered {clip_label(printable(bad))} by a merge: the search "
            "follows first parents, and the commits of that line before this merge do not contain the good commit"
        )
    return CommitRange(points, warnings)


def list_merged_commits(repo: Path, merge: Point, inert: Sequence[str] = ()) -> list[Point] | None:
    """Return the commits of the branch that ``merge`` brought in: the line of first parents from the fork to the tip.

    The fork is the last common ancestor of the branch and the merge's first parent. It takes the role of good.
    ``inert`` has the same meaning as in ``list_commits``.

    Returns None if there is nothing to search: the commit does not merge exactly one branch, the branch has no commits
    of its own, or the histories are unrelated. Raises CheckoutError if the repository is shallow and lacks the history
    of the branch.
    """
    if len(merge.parents) != 2:
        return None
    first_parent, tip = merge.parents
    fork = _merge_base(repo, first_parent, tip)
    if not fork and is_shallow(repo):
        raise CheckoutError(
            f"{repo}: the fork of the branch that {merge.name} merges is missing, because the repository is shallow",
            DEEPEN_ADVICE,
        )
    return None if fork in ("", tip) else _list_range(repo, fork, tip, inert)


def match_trees(points: Sequence[Point]) -> list[Point]:
    """Set ``same_as_before`` of each point for the measurement of a command.

    A command may read any file, so only commits with equal trees count as the same code.
    """
    same = [False, *(before.tree == point.tree for before, point in pairwise(points))]
    return [point.model_copy(update={"same_as_before": is_same}) for point, is_same in zip(points, same, strict=True)]


def read_points(repo: Path, *walk: str) -> list[Point]:
    """Return the commits that git log lists. ``walk`` has options and revisions for git log."""
    fields_format = "%x00".join(_FIELDS)
    out = git(repo, "log", "-z", f"--format={fields_format}", "--no-show-signature", *walk, "--", env=OFFLINE)
    # A NUL character follows each field, so the text after the last NUL is empty.
    values = out.split("\0")[:-1]
    commits = [values[start : start + len(_FIELDS)] for start in range(0, len(values), len(_FIELDS))]
    return [
        Point(
            commit=commit,
            tree=tree,
            parents=parents.split(),
            subject=clip_label(printable(subject)),
            author=clip_label(printable(author)),
            date=clip_label(printable(date)),
            pull_request=_pull_request(printable(subject)),
        )
        for commit, tree, parents, author, date, subject in commits
    ]


def _list_range(repo: Path, good: str, bad: str, inert: Sequence[str]) -> list[Point]:
    """Return good and the commits on bad's line of first parents that good does not contain, oldest first."""
    commits = read_points(repo, "--first-parent", "--reverse", f"{good}..{bad}")
    _check_depth(repo, commits)
    points = [*read_points(repo, "--no-walk", good), *commits]
    same = [False, *(have_same_code(repo, before.tree, after.tree, inert) for before, after in pairwise(points))]
    return [point.model_copy(update={"same_as_before": is_same}) for point, is_same in zip(points, same, strict=True)]


def _check_order(repo: Path, good: tuple[str, str], bad: tuple[str, str]) -> None:
    """Raise CheckoutError if good is not an ancestor of bad, or if both are the same commit.

    Each end is the user's name of the commit, and the commit. If one of two commits is an ancestor of the other, it is
    the fork: the last common ancestor of both.
    """
    (good_name, good_commit), (bad_name, bad_commit) = good, bad
    if good_commit == bad_commit:
        raise CheckoutError(
            f"{repo}: no commit lies between GOOD {good_name!r} and BAD {bad_name!r}: both are commit "
            f"{short_commit(good_commit)}",
            "name an older commit as GOOD",
        )
    fork = _merge_base(repo, good_commit, bad_commit)
    if fork == good_commit:
        return
    if fork == bad_commit:
        raise CheckoutError(
            f"{repo}: good and bad seem to be swapped: BAD {bad_name!r} is an ancestor of GOOD {good_name!r}",
            f"write them the other way round: {bad_name!r} as GOOD and {good_name!r} as BAD",
        )
    if is_shallow(repo):
        raise CheckoutError(
            f"{repo}: the history between GOOD and BAD is missing, because the repository is shallow", DEEPEN_ADVICE
        )
    origin = f"they share their history up to {short_commit(fork)}: name that commit" if fork else "name an ancestor"
    raise CheckoutError(
        f"{repo}: GOOD {good_name!r} is not an ancestor of BAD {bad_name!r}, so no commits lie between them",
        f"{origin} as GOOD",
    )


def _merge_base(repo: Path, first: str, second: str) -> str:
    """Return the last common ancestor; '' if the two commits share no history."""
    answer = try_git(repo, "merge-base", first, second)
    if answer.code not in (0, 1):
        raise CheckoutError(f"{repo}: git merge-base failed: {answer.error_line}")
    return answer.out.split()[0] if answer.code == 0 else ""


def _pull_request(subject: str) -> int | None:
    """Return the number of the pull request in the subject of a commit; None if there is none."""
    match = _PULL_REQUEST.match(subject)
    if match is None:
        return None
    number_of_merge, number_of_squash = match.groups()
    return int(number_of_merge or number_of_squash)


def _check_depth(repo: Path, commits: Sequence[Point]) -> None:
    """Raise CheckoutError if commits of the range are missing because the history is shallow."""
    # This file of git lists the commits whose parents are missing (gitformat-shallow).
    shallow_file = common_dir(repo) / "shallow"
    cut_commits = set(shallow_file.read_text().split()) if shallow_file.is_file() else set()
    for point in commits:
        if point.commit in cut_commits:
            raise CheckoutError(
                f"{repo}: some commits between GOOD and BAD are missing: the repository is shallow, cut at "
                f"{point.name}",
                DEEPEN_ADVICE,
            )
