"""Everything that is known of a bisection before its first measurement, and what git tells of it on the way."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from regbot.bisect import counting, history, noisy
from regbot.bisect.options import Options
from regbot.bisect.outline import run_of
from regbot.bisect.reuse import Reused
from regbot.bisect.span import Span, span_of
from regbot.bisect.suspicion import by_loaded
from regbot.checkout import CheckoutError
from regbot.checkout.changes import differing_files
from regbot.config import Config
from regbot.records.bisection import BisectionHeader, Observation, Point
from regbot.workloads import Task


@dataclass
class Site:
    """Everything that is known before the first measurement."""

    options: Options
    header: BisectionHeader
    config: Config
    tasks: dict[str, Task]
    reused: Reused
    span: Span
    stretch: counting.Stretch
    branches: dict[str, history.Range | None] = field(default_factory=dict)
    more_suspected: counting.Stretch | None = None
    """The range once good and bad have told what they load."""
    notes: list[str] = field(default_factory=list)
    """What was noticed on the way, for the report."""

    @property
    def terms(self) -> noisy.Terms:
        """How its noisy search is done."""
        return noisy.Terms.of(self.header, math.log1p(self.config.throughput.indifference_pct / 100))

    def branch(self, merge: Point) -> history.Range | None:
        """What a merge brought; None for a commit that is none, and where versions are walked."""
        if self.header.axis or self.header.full:
            return None
        if merge.key not in self.branches:
            try:
                found = history.inside(self.options.repo, merge, self.options.paths, self.options.suspects)
            except CheckoutError as error:  # a shallow clone: what was measured so far is an answer all the same
                found = None
                self.notes.append(f"what {merge.name} merged cannot be searched: {error}"[:4000])
            if found is not None:
                self.notes += found.warnings
                if self.header.on == "command":
                    found = replace(found, points=history.by_tree(found.points))
            self.branches[merge.key] = found
        return self.branches[merge.key]

    def inside(self, merge: Point) -> Span | None:
        found = self.branch(merge)
        if found is None:
            return None
        affected = history.affected(self.options.repo, found.points)
        name = f"inside {merge.key}"
        span = span_of(found.points, affected, noisy.INSIDE_NONE, self.span.smallest, name, merge.key)
        return span if len(span.points) > 1 else None  # a branch of documents brought no code

    def suspected(self, observations: Sequence[Observation]) -> counting.Stretch:
        """The range, with more suspicion on commits that touch what good and bad have loaded, once both have told."""
        if self.more_suspected is not None or self.stretch.affected is not None:
            return self.more_suspected or self.stretch
        points = self.stretch.points
        ends = {self.stretch.points[place].key for place in (self.stretch.of[0], self.stretch.of[-1])}
        told = [each for each in observations if each.usable and each.point in ends]
        if {each.point for each in told} != ends:
            return self.stretch
        runs = [run_of(self.options.out, each) for each in told]
        loaded = {name for run in runs if run is not None and run.code is not None for name in run.code.files}
        trees = [(before.tree, after.tree) for before, after in pairwise(points)]
        self.more_suspected = counting.Stretch(by_loaded(points, differing_files(self.options.repo, trees), loaded))
        return self.more_suspected

    def expand(self, merge: Point) -> counting.Stretch | None:
        found = self.branch(merge)
        return counting.Stretch(tuple(found.points), merge=merge.key) if found is not None else None
