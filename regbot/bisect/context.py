"""The inputs of a bisection, and the git queries that its search makes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from regbot.bisect import exact_search, history, noisy
from regbot.bisect.options import BisectionOptions
from regbot.bisect.outline import load_run
from regbot.bisect.reuse import ReusedRuns
from regbot.bisect.span import NoisySpan, build_span
from regbot.bisect.suspicion import weigh_by_loaded_files
from regbot.checkout import CheckoutError
from regbot.checkout.changes import list_differing_files
from regbot.config import Config
from regbot.records.bisection import BisectionHeader, Observation, Point
from regbot.text.clip import clip_message
from regbot.workloads import Task


@dataclass
class BisectionSetup:
    """The inputs of a bisection, and a cache of what its search has read from git."""

    options: BisectionOptions
    header: BisectionHeader
    config: Config
    tasks: dict[str, Task]
    """The workloads to measure, by entry; {} if a command is measured."""
    reused_runs: ReusedRuns
    """Runs of an earlier check of the same commits, and what that check saw."""
    noisy_span: NoisySpan
    exact_span: exact_search.ExactSpan
    """The same range for a search on exact values. A bisection uses one of the two spans."""
    merged_ranges: dict[str, history.CommitRange | None] = field(default_factory=dict)
    """Cache: key of a merge -> the commits that it brought in."""
    weighted_span: exact_search.ExactSpan | None = None
    """Cache: ``exact_span`` with weights that depend on the source files that good and bad load. None until good and
    bad are measured.
    """
    notes: list[str] = field(default_factory=list)
    """Warnings that arose during the search, for the report."""

    @property
    def search_settings(self) -> noisy.SearchSettings:
        return noisy.SearchSettings.from_header(self.header, math.log1p(self.config.throughput.indifference_pct / 100))

    def merged_range(self, merge: Point) -> history.CommitRange | None:
        """Return the commits that ``merge`` brought in; None if there is nothing to expand.

        There is nothing to expand in four cases: the commit is no merge, git cannot list the branch, the points are
        versions of a dependency, or the range already has the commits of all branches.
        """
        if self.header.axis or self.header.full:
            return None
        if merge.key not in self.merged_ranges:
            try:
                merged = history.list_merged_commits(
                    self.options.repo, merge, self.options.paths, self.options.suspects, self.config.inert
                )
            # A shallow clone may lack the branch. The search goes on, because its other measurements are still useful.
            except CheckoutError as error:
                merged = None
                self.notes.append(clip_message(f"the commits that {merge.name} merged cannot be searched: {error}"))
            if merged is not None:
                self.notes += merged.warnings
                if self.header.on == "command":  # a command may read any file, so only equal trees are the same code
                    merged = replace(merged, points=history.match_trees(merged.points))
            self.merged_ranges[merge.key] = merged
        return self.merged_ranges[merge.key]

    def expand_merge_noisy(self, merge: Point) -> NoisySpan | None:
        """Return the span of the commits that ``merge`` brought in; None if there is nothing to search."""
        merged = self.merged_range(merge)
        if merged is None:
            return None
        containment = history.containment_matrix(self.options.repo, merged.points)
        span_name = f"inside {merge.key}"
        # "No culprit" in this span means that the merge itself is the culprit.
        span = build_span(
            merged.points, containment, noisy.MERGE_ITSELF_PRIOR, self.noisy_span.smallest, span_name, merge.key
        )
        # The first place of the span is the fork. Without a second place, the branch runs the same code as the fork.
        changes_code = len(span.points) > 1
        return span if changes_code else None

    def weigh_exact_span(self, observations: Sequence[Observation]) -> exact_search.ExactSpan:
        """Return the range, with lower weights for commits that touch none of the files that good and bad load.

        The weights are unchanged until good and bad are measured. They never change in a history with branches.
        """
        if self.weighted_span is not None:
            return self.weighted_span
        has_branches = self.exact_span.affected is not None
        if has_branches:
            return self.exact_span
        points = self.exact_span.points
        end_keys = {points[end].key for end in self.exact_span.ends}
        end_runs = [observation for observation in observations if observation.usable and observation.point in end_keys]
        if {observation.point for observation in end_runs} != end_keys:
            return self.exact_span
        runs = [load_run(self.options.out, observation) for observation in end_runs]
        code_of_runs = [run.code for run in runs if run is not None and run.code is not None]
        loaded_files = {name for code in code_of_runs for name in code.files}
        trees = [(before.tree, after.tree) for before, after in pairwise(points)]
        self.weighted_span = exact_search.ExactSpan(
            weigh_by_loaded_files(points, list_differing_files(self.options.repo, trees), loaded_files)
        )
        return self.weighted_span

    def expand_merge_exact(self, merge: Point) -> exact_search.ExactSpan | None:
        """Return the range of the commits that ``merge`` brought in; None if there is nothing to search."""
        merged = self.merged_range(merge)
        return exact_search.ExactSpan(tuple(merged.points), merge=merge.key) if merged is not None else None
