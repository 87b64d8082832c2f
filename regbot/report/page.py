"""The report: one HTML file that needs nothing else, no network, no script, and shows every number there is.

Jinja escapes whatever it prints. On top of that the words of others are made visible first (no control characters, no
bidirectional overrides) and cut, so that no input can make the page unreadable or larger than a browser likes.
"""

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from regbot.ledgers.rows import Row
from regbot.records.session import Session
from regbot.records.verdict import Verdict
from regbot.report import advice, wording
from regbot.report.answers import answers
from regbot.report.curves import losses, traces
from regbot.report.evidence import by_arm, outcome, timed_evidence
from regbot.report.markdown import Name, Said, Words, log, visible
from regbot.report.measured import Measured, kind_words
from regbot.report.picture import KINDS, bars, picture
from regbot.report.plots import LEFT, WIDTH, ratios, strip
from regbot.report.quantities import count, milliseconds
from regbot.report.state import Check, State, check_of
from regbot.report.throughput import able, because, beside, decided, has_times, moved, place
from regbot.report.unmeasured import unmeasured
from regbot.units import binary_bytes

ROWS_SHOWN = 400
RUNS_SHOWN = 200
RANKS_SHOWN = 128
FINDINGS_SHOWN = 100
ENTRIES_SHOWN = 64
"""Far above what shapes and meshes give; a page that reaches one of these says so."""

NAME_CHARACTERS = 200
PROSE_CHARACTERS = 4000

SIGNS = {"PASS": "✓", "FAIL": "✕", "INVALID": "⊘", "REVIEW": "!", "INCONCLUSIVE": "?", "SHOWN": "○"}


def html(verdict: Verdict, session: Session) -> str:
    """The report of ``verdict`` as one HTML document."""
    check = check_of(verdict, session)
    found = advice.findings(check)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            check=check,
            verdict=verdict,
            session=session,
            tone="SHOWN" if check.state is State.SHOWN else verdict.verdict,
            word=wording.word(check),
            headline=wording.headline(check),
            short=advice.SHORT,
            overrides=wording.overrides,
            findings=found[:FINDINGS_SHOWN],
            findings_cut=max(0, len(found) - FINDINGS_SHOWN),
            steps=advice.next_steps(check),
            warnings=list(dict.fromkeys([*verdict.warnings, *session.header.warnings]))[:FINDINGS_SHOWN],
            entries=check.entries[:ENTRIES_SHOWN],
            entries_cut=max(0, len(check.entries) - ENTRIES_SHOWN),
            kinds=_kinds(check),
            unmeasured=unmeasured(verdict, session.header),
            thresholds=session.header.throughput,
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("regbot.report"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        name=lambda value: visible(str(value), NAME_CHARACTERS),
        prose=lambda value: visible(str(value), PROSE_CHARACTERS),
        log=log,
        words=_words,
        binary=binary_bytes,
        kind=kind_words,
        wire=milliseconds,
        fine=lambda seconds: milliseconds(seconds, 4),
        setting=lambda value: "absent" if value is None else str(value),
    )
    environment.globals.update(
        picture=picture,
        bars=bars,
        by_arm=by_arm,
        timed_evidence=timed_evidence,
        outcome=outcome,
        answers=answers,
        able=able,
        beside=beside,
        count=count,
        decided=decided,
        has_times=has_times,
        moved=moved,
        place=place,
        because=because,
        strip=strip,
        ratios=ratios,
        traces=traces,
        losses=losses,
        left=LEFT,
        width=WIDTH,
        ranks_shown=RANKS_SHOWN,
        opened=_opened,
        per_layer=_per_layer,
        sign=SIGNS,
        rows_shown=ROWS_SHOWN,
        runs_shown=RUNS_SHOWN,
    )
    return environment


def _words(words: Words) -> Markup:
    parts = []
    for word in words:
        if isinstance(word, Name):
            parts.append(Markup("<code>{}</code>").format(visible(word, NAME_CHARACTERS)))
        else:
            parts.append(escape(visible(word, PROSE_CHARACTERS) if isinstance(word, Said) else word))
    return Markup("").join(parts)


def _opened(entry: Measured, check: Check) -> bool:
    """Whether a workload's section starts unfolded: when there is something to see."""
    moved_ = entry.throughput is not None and entry.throughput.decision == "improved"
    return bool(entry.changed or entry.findings) or moved_ or entry.status != "PASS" or len(check.entries) == 1


def _per_layer(row: Row) -> str:
    """``2 → 0``, where every layer that has any has as many."""
    if "*" not in row.template or row.base.count % row.layers or row.head.count % row.layers:
        return ""
    base, head = row.base.count // row.layers, row.head.count // row.layers
    return str(base) if base == head else f"{base} → {head}"


def _kinds(check: Check) -> list[str]:
    present = {line.kind for entry in check.entries for line in entry.lines}
    return [kind for kind in KINDS if kind in present]
