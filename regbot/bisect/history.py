"""The commits between good and bad, as the points that a bisection walks along.

Reads the user's repository and writes nothing anywhere. A few git commands serve a range of any length. Subjects,
authors and dates are what their writers made of them, and are only made printable.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbot.checkout.arms import uncommitted
from regbot.checkout.changes import OFFLINE, same_code
from regbot.checkout.git import DEEPEN, CheckoutError, common_dir, find_commit, git, is_shallow, try_git
from regbot.judge.identity import inert
from regbot.records.bisection import Point
from regbot.text import printable

SUSPECT_WEIGHT = 20.0

_FIELDS = ("%H", "%T", "%P", "%an", "%aI", "%s")
_PULL_REQUEST = re.compile(r"Merge pull request #([1-9][0-9]{0,9}) from |.* \(#([1-9][0-9]{0,9})\)$")
"""GitHub's own two ways: of a merge, and at the end of a squashed commit's subject."""


@dataclass(frozen=True)
class Range:
    """Good first, bad last; every commit after those that it was made from."""

    points: list[Point]
    warnings: list[str]


@dataclass(frozen=True)
class _Ends:
    """A good commit and a bad one that has it among its ancestors, with what the user called them."""

    repo: Path
    good: str
    first: str
    bad: str
    last: str

    @property
    def between(self) -> str:
        return f"{self.first}..{self.last}"


def commit_range(
    repo: Path,
    good: str,
    bad: str,
    full: bool = False,
    paths: Sequence[str] = (),
    suspects: Sequence[str] = (),
    weight: float = SUSPECT_WEIGHT,
) -> Range:
    """The commits after ``good`` up to ``bad``, oldest first, with good before them.

    ``full``: all commits that bad has and good has not, in topological order; without it, those on bad's line of first
    parents. ``paths``: only commits that touch one of these (git pathspecs, relative to ``repo``), and good, bad and
    suspects. ``suspects``: revisions of the range that weigh ``weight`` where others weigh 1; one that a merge brought
    in stands for its merge, where only the merge is in the range. Raises CheckoutError.
    """
    common_dir(repo)
    ends = _Ends(repo, good, find_commit(repo, good, "GOOD"), bad, find_commit(repo, bad, "BAD"))
    _check_order(ends)
    suspected = {name: find_commit(repo, name, "suspect") for name in suspects}
    found = _walk(ends, full, paths, suspected, weight)
    return Range(found.points, [*uncommitted(repo), *found.warnings])


def inside(
    repo: Path,
    merge: Point,
    paths: Sequence[str] = (),
    suspects: Sequence[str] = (),
    weight: float = SUSPECT_WEIGHT,
) -> Range | None:
    """The branch that ``merge`` brought in, on its own line of first parents, from where it left to its tip.

    None where the commit is no merge, or its branch has no commit or no beginning of its own: then there is nothing
    to descend into. Of several merged branches, the first. ``paths``, ``suspects`` and ``weight`` as of commit_range,
    but suspects elsewhere are passed over. Raises CheckoutError where a shallow repository lacks the branch's history.
    """
    if len(merge.parents) < 2:
        return None
    line, tip = merge.parents[:2]
    base = _merge_base(repo, line, tip)
    if not base and is_shallow(repo):
        raise CheckoutError(
            f"{repo}: where the branch that {merge.name} merges began is not here, because the repository is shallow; "
            f"{DEEPEN}"
        )
    if base in ("", tip):
        return None
    ends = _Ends(repo, base[:12], base, tip[:12], tip)
    suspected = {name: find_commit(repo, name, "suspect") for name in suspects}
    if suspected:
        here = _parents(ends)
        suspected = {name: commit for name, commit in suspected.items() if commit in here}
    found = _walk(ends, False, paths, suspected, weight)
    if len(merge.parents) == 2:
        return found
    warning = (
        f"{merge.name} merges {len(merge.parents) - 1} branches at once: only the first of them, with tip {tip[:12]}, "
        "is searched; where the culprit is not on it, bisect to the tips of the others by hand"
    )
    return Range(found.points, [warning, *found.warnings])


def by_tree(points: Sequence[Point]) -> list[Point]:
    """``points`` for a command, which may read anything: the code of the one before is run only by an equal tree."""
    pairs = zip([None, *points[:-1]], points, strict=True)
    return [
        point.model_copy(
            update={
                "same_as_before": before is not None
                and before.tree == point.tree
                and (before.commit in point.parents or point.same_as_before)
            }
        )
        for before, point in pairs
    ]


def affected(repo: Path, points: Sequence[Point], full: bool = False) -> NDArray[np.bool_]:
    """Which points have which culprit, [points - 1, points]: row k, column x is True where points[x] has points[k + 1].

    ``full`` as the points were asked for: then git is asked for their ancestry, else each has all before it. Raises
    CheckoutError.
    """
    count = len(points)
    if not full:
        return np.triu(np.ones((count - 1, count), dtype=np.bool_), k=1)
    place = {point.commit: number for number, point in enumerate(points)}
    good, bad = points[0], points[-1]
    has: dict[str, int] = {}  # commit -> the set of points that it has, one bit each
    for commit, parents in _parents(_Ends(repo, good.name, good.commit, bad.name, bad.commit)).items():
        bits = 1 << place[commit] if commit in place else 0
        for parent in parents:
            bits |= has.get(parent, 0)
        has[commit] = bits
    size = -(-count // 8)
    rows = b"".join(has.get(point.commit, 0).to_bytes(size, "little") for point in points)
    bits_of = np.unpackbits(np.frombuffer(rows, dtype=np.uint8).reshape(count, size), axis=1, bitorder="little")
    return np.ascontiguousarray(bits_of[:, 1:count].T.astype(np.bool_))


def _check_order(ends: _Ends) -> None:
    """Raises CheckoutError where good is not an ancestor of bad, or bad itself."""
    repo, good, bad = ends.repo, ends.good, ends.bad
    if ends.first == ends.last:
        raise CheckoutError(
            f"{repo}: nothing between GOOD {good!r} and BAD {bad!r}: both are commit {ends.first[:12]}; "
            "name an older commit as GOOD"
        )
    base = _merge_base(repo, ends.first, ends.last)
    if base == ends.first:
        return
    if base == ends.last:
        raise CheckoutError(
            f"{repo}: good and bad seem to be swapped: BAD {bad!r} is an ancestor of GOOD {good!r}; write them the "
            f"other way round: {bad!r} as GOOD and {good!r} as BAD"
        )
    if is_shallow(repo):
        raise CheckoutError(
            f"{repo}: no way from BAD {bad!r} back to GOOD {good!r} is here, because the repository is shallow; "
            f"{DEEPEN}"
        )
    if base:
        raise CheckoutError(
            f"{repo}: GOOD {good!r} is not an ancestor of BAD {bad!r}, so no commits lie between them; they share "
            f"their history up to {base[:12]}: see that it is good, and name it as GOOD"
        )
    raise CheckoutError(
        f"{repo}: GOOD {good!r} and BAD {bad!r} have unrelated histories; name a GOOD that BAD came from"
    )


def _merge_base(repo: Path, one: str, other: str) -> str:
    """'' where the two commits share no history."""
    answer = try_git(repo, "merge-base", one, other)
    if answer.code not in (0, 1):
        raise CheckoutError(f"{repo}: git merge-base failed: {answer.last_word}")
    return answer.out.split()[0] if answer.code == 0 else ""


def _walk(ends: _Ends, full: bool, paths: Sequence[str], suspected: Mapping[str, str], weight: float) -> Range:
    way = "--topo-order" if full else "--first-parent"
    after = _commits(ends.repo, way, "--reverse", ends.between)
    _check_depth(ends, after)
    warnings = []
    fork = next(iter(after[0]["parents"]), "")
    if not full and fork != ends.first:
        began = f"began at {fork[:12]}" if fork else "has a beginning of its own"
        warnings.append(
            f"the good commit {ends.first[:12]} came into {printable(ends.bad)[:500]} by a merge: it is not on the "
            f"line of first parents that is searched, which {began}; the commits before that merge do not have it. "
            "The full history has both lines"
        )
    heavy = _heavy(ends, {commit["commit"] for commit in after}, suspected)
    if paths:
        touching = _touching(ends, full, paths)
        stand = touching | heavy | {ends.last}
        total, after = len(after), [commit for commit in after if commit["commit"] in stand]
        asked = printable(", ".join(paths))[:1000]
        if not touching:
            warnings.append(f"no commit of the range touches {asked}: check the spelling, or leave the paths out")
        if left_out := total - len(after):
            warnings.append(
                f"{left_out} of {total} commits left out, which touch none of {asked}; good, bad and suspects stand, "
                "whatever they touch"
            )
    fields = [*_commits(ends.repo, "--no-walk", ends.first), *after]
    for commit, same in zip(fields[1:], _same_as_before(ends.repo, fields, full), strict=True):
        commit["same_as_before"] = same
        commit["weight"] = weight if commit["commit"] in heavy else 1.0
    return Range([Point.model_validate(commit) for commit in fields], warnings)


def _commits(repo: Path, *walk: str) -> list[dict[str, Any]]:
    """The fields of a point for each commit, in the order of ``walk``, which is options and revisions of git log."""
    shown = "%x00".join(_FIELDS)
    out = git(repo, "log", "-z", f"--format={shown}", "--no-show-signature", *walk, "--", env=OFFLINE)
    words = iter(out.split("\0")[:-1])
    return [
        {
            "commit": commit,
            "tree": tree,
            "parents": parents.split(),
            "subject": printable(subject)[:500],
            "author": printable(author)[:500],
            "date": printable(date)[:500],
            "pull_request": _pull_request(printable(subject)),
        }
        for commit, tree, parents, author, date, subject in zip(*[words] * len(_FIELDS), strict=True)
    ]


def _pull_request(subject: str) -> int | None:
    found = _PULL_REQUEST.match(subject)
    return int(found[1] or found[2]) if found else None


def _check_depth(ends: _Ends, commits: Sequence[Mapping[str, Any]]) -> None:
    """Raises CheckoutError where the history was cut within the range."""
    cut = common_dir(ends.repo) / "shallow"  # gitformat-shallow: the commits whose parents are not here
    if not cut.is_file():
        return
    here = set(cut.read_text().split())
    if missing := next((commit["commit"] for commit in commits if commit["commit"] in here), None):
        raise CheckoutError(
            f"{ends.repo}: what lies between GOOD {ends.good!r} and BAD {ends.bad!r} is not all here: the repository "
            f"is shallow, cut at {missing[:12]}; {DEEPEN}"
        )


def _heavy(ends: _Ends, walked: set[str], suspected: Mapping[str, str]) -> set[str]:
    """The commits of the walk that the suspects are, or came in by."""
    if set(suspected.values()) <= walked:
        return set(suspected.values())
    carrier: dict[str, str] = {}
    parents = _parents(ends)
    for commit in (commit for commit in parents if commit in walked):  # older ones first: they keep what they brought
        stack = [commit]
        while stack:
            one = stack.pop()
            if one in parents and one not in carrier:
                carrier[one] = commit
                stack += parents[one]
    for name, commit in suspected.items():
        if commit not in carrier:
            raise CheckoutError(
                f"{ends.repo}: suspect {name!r} ({commit[:12]}) is outside the range: name a commit that BAD "
                f"{ends.bad!r} has and GOOD {ends.good!r} has not"
            )
    return {carrier[commit] for commit in suspected.values()}


def _parents(ends: _Ends) -> dict[str, list[str]]:
    """The parents of every commit that bad has and good has not; parents before children."""
    out = git(ends.repo, "rev-list", "--topo-order", "--reverse", "--parents", ends.between)
    lines = (line.split() for line in out.splitlines())
    return {commit: parents for commit, *parents in lines}


def _touching(ends: _Ends, full: bool, paths: Sequence[str]) -> set[str]:
    """The commits after good up to bad that touch one of the paths, or join lines that do; without ``full`` those on
    the line of first parents."""
    if any("\0" in path for path in paths):
        raise CheckoutError(f"{ends.repo}: a path to search has a NUL character in it; leave it out")
    way = ("--full-history", "--simplify-merges") if full else ("--first-parent",)  # else git prunes like branches
    return set(git(ends.repo, "rev-list", *way, ends.between, "--", *paths, env=OFFLINE).split())


def _same_as_before(repo: Path, fields: Sequence[Mapping[str, Any]], full: bool) -> list[bool]:
    """Of every commit but the first."""
    steps = list(pairwise(fields))
    if full and any(after["parents"] != [before["commit"]] for before, after in steps):
        # What lies before a commit need not be what it was made from: then a like tree would say nothing of it.
        return [before["commit"] in after["parents"] and before["tree"] == after["tree"] for before, after in steps]
    return same_code(repo, [(before["tree"], after["tree"]) for before, after in steps], inert)
