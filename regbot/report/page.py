"""Render the view of a check as one HTML file with every number. The file needs no network access and has no scripts.

Jinja escapes everything it prints. Untrusted text is also made visible (no control characters, no bidirectional
overrides) and cut, so that no input can make the page unreadable or too large for a browser.
"""

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from regbot.records.session import Session
from regbot.records.verdict import Verdict
from regbot.report.markdown import Link, Name, Strong, UntrustedText, Words, log, visible
from regbot.report.notes import more
from regbot.report.plots import BOTTOM, LEFT, RIGHT, WIDTH, draw_plots
from regbot.report.tables import Items
from regbot.report.view import build_view, describe_finding

MAX_ROWS = 400
MAX_FINDINGS = 100
MAX_ENTRIES = 64
"""Limits for the numbers of rows, items and plotted workloads. They are far above those of normal shapes and meshes."""
NAME_CHARACTERS = 200
PROSE_CHARACTERS = 4000


def html(verdict: Verdict, session: Session) -> str:
    """Return the report of ``verdict`` as one HTML document."""
    view = build_view(verdict, session)
    environment = Environment(
        loader=PackageLoader("regbot.report"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(words=_render_words, name=lambda value: visible(value, NAME_CHARACTERS), log=log)
    environment.globals.update(more=more, max_rows=MAX_ROWS, left=LEFT, right=WIDTH - RIGHT, width=WIDTH, bottom=BOTTOM)
    findings = [describe_finding(item, view.check) for item in view.findings[:MAX_FINDINGS]]
    entries, thresholds = view.check.entries[:MAX_ENTRIES], session.header.throughput
    return environment.get_template("report.html.j2").render(
        view=view,
        findings=Items([*view.settings, *findings]),
        findings_cut=max(0, len(view.findings) - MAX_FINDINGS),
        warnings=Items(view.warnings),
        plots=[(entry.name, list(draw_plots(entry, thresholds))) for entry in entries],
    )


def _render_words(words: Words) -> Markup:
    """Return a sentence as HTML. Untrusted parts are made visible and cut, and a name becomes code."""
    parts, is_bold = [], False
    for word in words:
        if isinstance(word, Strong):
            parts.append(Markup("</b>" if is_bold else "<b>"))
            is_bold = not is_bold
        elif isinstance(word, Link) and word.address:
            parts.append(
                Markup('<a href="{}"><code>{}</code></a>').format(word.address, visible(word, NAME_CHARACTERS))
            )
        elif isinstance(word, Name):
            parts.append(Markup("<code>{}</code>").format(visible(word, NAME_CHARACTERS)))
        elif isinstance(word, UntrustedText):
            parts.append(escape(visible(word, PROSE_CHARACTERS)))
        else:
            parts.append(escape(word).replace("\n", Markup("<br>")))
    return Markup("").join(parts)
