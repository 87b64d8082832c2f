"""The report of a check: one HTML file with every number. The file needs no network access and contains no scripts.

Jinja escapes everything it prints. Untrusted text is also made visible (no control characters, no bidirectional
overrides) and cut, so that no input can make the page unreadable or too large for a browser.
"""

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from regbot.ledgers.rows import Row
from regbot.records.session import Session
from regbot.records.text.clip import clip_line, short_commit
from regbot.records.text.units import binary_bytes
from regbot.records.text.words import count
from regbot.records.verdict import Throughput, Verdict
from regbot.report import advice
from regbot.report import headline as wording
from regbot.report.answers import answer_questions
from regbot.report.baseline_row import describe_stored
from regbot.report.curves import draw_losses, draw_step_curves
from regbot.report.evidence import collect_evidence, format_outcome
from regbot.report.markdown import Name, UntrustedText, Words, log, visible
from regbot.report.not_measured import list_unmeasured
from regbot.report.plots import LEFT, WIDTH, draw_ratios, draw_runs
from regbot.report.quantities import milliseconds
from regbot.report.state import Check, State, prepare_check
from regbot.report.throughput import (
    describe_decision,
    describe_expert_shares,
    describe_power,
    describe_setup,
    explain_entry,
    format_change,
    has_times,
    list_significant_metrics,
)
from regbot.report.workload_section import WorkloadSection, kind_words

MAX_ROWS = 400
MAX_RUNS = 200
MAX_RANKS = 128
MAX_FINDINGS = 100
MAX_ENTRIES = 64
"""Limits for the numbers of listed things. They are far above those of normal shapes and meshes. The page says how much
a limit leaves out."""

NAME_CHARACTERS = 200
PROSE_CHARACTERS = 4000

SIGNS = {"PASS": "✓", "FAIL": "✕", "INVALID": "⊘", "REVIEW": "!", "INCONCLUSIVE": "?", "SHOWN": "○"}
"""Status -> sign beside its word. SHOWN is for a check that is not judged."""


def html(verdict: Verdict, session: Session) -> str:
    """Return the report of ``verdict`` as one HTML document."""
    check = prepare_check(verdict, session)
    shared = advice.share_findings(check)
    return (
        build_environment()
        .get_template("report.html.j2")
        .render(
            check=check,
            verdict=verdict,
            session=session,
            # The status whose colour and sign the report uses.
            tone="SHOWN" if check.state is State.NOT_JUDGED else verdict.verdict,
            word=wording.word(check),
            headline=wording.headline(check),
            overrides=wording.overrides,
            findings=shared[:MAX_FINDINGS],
            findings_cut=max(0, len(shared) - MAX_FINDINGS),
            steps=advice.advise_next_steps(check),
            warnings=list(dict.fromkeys([*verdict.warnings, *session.header.warnings]))[:MAX_FINDINGS],
            entries=check.entries[:MAX_ENTRIES],
            entries_cut=max(0, len(check.entries) - MAX_ENTRIES),
            unmeasured=list_unmeasured(verdict, session.header, has_other_operators=check.has_only_other_operators),
            thresholds=session.header.throughput,
        )
    )


def build_environment() -> Environment:
    """Return the Jinja environment of the reports, with the filters and functions that the templates call."""
    environment = Environment(
        loader=PackageLoader("regbot.report"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        clip_line=clip_line,
        short_commit=short_commit,
        name=lambda value: visible(str(value), NAME_CHARACTERS),
        prose=lambda value: visible(str(value), PROSE_CHARACTERS),
        log=log,
        words=_render_words,
        binary=binary_bytes,
        kind=kind_words,
        wire=milliseconds,
        fine=lambda seconds: milliseconds(seconds, 4),
        setting=lambda value: "absent" if value is None else str(value),
    )
    environment.globals.update(
        collect_evidence=collect_evidence,
        format_outcome=format_outcome,
        answer_questions=answer_questions,
        describe_power=describe_power,
        list_significant_metrics=list_significant_metrics,
        count=count,
        describe_decision=describe_decision,
        has_times=has_times,
        format_change=_join_change,
        describe_setup=describe_setup,
        describe_expert_shares=describe_expert_shares,
        describe_stored=describe_stored,
        explain_entry=explain_entry,
        draw_runs=draw_runs,
        draw_ratios=draw_ratios,
        draw_step_curves=draw_step_curves,
        draw_losses=draw_losses,
        left=LEFT,
        width=WIDTH,
        max_ranks=MAX_RANKS,
        is_open=_is_open,
        per_layer=_format_per_layer,
        sign=SIGNS,
        max_rows=MAX_ROWS,
        max_runs=MAX_RUNS,
    )
    return environment


def _join_change(section: Throughput) -> str:
    """Return the change of the median step time with its interval, ``+46.7% [+38.2, +55.9]``; '' if unknown."""
    return " ".join(filter(None, format_change(section)))


def _render_words(words: Words) -> Markup:
    """Return a sentence as HTML. Untrusted parts are made visible and cut, and a name becomes code."""
    parts = []
    for word in words:
        if isinstance(word, Name):
            parts.append(Markup("<code>{}</code>").format(visible(word, NAME_CHARACTERS)))
        elif isinstance(word, UntrustedText):
            parts.append(escape(visible(word, PROSE_CHARACTERS)))
        else:
            parts.append(escape(word))
    return Markup("").join(parts)


def _is_open(entry: WorkloadSection, check: Check) -> bool:
    """Return whether the section of a workload is shown open. It is open if the workload has changes or findings,
    became faster, did not pass, or is the only workload."""
    has_changes = bool(entry.changed or entry.findings)
    improved = entry.throughput is not None and entry.throughput.decision == "improved"
    return has_changes or improved or entry.status != "PASS" or len(check.entries) == 1


def _format_per_layer(row: Row) -> str:
    """Return the counts per layer in base and head, such as ``2 → 0``, or one number if they are equal.

    Return '' for a row outside of layers, and for counts that the number of layers does not divide.
    """
    is_in_layers = "*" in row.template  # a template has "*" in place of the number of a layer
    if not is_in_layers or row.base.count % row.layers or row.head.count % row.layers:
        return ""
    base_per_layer, head_per_layer = row.base.count // row.layers, row.head.count // row.layers
    return str(base_per_layer) if base_per_layer == head_per_layer else f"{base_per_layer} → {head_per_layer}"
