"""The report of a bisection: one HTML file that needs nothing else, no network, no script, and shows every number.

It borrows the page's environment, so that the words of others are escaped, made visible and cut as there.
"""

import math

from regbot.records.bisection import Bisection, Observation, Point
from regbot.records.verdict import Finding
from regbot.report import bisection_words as words
from regbot.report.measured import kind_words
from regbot.report.page import SIGNS, _environment
from regbot.report.posterior import posterior_svg, share
from regbot.report.quantities import milliseconds
from regbot.units import binary_bytes

OBSERVATIONS_SHOWN = 400
CANDIDATES_SHOWN = 60
CHANGES_SHOWN = 40
FINDINGS_SHOWN = 40
NOTES_SHOWN = 100
"""Far above what a bisection gives; a page that reaches one of these says so."""

VALUE_CHARACTERS = 16
"""Of a digest in the table; the whole of it is its title."""

LARGEST_LOG = 700.0
"""The exponential of more overflows; nothing that was measured comes near."""


def html(result: Bisection) -> str:
    """The report of ``result`` as one HTML document."""
    environment = _environment()
    environment.filters.update(share=share)
    template = environment.get_template("bisection.html.j2")
    return template.render(
        result=result,
        words_=words,
        tone=words.TONES[result.found],
        sign=SIGNS[words.TONES[result.found]],
        word=words.WORDS[result.found],
        headline=words.headline(result),
        drawing=_drawing(result),
        measured=_measured(result),
        points=_known(result),
        value=_value,
        volumes=_volumes,
        value_characters=VALUE_CHARACTERS,
        observations_shown=OBSERVATIONS_SHOWN,
        candidates_shown=CANDIDATES_SHOWN,
        changes_shown=CHANGES_SHOWN,
        findings_shown=FINDINGS_SHOWN,
        notes_shown=NOTES_SHOWN,
    )


def _drawing(result: Bisection) -> str:
    """The picture of the posterior; '' where nothing is uncertain, or there is nothing to draw."""
    if result.exact or not result.places or result.found == "unmeasurable":
        return ""
    names = [words.name_of(place.key) for place in result.places]
    return posterior_svg(result.places, names, result.none_probability)


def _known(result: Bisection) -> dict[str, Point]:
    """Points by their keys, as far as the result describes them."""
    of_changes = (one for change in result.changes for one in change.candidates)
    listed = [*result.candidates, *result.unmeasurable, *of_changes]
    return {point.key: point for point in (result.good, result.bad, *(one.point for one in listed))}


def _measured(result: Bisection) -> str:
    """``41 measurements, 3 of them not usable``."""
    broken = sum(not observation.usable for observation in result.observations)
    return f"{len(result.observations)}{f', {broken} not usable' if broken else ''}"


def _value(observation: Observation, result: Bisection) -> str:
    """What a measurement gave: a time, a cost, or what stands for the collectives."""
    if result.exact or not observation.values:
        cost = observation.values.get("cost")
        return f"{cost:.10g}" if cost is not None else observation.state
    value = next((observation.values[name] for name in ("median", "mean", "cost") if name in observation.values), None)
    value = next(iter(observation.values.values())) if value is None else value
    size = math.exp(min(max(value, -LARGEST_LOG), LARGEST_LOG))
    return milliseconds(size, 4) if result.on == "time" else f"{size:.5g}"


def _volumes(finding: Finding) -> list[tuple[str, ...]]:
    """Kind, counts before and after, bytes before and after, of each kind of collective that a finding is about."""
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
