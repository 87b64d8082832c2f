"""The comment's table of step times: one row for each timed workload, and below it what the numbers cannot say."""

from collections.abc import Iterator, Sequence

from regbot.records.settings import Throughput as Thresholds
from regbot.records.verdict import Throughput
from regbot.report.markdown import Markdown, code, fit, sentence
from regbot.report.measured import Measured
from regbot.report.quantities import milliseconds, with_interval
from regbot.report.state import Check
from regbot.report.throughput import (
    Answer,
    answer,
    because,
    decided,
    has_times,
    moved,
    only_the_mean,
    place,
    timed_entries,
)
from regbot.report.wording import ICONS

EXPLANATIONS = 4
PLACES = 2
COLUMNS = ("workload", "base step", "head step", "change", "pairs", "throughput")


def step_times(check: Check, characters: int) -> Markdown:
    """The table with its lines; '' where no workload has a throughput section."""
    found = timed_entries(check.entries)
    thresholds = check.session.header.throughput
    shown = [(entry, section) for entry, section in found if has_times(section)]
    parts = [*_table(shown, thresholds, characters)] if shown else []
    parts += _without_times([(entry, section) for entry, section in found if not has_times(section)], thresholds)
    places = dict.fromkeys(sentence(place(section, entry.timed)) for entry, section in found if entry.timed.runs)
    return Markdown("\n\n".join([*parts, *list(places)[:PLACES]]))


def _table(shown: Sequence[tuple[Measured, Throughput]], thresholds: Thresholds, characters: int) -> Iterator[str]:
    kept, cut = fit((_row(_cells(entry, section, thresholds)) for entry, section in shown), characters)
    yield "\n".join([_row(COLUMNS), _row(("---",) * len(COLUMNS)), *kept])
    if cut:
        yield f"…and {cut} more rows, see the report."
    groups: dict[str, list[str]] = {}
    for entry, section in shown:
        if words := sentence(because(entry, section)):
            groups.setdefault(words, []).append(code(entry.name, 80))
    told = [f"- {_some(names)}: {words}" for words, names in groups.items()][:EXPLANATIONS]
    if told:
        yield "\n".join(told)


def _cells(entry: Measured, section: Throughput, thresholds: Thresholds) -> tuple[str, ...]:
    sign = ICONS[section.status]
    pairs = str(section.pairs) + (f" ({section.void_pairs} void)" if section.void_pairs else "")
    return (
        code(entry.name),
        _step(section.base_step_s),
        _step(section.head_step_s),
        _change(section),
        pairs if section.pairs or section.void_pairs else "",
        f"{sign} {decided(section, thresholds)}",
    )


def _step(seconds: float | None) -> str:
    return "" if seconds is None else milliseconds(seconds)


def _change(section: Throughput) -> str:
    """The median's change; where only the mean decided, the mean's below it."""
    words = moved(section)
    if words and answer(section) in (Answer.SLOWER, Answer.FASTER):
        number, _, ends = words.partition(" ")
        words = f"**{number}** {ends}".rstrip()
    if mean := only_the_mean(section):
        own = with_interval(mean.estimate_pct, mean.low_pct, mean.high_pct)
        words = f"median {moved(section)}<br>mean **{own.replace(' ', '** ', 1)}"
    return words


def _without_times(found: Sequence[tuple[Measured, Throughput]], thresholds: Thresholds) -> list[str]:
    """No row without times: one line for each answer."""
    groups: dict[str, list[str]] = {}
    for entry, section in found:
        words = f"{ICONS[section.status]} **Throughput** {decided(section, thresholds)}"
        why = sentence(because(entry, section))
        groups.setdefault(f"{words}: {why}" if why else words, []).append(code(entry.name, 80))
    return [f"{words.rstrip('.')}. In {_some(names)}." for words, names in groups.items()][:EXPLANATIONS]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - EXPLANATIONS} more" if len(names) > EXPLANATIONS else ""
    return f"{', '.join(names[:EXPLANATIONS])}{more}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
