"""GitHub-flavoured markdown that nobody else can write into.

Commit subjects, module paths, axis names, reasons and log lines are written by the author of a pull request. They
reach the comment only through ``code`` (a name), ``prose`` (a sentence) and ``fence`` (a log), each of which leaves
GitHub nothing to interpret: no markup, no table cell, no link, no mention, no reference to an issue.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence

Words = tuple[str, ...]
"""A sentence: plain ``str`` parts are ours, ``Name`` and ``Said`` parts are not."""

NAME_CHARACTERS = 120
PROSE_CHARACTERS = 1200
LOG_CHARACTERS = 2400
LOG_LINE_CHARACTERS = 240

_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories without a glyph of their own: controls, bidirectional overrides, lone surrogates, separators."""

_MARKUP = re.compile(r"[\\`*_{}\[\]<>#|~&!@$]|:(?=/)|(?<=www)\.|^(?:[-+=]|\d{1,9}[.)](?=\s|$))", re.IGNORECASE)
_CALLS = "@#"
"""GitHub looks for mentions and issue numbers after it has decoded entities, so these two also get a word joiner."""

_ISOLATE, _END_ISOLATE, _WORD_JOINER = "\u2068", "\u2069", "\u2060"


class Name(str):
    """A name that somebody else chose: shown as code."""

    __slots__ = ()


class Said(str):
    """A sentence that somebody else's words may stand in: shown as text."""

    __slots__ = ()


class Markdown(str):
    """Markdown already. Everything that is not of this type is escaped when a template prints it."""

    __slots__ = ()


def visible(value: str, limit: int) -> str:
    """``value`` on one line, every invisible character replaced by U+FFFD, cut at ``limit`` characters.

    Text that runs from right to left is isolated, so that it cannot reorder what stands beside it.
    """
    line = _shown(" ".join(value[: 4 * limit].split()), limit)
    return line if len(value) <= 4 * limit or line.endswith("…") else line + "…"


def log(value: str, limit: int = LOG_CHARACTERS) -> str:
    """The end of ``value``, line by line as ``visible`` but with its indentation, which a traceback needs."""
    lines = value[-limit:].expandtabs(4).splitlines()
    return "\n".join(_shown(line.rstrip(), LOG_LINE_CHARACTERS) for line in lines)


def code(value: str, limit: int = NAME_CHARACTERS) -> Markdown:
    """A name as code, fit for a table cell, which a bar would end even inside backticks: that takes the long way."""
    line = visible(value, limit)
    if not line:
        return Markdown("(none)")
    if "|" in line:
        return Markdown(f"<code>{_entities(line)}</code>")
    ticks = "`" * (_longest_run(line) + 1)
    pad = " " if line[0] == "`" or line[-1] == "`" else ""
    return Markdown(f"{ticks}{pad}{line}{pad}{ticks}")


def prose(value: str, limit: int = PROSE_CHARACTERS) -> Markdown:
    """A sentence as text: what markdown or GitHub would interpret becomes a character reference."""
    return Markdown(_MARKUP.sub(lambda found: _defused(found.group()), visible(value, limit)))


def fence(value: str, language: str = "text", limit: int = LOG_CHARACTERS) -> Markdown:
    """The end of a log as a fenced block that its content cannot close."""
    body = log(value, limit)
    ticks = "`" * max(3, _longest_run(body) + 1)
    return Markdown(f"{ticks}{language}\n{body}\n{ticks}")


def sentence(words: Sequence[str]) -> Markdown:
    """``words`` with every part that is not ours escaped."""
    return Markdown("".join(_part(word) for word in words))


def fit(lines: Iterable[str], characters: int) -> tuple[list[str], int]:
    """As many ``lines`` from the front as ``characters`` allow, and how many were left out."""
    kept: list[str] = []
    left = 0
    for line in lines:
        if left or len(line) + 1 > characters:
            left += 1
        else:
            kept.append(line)
            characters -= len(line) + 1
    return kept, left


def printed(value: object) -> object:
    """What a comment template prints for ``value``; the environment's ``finalize``."""
    if isinstance(value, Markdown):
        return value
    if isinstance(value, tuple):
        return sentence(value)
    return _part(Name(value)) if isinstance(value, Name) else prose(str(value))


def _shown(line: str, limit: int) -> str:
    line = "".join("\ufffd" if unicodedata.category(c) in _UNSEEN else c for c in line)
    line = line if len(line) <= limit else line[: limit - 1] + "…"
    reordering = any(unicodedata.bidirectional(c) in ("R", "AL") for c in line)
    return f"{_ISOLATE}{line}{_END_ISOLATE}" if reordering else line


def _part(word: str) -> str:
    if isinstance(word, Name):
        return code(word)
    return prose(word) if isinstance(word, Said) else word


def _defused(matched: str) -> str:
    return "".join(c if c.isdigit() else f"&#{ord(c)};" + (_WORD_JOINER if c in _CALLS else "") for c in matched)


def _entities(line: str) -> str:
    return "".join(c if (c.isascii() and c.isalnum()) or c == " " else _defused(c) for c in line)


def _longest_run(line: str) -> int:
    return max((len(run) for run in re.findall("`+", line)), default=0)
