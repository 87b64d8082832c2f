"""The commits between good and bad, as the points of a bisection.

This module only reads the user's repository. The number of git commands does not grow with the length of the range.
Subjects, authors and dates are text by the commits' authors, so they are made printable.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbot.checkout.arms import uncommitted_warnings
from regbot.checkout.changes import have_same_code
from regbot.checkout.git import (
    DEEPEN_ADVICE,
    OFFLINE,
    CheckoutError,
    common_dir,
    find_commit,
    git,
    is_shallow,
    try_git,
)
from regbot.records.bisection import Point
from regbot.text.clip import clip, clip_label, short_commit
from regbot.text.printable import printable

SUSPECT_WEIGHT = 20.0
"""Prior weight of a suspect relative to other commits."""

_FIELDS = ("%H", "%T", "%P", "%an", "%aI", "%s")
"""Fields of a commit in the format of git log: hash, tree, parents, author, author's date, subject."""
_PULL_REQUEST = re.compile(r"Merge pull request #([1-9][0-9]{0,9}) from |.* \(#([1-9][0-9]{0,9})\)$")
"""The two places where GitHub writes the number of a pull request: the subject of a merge, and the end of a squashed
commit's subject.
"""


@dataclass(frozen=True)
class CommitRange:
    """Commits from good (first) to bad (last). Every commit comes after its ancestors."""

    points: list[Point]
    warnings: list[str]


@dataclass(frozen=True)
class _Ends:
    """A good commit and a bad commit that descends from good. The revisions are the user's names of the commits."""

    repo: Path
    good_revision: str
    good_commit: str
    bad_revision: str
    bad_commit: str

    @property
    def revision_range(self) -> str:
        """The commits that bad contains and good does not, as git writes such a range."""
        return f"{self.good_commit}..{self.bad_commit}"


def list_commits(
    repo: Path,
    good: str,
    bad: str,
    *,
    full: bool = False,
    paths: Sequence[str] = (),
    suspects: Sequence[str] = (),
    inert: Sequence[str] = (),
) -> CommitRange:
    """Return good, followed by the commits after ``good`` up to ``bad``, oldest first. Raises CheckoutError.

    full      If True, return all commits that bad contains and good does not, in topological order. If False, return
              only the commits on bad's line of first parents.
    paths     Leave out commits that touch none of these git pathspecs, which are relative to ``repo``. Good, bad and
              suspects always stay.
    suspects  Revisions that get the weight ``SUSPECT_WEIGHT``. Other commits have weight 1. If only a merge of the
              range brought a suspect in, the merge gets the weight of the suspect.
    inert     The setting of that name of good: globs of files that do not make a difference.
    """
    common_dir(repo)
    ends = _Ends(repo, good, find_commit(repo, good, "GOOD"), bad, find_commit(repo, bad, "BAD"))
    _check_order(ends)
    suspected = {name: find_commit(repo, name, "suspect") for name in suspects}
    commit_range = _list_range(ends, full, paths, suspected, inert)
    return CommitRange(commit_range.points, [*uncommitted_warnings(repo), *commit_range.warnings])


def list_merged_commits(
    repo: Path,
    merge: Point,
    paths: Sequence[str] = (),
    suspects: Sequence[str] = (),
    inert: Sequence[str] = (),
) -> CommitRange | None:
    """Return the commits of the branch that ``merge`` brought in: the line of first parents from the fork to the tip.

    The fork is the last common ancestor of the branch and the merge's first parent. It takes the role of good.

    Returns None if there is nothing to search: the commit is no merge, the branch has no commits of its own, or the
    histories are unrelated. If the merge joins several branches, only the first branch is returned. ``paths``,
    ``suspects`` and ``inert`` have the same meaning as in ``list_commits``, but suspects outside the branch are
    ignored. Raises CheckoutError if the repository is shallow and lacks the history of the branch.
    """
    if len(merge.parents) < 2:
        return None
    first_parent, tip = merge.parents[:2]
    fork = _merge_base(repo, first_parent, tip)
    if not fork and is_shallow(repo):
        raise CheckoutError(
            f"{repo}: the fork of the branch that {merge.name} merges is missing, because the repository is shallow",
            DEEPEN_ADVICE,
        )
    if fork in ("", tip):  # unrelated histories, or a branch without commits of its own
        return None
    ends = _Ends(repo, short_commit(fork), fork, short_commit(tip), tip)
    suspected = {name: find_commit(repo, name, "suspect") for name in suspects}
    if suspected:
        branch_commits = _read_parents(ends)
        suspected = {name: commit for name, commit in suspected.items() if commit in branch_commits}
    commit_range = _list_range(ends, full=False, paths=paths, suspected=suspected, inert=inert)
    if len(merge.parents) == 2:
        return commit_range
    warning = (
        f"{merge.name} merges {len(merge.parents) - 1} branches at once: only the first of them, with tip "
        f"{short_commit(tip)}, is searched; if the culprit is not on it, bisect the other branches by hand"
    )
    return CommitRange(commit_range.points, [warning, *commit_range.warnings])


