"""Which commits are more suspicious than others before anything of them is measured: those that touch what ran.

A trace tells which source files it loaded. A commit that touches none of them can still be to blame (a lock file, a
data file, a module that a later commit loads), so it is less suspicious and not acquitted.
"""

from collections.abc import Collection, Sequence

from regbot.records.bisection import Point

UNTOUCHED = 0.05
"""Suspicion of a commit that touches no file that was loaded, relative to one that does."""


def by_loaded(
    points: Sequence[Point], touched: Sequence[Collection[str] | None], loaded: Collection[str]
) -> tuple[Point, ...]:
    """``points`` with their suspicion. ``touched``: for each but the first the files that it changes, None where they
    are not known; ``loaded``: files that good or bad has loaded."""
    if not loaded:
        return tuple(points)
    found = [points[0]]
    for point, files in zip(points[1:], touched, strict=True):
        aside = files is not None and not any(name in loaded for name in files)
        found.append(point.model_copy(update={"weight": point.weight * UNTOUCHED}) if aside else point)
    return tuple(found)
