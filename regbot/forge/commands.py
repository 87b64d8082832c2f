"""Comment commands: ``/regbot run SHA`` and the like, from the text of a comment to data.

A command is the first line of a comment and matches exactly: one space between words, lower case, nothing before it.
So a command in a quotation, in a code block or further down is talk about a command. Text below it is for people; a
second command there makes both of them none. The words of a command are checked against narrow alphabets and are data
from here on: they go to GitHub as JSON and to a workflow as inputs, never into the line of a shell.

Who may give which command is told by ``permission``, whether its commit may run by ``approval``.
"""

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal, get_args

from regbot.judge import ExpectationError, parse_expectation

Verb = Literal["run", "more", "bisect", "expect", "accept"]
VERBS: tuple[Verb, ...] = get_args(Verb)

FORMS: dict[Verb, str] = {
    "run": "/regbot run SHA [with-protected-files]",
    "more": "/regbot more SHA [PAIRS]",
    "bisect": "/regbot bisect GOOD..BAD [WORKLOAD]",
    "expect": "/regbot expect pattern@axis@workload: reason",
    "accept": "/regbot accept SHA: reason",
}
"""How each is typed. SHA, GOOD and BAD are whole: 40 hexadecimal digits."""

MAX_BODY_CHARACTERS = 65_536
"""GitHub's own limit of a comment."""
MAX_LINE_CHARACTERS = 1000
MAX_REASON_CHARACTERS = 500
MAX_PAIRS = 64
DEFAULT_PAIRS = 4
"""As many as lie between two looks of a session."""

_WORD = "/regbot"
_PROTECTED = "with-protected-files"
_ADDRESSED = re.compile(r"/regbot(?![\w./-])", re.IGNORECASE | re.ASCII)
"""Text that means us. ``/regbotics`` and ``/regbot/forge`` do not."""
_LATER = re.compile(r"^[ \t]*/regbot(?![\w./-])", re.IGNORECASE | re.ASCII | re.MULTILINE)
_SHA = "[0-9a-f]{40}"
_RUN = re.compile(rf"({_SHA})( {_PROTECTED})?")
_MORE = re.compile(rf"({_SHA})(?: ([1-9][0-9]{{0,3}}))?")
_BISECT = re.compile(rf"({_SHA})\.\.({_SHA})(?: ([A-Za-z0-9][A-Za-z0-9_.@:/-]{{0,127}}))?")
_ACCEPT = re.compile(rf"({_SHA}): ?(\S.*)")
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@dataclass(frozen=True)
class Run:
    """Measure a commit. ``protected``: although it changes protected files."""

    sha: str
    protected: bool = False


@dataclass(frozen=True)
class More:
    """Time more pairs of a commit that was measured."""

    sha: str
    pairs: int = DEFAULT_PAIRS


@dataclass(frozen=True)
class Bisect:
    """Find the culprit between two commits. ``workload`` is '' for all that the default branch has."""

    good: str
    bad: str
    workload: str = ""


@dataclass(frozen=True)
class Expect:
    """Declare a change of the sharding as meant. ``rule`` is as ``regbot.judge.parse_expectation`` takes it."""

    rule: str


@dataclass(frozen=True)
class Accept:
    """Accept what a verdict of REVIEW shows of a commit."""

    sha: str
    reason: str


Command = Run | More | Bisect | Expect | Accept


@dataclass(frozen=True)
class Misunderstood:
    """Meant as a command, and none. ``verb`` is None where not even that could be read.

    ``problem`` may quote what was written: it is shown as somebody else's words.
    """

    verb: Verb | None
    problem: str