def list_first_parents(repo: Path, after: str, last: str) -> list[str]:
    """Return the commits on the line of first parents of ``last`` that ``after`` does not contain, newest first."""
    return git(repo, "rev-list", "--first-parent", f"{after}..{last}").split()


def match_trees(points: Sequence[Point]) -> list[Point]:
    """Set ``same_as_before`` of each point for the measurement of a command.

    A command may read any file, so only points with equal trees count as the same code. Equal trees of commits on
    different branches do not count: if both branches made the same change, either can be the culprit. So the point must
    be a child of the point before it, or ``same_as_before`` must be true already.
    """
    matched = [points[0].model_copy(update={"same_as_before": False})]
    for previous, point in pairwise(points):
        is_child = previous.commit in point.parents
        is_same = previous.tree == point.tree and (is_child or point.same_as_before)
        matched.append(point.model_copy(update={"same_as_before": is_same}))
    return matched


def containment_matrix(repo: Path, points: Sequence[Point], full: bool = False) -> NDArray[np.bool_]:
    """Return which points contain which candidate commit, as an array with a row for each point but the first.

    Element [k, x] is True if points[x] contains the commit points[k + 1]. With ``full``, the points come from a full
    history, and git supplies their ancestry. Otherwise each point contains all points before it. Raises CheckoutError.
    """
    count = len(points)
    if not full:
        return np.triu(np.ones((count - 1, count), dtype=np.bool_), k=1)
    position = {point.commit: index for index, point in enumerate(points)}
    good, bad = points[0], points[-1]
    ends = _Ends(repo, good.name, good.commit, bad.name, bad.commit)
    # For each commit, the points that it contains, as an integer with one bit for each point: a union is then one "|".
    contained_bits: dict[str, int] = {}
    for commit, parents in _read_parents(ends).items():
        bits = 1 << position[commit] if commit in position else 0
        for parent in parents:
            bits |= contained_bits.get(parent, 0)
        contained_bits[commit] = bits
    row_bytes = -(-count // 8)
    packed = b"".join(contained_bits.get(point.commit, 0).to_bytes(row_bytes, "little") for point in points)
    packed_rows = np.frombuffer(packed, dtype=np.uint8).reshape(count, row_bytes)
    # contains[x, y]: whether points[x] contains points[y]
    contains = np.unpackbits(packed_rows, axis=1, bitorder="little")
    return np.ascontiguousarray(contains[:, 1:count].T.astype(np.bool_))


def _check_order(ends: _Ends) -> None:
    """Raise CheckoutError if good is not an ancestor of bad, or if both are the same commit.

    If one of two commits is an ancestor of the other, it is the fork: the last common ancestor of both.
    """
    repo, good, bad = ends.repo, ends.good_revision, ends.bad_revision
    if ends.good_commit == ends.bad_commit:
        commit = short_commit(ends.good_commit)
        raise CheckoutError(
            f"{repo}: no commit lies between GOOD {good!r} and BAD {bad!r}: both are commit {commit}",
            "name an older commit as GOOD",
        )
    fork = _merge_base(repo, ends.good_commit, ends.bad_commit)
    if fork == ends.good_commit:
        return
    if fork == ends.bad_commit:
        raise CheckoutError(
            f"{repo}: good and bad seem to be swapped: BAD {bad!r} is an ancestor of GOOD {good!r}",
            f"write them the other way round: {bad!r} as GOOD and {good!r} as BAD",
        )
    if is_shallow(repo):
        raise CheckoutError(
            f"{repo}: the history between BAD {bad!r} and GOOD {good!r} is missing, because the repository is shallow",
            DEEPEN_ADVICE,
        )
    if fork:
        raise CheckoutError(
            f"{repo}: GOOD {good!r} is not an ancestor of BAD {bad!r}, so no commits lie between them",
            f"they share their history up to {short_commit(fork)}: check that this commit is good, and name it as GOOD",
        )
    raise CheckoutError(
        f"{repo}: GOOD {good!r} and BAD {bad!r} have unrelated histories", "name an ancestor of BAD as GOOD"
    )


def _merge_base(repo: Path, first: str, second: str) -> str:
    """Return the last common ancestor; '' if the two commits share no history."""
    answer = try_git(repo, "merge-base", first, second)
    if answer.code not in (0, 1):
        raise CheckoutError(f"{repo}: git merge-base failed: {answer.error_line}")
    return answer.out.split()[0] if answer.code == 0 else ""


def _list_range(
    ends: _Ends, full: bool, paths: Sequence[str], suspected: Mapping[str, str], inert: Sequence[str]
) -> CommitRange:
    """Return the range with its warnings, for ``list_commits``.

    ``full``, ``paths`` and ``inert`` have the same meaning as there. ``suspected`` maps each suspect, as the user named
    it, to its commit.
    """
    order_option = "--topo-order" if full else "--first-parent"
    commits = _read_commits(ends.repo, order_option, "--reverse", ends.revision_range)
    _check_depth(ends, commits)
    warnings = []
    commit_before = next(iter(commits[0]["parents"]), "")  # first parent of the oldest commit; '' for a root commit
    if not full and commit_before != ends.good_commit:
        origin = f"starts at {short_commit(commit_before)}" if commit_before else "has a root commit of its own"
        warnings.append(
            f"the good commit {short_commit(ends.good_commit)} entered {clip_label(printable(ends.bad_revision))} by a "
            f"merge: the search follows first parents, and that line {origin}. The commits before that "
            "merge do not contain the good commit. --full searches both lines"
        )
    suspect_commits = _suspect_commits(ends, {commit["commit"] for commit in commits}, suspected)
    if paths:
        touching_commits = _commits_touching(ends, full, paths)
        kept_commits = touching_commits | suspect_commits | {ends.bad_commit}
        commit_count = len(commits)
        commits = [commit for commit in commits if commit["commit"] in kept_commits]
        path_names = clip(printable(", ".join(paths)), 1000)
        if not touching_commits:
            warnings.append(f"no commit of the range touches {path_names}: check the spelling, or leave the paths out")
        if omitted := commit_count - len(commits):
            warnings.append(
                f"{omitted} of {commit_count} commits are left out, which touch none of {path_names}; good, bad and "
                "suspects always stay"
            )
    (good,) = _read_commits(ends.repo, "--no-walk", ends.good_commit)
    for commit, is_same in zip(commits, _same_as_before(ends, [good, *commits], full, inert), strict=True):
        commit["same_as_before"] = is_same
        commit["weight"] = SUSPECT_WEIGHT if commit["commit"] in suspect_commits else 1.0
    return CommitRange([Point.model_validate(fields) for fields in (good, *commits)], warnings)


def _read_commits(repo: Path, *walk: str) -> list[dict[str, Any]]:
    """Return the fields of a ``Point`` for each commit that git log lists.

    ``walk`` has options and revisions for git log, which say what to list.
    """
    fields_format = "%x00".join(_FIELDS)
    out = git(repo, "log", "-z", f"--format={fields_format}", "--no-show-signature", *walk, "--", env=OFFLINE)
    # A NUL character follows each field, so the text after the last NUL is empty.
    values = out.split("\0")[:-1]
    commits = [values[start : start + len(_FIELDS)] for start in range(0, len(values), len(_FIELDS))]
    return [
        {
            "commit": commit,
            "tree": tree,
            "parents": parents.split(),
            "subject": clip_label(printable(subject)),
            "author": clip_label(printable(author)),
            "date": clip_label(printable(date)),
            "pull_request": _pull_request(printable(subject)),
        }
        for commit, tree, parents, author, date, subject in commits
    ]


def _pull_request(subject: str) -> int | None:
    """Return the number of the pull request in the subject of a commit; None if there is none."""
    match = _PULL_REQUEST.match(subject)
    if match is None:
        return None
    number_of_merge, number_of_squash = match.groups()
    return int(number_of_merge or number_of_squash)


def _check_depth(ends: _Ends, commits: Sequence[Mapping[str, Any]]) -> None:
    """Raise CheckoutError if commits of the range are missing because the history is shallow."""
    # This file of git lists the commits whose parents are missing (gitformat-shallow).
    shallow_file = common_dir(ends.repo) / "shallow"
    if not shallow_file.is_file():
        return
    cut_commits = set(shallow_file.read_text().split())
    first_cut = next((commit["commit"] for commit in commits if commit["commit"] in cut_commits), None)
    if first_cut is not None:
        raise CheckoutError(
            f"{ends.repo}: some commits between GOOD {ends.good_revision!r} and BAD {ends.bad_revision!r} are missing: "
            f"the repository is shallow, cut at {short_commit(first_cut)}",
            DEEPEN_ADVICE,
        )


def _suspect_commits(ends: _Ends, range_commits: set[str], suspected: Mapping[str, str]) -> set[str]:
    """Return the commits of ``range_commits`` that are suspects, or the first ones that contain a suspect.

    ``suspected`` maps each suspect, as the user named it, to its commit. For example, if the range follows first
    parents and a suspect lies on a merged branch, the merge is returned. Raises CheckoutError for a suspect that no
    commit of the range brought in.
    """
    if set(suspected.values()) <= range_commits:
        return set(suspected.values())
    carrier: dict[str, str] = {}  # commit -> the first commit of the range that contains it
    parents = _read_parents(ends)
    oldest_first = [commit for commit in parents if commit in range_commits]
    for commit in oldest_first:
        stack = [commit]
        while stack:
            ancestor = stack.pop()
            if ancestor in parents and ancestor not in carrier:
                carrier[ancestor] = commit
                stack += parents[ancestor]
    for name, commit in suspected.items():
        if commit not in carrier:
            raise CheckoutError(
                f"{ends.repo}: suspect {name!r} ({short_commit(commit)}) is outside the range: name a commit that BAD "
                f"{ends.bad_revision!r} contains and GOOD {ends.good_revision!r} does not"
            )
    return {carrier[commit] for commit in suspected.values()}


def _read_parents(ends: _Ends) -> dict[str, list[str]]:
    """Return the parents of every commit that bad contains and good does not. Parents come before children."""
    out = git(ends.repo, "rev-list", "--topo-order", "--reverse", "--parents", ends.revision_range)
    lines = (line.split() for line in out.splitlines())
    return {commit: parents for commit, *parents in lines}


def _commits_touching(ends: _Ends, full: bool, paths: Sequence[str]) -> set[str]:
    """Return the commits after good up to bad that touch one of the paths, or that merge branches which touch one.

    Without ``full``, only commits on the line of first parents are returned.
    """
    if any("\0" in path for path in paths):
        raise CheckoutError(f"{ends.repo}: a path to search contains a NUL character", "leave the path out")
    # By default, git follows only one parent of a merge if that parent has the same files as the merge. The commits of
    # the other branch would be missing, so --full-history is needed.
    options = ("--full-history", "--simplify-merges") if full else ("--first-parent",)
    return set(git(ends.repo, "rev-list", *options, ends.revision_range, "--", *paths, env=OFFLINE).split())


def _same_as_before(ends: _Ends, fields: Sequence[Mapping[str, Any]], full: bool, inert: Sequence[str]) -> list[bool]:
    """Return whether each commit runs the same code as the commit before it in the list. The first commit (good) is
    left out.

    On a line, differences in inert files, such as documentation, do not count. In a history with branches, the trees
    must be equal. ``fields`` has the fields of each commit as ``_read_commits`` returns them, good first. ``full`` says
    whether the list is the full history.
    """
    neighbours = list(pairwise(fields))
    has_branches = any(after["parents"] != [before["commit"]] for before, after in neighbours)
    if full and has_branches:
        # Neighbours of different branches may have equal trees because both made the same change. Then either can be
        # the culprit. So only a commit and its parent can be the same.
        return [
            before["commit"] in after["parents"] and before["tree"] == after["tree"] for before, after in neighbours
        ]
    return have_same_code(ends.repo, [(before["tree"], after["tree"]) for before, after in neighbours], inert)
