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
    """Return ``points`` with weights that depend on the files that each commit touches.

    ``touched`` has, for each point but the first, the files that the commit changes; None if they are not known.
    ``loaded`` has the files that good or bad loads.
    """
    if not loaded:
        return tuple(points)
    weighted = [points[0]]
    for point, files in zip(points[1:], touched, strict=True):
        is_untouched = files is not None and not any(name in loaded for name in files)
        weighted.append(point.model_copy(update={"weight": point.weight * UNTOUCHED_WEIGHT}) if is_untouched else point)
    return tuple(weighted)