def parse(body: str) -> Command | Misunderstood | None:
    """The command of a comment; None where the comment means nobody here. Never raises."""
    if not _ADDRESSED.match(body):
        return None
    if len(body) > MAX_BODY_CHARACTERS:
        return Misunderstood(None, f"the comment has more than {MAX_BODY_CHARACTERS:,} characters")
    first, _, below = body.partition("\n")
    line = first.removesuffix("\r").rstrip(" \t")
    if len(line) > MAX_LINE_CHARACTERS:
        return Misunderstood(None, f"the line has more than {MAX_LINE_CHARACTERS:,} characters")
    if any(unicodedata.category(character) in _UNSEEN for character in line):
        return Misunderstood(None, "the line holds characters that cannot be seen; type it instead of pasting it")
    if line != _WORD and not line.startswith(f"{_WORD} "):
        return Misunderstood(None, f"a command begins with {_WORD} in lower case and one space")
    word, _, rest = line[len(_WORD) + 1 :].partition(" ")
    verb = next((known for known in VERBS if known == word), None)
    if verb is None:
        return Misunderstood(
            None, f"there is no command {word!r}" if word else "the command is missing, with one space before it"
        )
    if _LATER.search(below):
        return Misunderstood(verb, "the comment holds more than one command; write one comment for each")
    return _PARSERS[verb](rest)


def typed(command: Command) -> str:
    """The line that ``parse`` reads as ``command``."""
    match command:
        case Run(sha, protected):
            return f"{_WORD} run {sha}{f' {_PROTECTED}' if protected else ''}"
        case More(sha, pairs):
            return f"{_WORD} more {sha} {pairs}"
        case Bisect(good, bad, workload):
            return f"{_WORD} bisect {good}..{bad} {workload}".rstrip()
        case Expect(rule):
            return f"{_WORD} expect {rule}"
        case Accept(sha, reason):
            return f"{_WORD} accept {sha}: {reason}"


def _run(rest: str) -> Run | Misunderstood:
    if found := _RUN.fullmatch(rest):
        return Run(found[1], bool(found[2]))
    if re.match(rf"{_SHA} ", rest):
        return Misunderstood("run", f"behind the commit nothing may stand but {_PROTECTED}")
    return Misunderstood("run", _no_commit(rest))


def _more(rest: str) -> More | Misunderstood:
    if not (found := _MORE.fullmatch(rest)):
        named = re.match(rf"{_SHA} ", rest)
        return Misunderstood("more", "PAIRS is no whole number above 0" if named else _no_commit(rest))
    pairs = int(found[2]) if found[2] else DEFAULT_PAIRS
    if pairs > MAX_PAIRS:
        return Misunderstood("more", f"PAIRS is above {MAX_PAIRS}, the most that one command may ask for")
    return More(found[1], pairs)


def _bisect(rest: str) -> Bisect | Misunderstood:
    if not (found := _BISECT.fullmatch(rest)):
        named = re.match(rf"{_SHA}\.\.{_SHA} ", rest)
        return Misunderstood(
            "bisect",
            "WORKLOAD is no name of a workload"
            if named
            else "GOOD..BAD are two commits with two dots between them, each of 40 lower-case hexadecimal digits: a "
            "branch or a shortened commit may be another one a moment later",
        )
    if found[1] == found[2]:
        return Misunderstood("bisect", "GOOD and BAD are one commit")
    return Bisect(found[1], found[2], found[3] or "")


def _expect(rest: str) -> Expect | Misunderstood:
    try:
        rule = parse_expectation(rest)
    except ExpectationError as error:
        return Misunderstood("expect", str(error).removeprefix(f"--expect {rest!r}: "))
    return _too_long("expect", rule.reason) or Expect(rest)


def _accept(rest: str) -> Accept | Misunderstood:
    if found := _ACCEPT.fullmatch(rest):
        return _too_long("accept", found[2]) or Accept(found[1], found[2])
    named = re.match(_SHA, rest)
    return Misunderstood("accept", "the reason is missing" if named else _no_commit(rest))


_PARSERS = {"run": _run, "more": _more, "bisect": _bisect, "expect": _expect, "accept": _accept}


def _too_long(verb: Verb, reason: str) -> Misunderstood | None:
    if len(reason) <= MAX_REASON_CHARACTERS:
        return None
    return Misunderstood(verb, f"the reason has more than {MAX_REASON_CHARACTERS} characters")


def _no_commit(rest: str) -> str:
    if not rest:
        return "the commit is missing"
    return "the commit is not written as 40 lower-case hexadecimal digits, with one space before it"
