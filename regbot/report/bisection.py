"""The report of a bisection: one HTML file with every number. The file needs no network access and contains no scripts.

The module ``page`` supplies the Jinja environment. It escapes and cuts untrusted text, and replaces invisible
characters in such text.
"""

import math

from regbot.records.bisection import Bisection, Observation, Point
from regbot.records.verdict import Finding
from regbot.report import bisection_words as words
from regbot.report.page import SIGNS, build_environment
from regbot.report.posterior import posterior_svg, share
from regbot.report.quantities import milliseconds
from regbot.report.workload_section import kind_words
from regbot.text.units import binary_bytes

MAX_OBSERVATIONS = 400
MAX_CANDIDATES = 60
MAX_CHANGES = 40
MAX_FINDINGS = 40
MAX_NOTES = 100
"""Limits for the numbers of listed things. They are far above those of a normal bisection. The page says how much a
limit leaves out."""

VALUE_CHARACTERS = 16
"""Number of characters of a digest in the table. The tooltip shows the full digest."""

MAX_LOG = 700.0
"""Largest logarithm of a measured value. The exponential of a larger logarithm overflows. No real value is that
large."""


def html(result: Bisection) -> str:
    """Return the report of ``result`` as one HTML document."""
    environment = build_environment()
    environment.filters.update(share=share)
    template = environment.get_template("bisection.html.j2")
    return template.render(
        result=result,
        bisection_words=words,
        # The status whose colour and sign the report uses.
        tone=words.TONES[result.outcome],
        sign=SIGNS[words.TONES[result.outcome]],
        word=words.name_outcome(result),
        headline=words.headline(result),
        drawing=_draw_posterior(result),
        measured=_count_measurements(result),
        points=_collect_points(result),
        value=_format_value,
        volumes=_list_volumes,
        value_characters=VALUE_CHARACTERS,
        max_observations=MAX_OBSERVATIONS,
        max_candidates=MAX_CANDIDATES,
        max_changes=MAX_CHANGES,
        max_findings=MAX_FINDINGS,
        max_notes=MAX_NOTES,
    )


def _draw_posterior(result: Bisection) -> str:
    """Return the picture (SVG) of the posterior, the probability of each point of being the culprit. Return '' if there
    is none, as for an exact search or a search without measurable points. ``result.places`` are the points."""
    if result.exact or not result.places or result.outcome == "unmeasurable":
        return ""
    names = [words.point_name(place.key) for place in result.places]
    return posterior_svg(result.places, names, result.none_probability)


def _collect_points(result: Bisection) -> dict[str, Point]:
    """Return the points that the result describes with subject and author, by key. Other points have only a key."""
    changed_candidates = (candidate for change in result.changes for candidate in change.candidates)
    candidates = [*result.candidates, *result.unmeasurable, *changed_candidates]
    return {point.key: point for point in (result.good, result.bad, *(candidate.point for candidate in candidates))}


def _count_measurements(result: Bisection) -> str:
    """Return the number of measurements, and the number of those that are not usable: ``41, 3 not usable``."""
    unusable = sum(not observation.usable for observation in result.observations)
    return f"{len(result.observations)}{f', {unusable} not usable' if unusable else ''}"


def _format_value(observation: Observation, result: Bisection) -> str:
    """Return the value of a measurement: a time, a cost, or ``observation.state``, such as the digest of the
    collectives. A cost is the number that the measuring command prints.

    Noisy searches store the logarithms of their values. Of several summaries, the median is shown, else the mean, else
    the cost.
    """
    if result.exact or not observation.values:
        cost = observation.values.get("cost")
        return f"{cost:.10g}" if cost is not None else observation.state
    known_names = [name for name in ("median", "mean", "cost") if name in observation.values]
    first_name = known_names[0] if known_names else next(iter(observation.values))
    log_value = observation.values[first_name]
    value = math.exp(min(max(log_value, -MAX_LOG), MAX_LOG))
    return milliseconds(value, 4) if result.on == "time" else f"{value:.5g}"


def _list_volumes(finding: Finding) -> list[tuple[str, ...]]:
    """Return a row for each kind of collective in a finding: kind, count in base, count in head, bytes in base, bytes
    in head. A kind that an arm does not issue has 0."""
    rows: list[tuple[str, ...]] = []
    for kind in dict.fromkeys([*finding.base, *finding.head]):
        base, head = finding.base.get(kind), finding.head.get(kind)
        rows.append(
            (
                kind_words(kind),
                *(str(side.count) if side else "0" for side in (base, head)),
                *(binary_bytes(side.bytes) if side else "0 B" for side in (base, head)),
            )
        )
    return rows
