"""GitHub-flavoured markdown that untrusted text cannot break.

The author of a pull request controls commit subjects, module paths, axis names, reasons and log lines. Such text
reaches the comment only through ``code`` (a name), ``prose`` (a sentence) and ``fence`` (a log). In their results
GitHub finds no markup, table cells, links, mentions, or references to issues, commits and advisories. It still finds
what the settings of the repository define as a reference, such as TICKET-7, and replaces names of emoji.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from regbot.records.text.clip import clip

Words = tuple[str, ...]
"""A sentence in parts. Parts of type ``str`` are trusted. Parts of type ``Name`` and ``UntrustedText`` are not
trusted."""

NAME_CHARACTERS = 120
PROSE_CHARACTERS = 1200
LOG_CHARACTERS = 2400
LOG_LINE_CHARACTERS = 240
"""Largest lengths of a name, a sentence, a log and a line of a log."""

_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories without a glyph of their own: controls, bidirectional overrides, lone surrogates, separators."""

# Markup anywhere in a line, "://" and "www." of links, the hyphen of GH-1, GHSA-1 and CVE-1, and markers of lists and
# headings at the start of a line.
_MARKUP = re.compile(
    r"[\\`*_{}\[\]<>#|~&!@$]|:(?=/)|(?<=www)\.|(?:(?<=gh)|(?<=ghsa)|(?<=cve))-(?=\w)"
    r"|^(?:[-+=]|\d{1,9}[.)](?=\s|$))",
    re.IGNORECASE,
)
_REFERENCES = "@#-"
"""Characters of a mention or of the number of an issue. GitHub looks for these after it decodes entities, so a word
joiner is put after each of them."""
_HASH = re.compile(r"(?<![0-9a-z])[0-9a-f]{7,}(?![0-9a-z])", re.ASCII | re.IGNORECASE)
"""What GitHub may take for the hash of a commit. It leaves code alone."""

_ISOLATE, _END_ISOLATE, _WORD_JOINER = "\u2068", "\u2069", "\u2060"
"""Invisible characters: begin and end of text whose direction does not affect its surroundings, and a joiner without
width."""


class Name(str):
    """An untrusted name, rendered as code."""

    __slots__ = ()


class Link(Name):
    """A name with a web address, which only the HTML page shows."""

    address = ""


class UntrustedText(str):
    """An untrusted sentence, rendered as escaped text."""

    __slots__ = ()


class Markdown(str):
    """Finished markdown."""

    __slots__ = ()


class Strong(str):
    """The mark before and after bold text, among the trusted parts of a sentence."""

    __slots__ = ()


STRONG = Strong("**")


def visible(value: str, limit: int) -> str:
    """Return ``value`` on one line, with invisible characters replaced by U+FFFD, cut at ``limit`` characters.

    Right-to-left text is isolated, so that it cannot reorder the text around it.
    """
    beginning = value[: 4 * limit]  # enough, except for a text that is mostly white space
    line = _make_visible(" ".join(beginning.split()), limit)
    is_marked_as_cut = line.endswith("…")
    return line if beginning == value or is_marked_as_cut else line + "…"


def log(value: str, limit: int = LOG_CHARACTERS) -> str:
    """Return the last ``limit`` characters of a log, with invisible characters replaced. Indentation is kept, because
    tracebacks need it."""
    lines = value[-limit:].expandtabs(4).splitlines()
    return "\n".join(_make_visible(line.rstrip(), LOG_LINE_CHARACTERS) for line in lines)


def code(value: str, limit: int = NAME_CHARACTERS) -> Markdown:
    """Return a name as code, safe in a table cell. A name with a bar is put into ``<code>``, because a bar ends a table
    cell even within backticks."""
    line = visible(value, limit)
    if not line:
        return Markdown("(none)")
    if "|" in line:
        return Markdown(f"<code>{_escape_all(line)}</code>")
    ticks = "`" * (_count_longest_backticks(line) + 1)
    pad = " " if line[0] == "`" or line[-1] == "`" else ""
    return Markdown(f"{ticks}{pad}{line}{pad}{ticks}")


def prose(value: str, limit: int = PROSE_CHARACTERS) -> Markdown:
    """Return a sentence as text. Characters that markdown or GitHub interpret become character references, and hashes
    become code."""
    escaped = _MARKUP.sub(lambda match: "".join(map(_escape_character, match.group())), visible(value, limit))
    return Markdown(_HASH.sub(r"<code>\g<0></code>", escaped))


def fence(value: str, language: str = "text") -> Markdown:
    """Return a log or commands as a fenced block that its content cannot close. Of a long text, the end is kept."""
    body = log(value)
    ticks = "`" * max(3, _count_longest_backticks(body) + 1)
    return Markdown(f"{ticks}{language}\n{body}\n{ticks}")


def sentence(words: Sequence[str]) -> Markdown:
    """Return ``words`` as one sentence, with untrusted parts escaped."""
    return Markdown("".join(_escape_part(word) for word in words))


def fit(lines: Iterable[str], characters: int) -> tuple[list[str], int]:
    """Return the first ``lines`` whose total length is at most ``characters``, and the number of dropped lines. After
    the first line that does not fit, all lines are dropped."""
    fitting: list[str] = []
    dropped = 0
    for line in lines:
        length = len(line) + 1  # with the line end
        if dropped or length > characters:
            dropped += 1
        else:
            fitting.append(line)
            characters -= length
    return fitting, dropped


def _make_visible(line: str, limit: int) -> str:
    """Replace invisible characters, cut the line at ``limit`` characters, and isolate right-to-left text."""
    line = "".join("\ufffd" if unicodedata.category(character) in _INVISIBLE else character for character in line)
    line = clip(line, limit)
    is_reordering = any(unicodedata.bidirectional(character) in ("R", "AL") for character in line)
    return f"{_ISOLATE}{line}{_END_ISOLATE}" if is_reordering else line


def _escape_part(word: str) -> str:
    """Return a part of a sentence as markdown. A part of type ``str`` is trusted and stays as it is."""
    if isinstance(word, Name):
        return code(word)
    return prose(word) if isinstance(word, UntrustedText) else word


def _escape_character(character: str) -> str:
    """Return a character reference. A digit stays, because it is markup only together with the next character."""
    if character.isdigit():
        return character
    joiner = _WORD_JOINER if character in _REFERENCES else ""
    return f"&#{ord(character)};{joiner}"


def _escape_all(line: str) -> str:
    """Escape everything except ASCII letters, ASCII digits and spaces."""
    return "".join(
        character if character == " " or (character.isascii() and character.isalnum()) else _escape_character(character)
        for character in line
    )


def _count_longest_backticks(line: str) -> int:
    return max((len(backticks) for backticks in re.findall("`+", line)), default=0)
