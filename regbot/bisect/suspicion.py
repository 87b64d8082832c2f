"""Prior suspicion of commits: a commit that touches a loaded source file is more suspicious.

A trace lists the source files that the workload loaded. A commit that touches none of these files can still be the
culprit, through a lock file, a data file, or a module that a later commit loads. Its suspicion is lower, but not zero.
"""

from collections.abc import Collection, Sequence

from regbot.records.bisection import Point

UNTOUCHED_WEIGHT = 0.05
"""Suspicion of a commit that touches no loaded file, relative to a commit that touches one."""


def weigh_by_loaded_files(
    points: Sequence[Point], touched: Sequence[Collection[str] | None], loaded: Collection[str]
) -> tuple[Point, ...]:
    """Return ``points`` with a lower weight for commits that touch no loaded file.

    ``touched`` has the files that each commit changes, without the first point (good). It has None where they are not
    known. ``loaded`` has the files that good or bad loads. If it is empty, nothing is known and all weights stay.
    """
    if not loaded:
        return tuple(points)
    weighted = [points[0]]
    for point, files in zip(points[1:], touched, strict=True):
        touches_no_loaded_file = files is not None and not any(name in loaded for name in files)
        factor = UNTOUCHED_WEIGHT if touches_no_loaded_file else 1.0
        weighted.append(point.model_copy(update={"weight": point.weight * factor}))
    return tuple(weighted)
