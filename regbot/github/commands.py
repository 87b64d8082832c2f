"""Grammar of comment commands, such as ``/regbot run SHA``: parse the command in a comment, and format one.

A command is the first line of a comment, which must match the grammar exactly. Its words may contain only letters,
digits and a few punctuation marks. They are sent to GitHub as JSON and to workflows as inputs, never as part of a shell
line. A reason may contain any visible text.
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

MAX_BODY_CHARACTERS = 65_536
MAX_LINE_CHARACTERS = 1000
MAX_REASON_CHARACTERS = 500
MAX_PAIRS = 64
DEFAULT_PAIRS = 4
"""Number of additional pairs if the command does not give PAIRS. It is the number of pairs between two looks."""

_PREFIX = "/regbot"
_PROTECTED_OPTION = "with-protected-files"
_ADDRESSED = re.compile(r"/regbot(?![\w./-])", re.IGNORECASE | re.ASCII)
"""Start of a comment that addresses regbot. ``/regbotics`` and ``/regbot/forge`` do not match."""
_LATER_COMMAND = re.compile(r"^[ \t]*/regbot(?![\w./-])", re.IGNORECASE | re.ASCII | re.MULTILINE)
_SHA = "[0-9a-f]{40}"
# The patterns below match the part of the command line after the verb.
_RUN = re.compile(rf"({_SHA})( {_PROTECTED_OPTION})?")
_MORE = re.compile(rf"({_SHA})(?: ([1-9][0-9]{{0,3}}))?")
_BISECT = re.compile(rf"({_SHA})\.\.({_SHA})(?: ([A-Za-z0-9][A-Za-z0-9_.@:/-]{{0,127}}))?")
_ACCEPT = re.compile(rf"({_SHA}): ?(\S.*)")
_INVISIBLE_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories of characters that are not displayed, such as control and format characters."""


@dataclass(frozen=True)
class RunCommand:
    """Measure a commit. ``protected``: measure it even if it changes protected files."""

    sha: str
    protected: bool = False


@dataclass(frozen=True)
class MoreCommand:
    """Time ``pairs`` more pairs of a commit that was measured before."""

    sha: str
    pairs: int = DEFAULT_PAIRS


@dataclass(frozen=True)
class BisectCommand:
    """Search for the culprit between two commits. ``workload`` is '' for all workloads in the default branch's
    regbot.toml."""

    good: str
    bad: str
    workload: str = ""


@dataclass(frozen=True)
class ExpectCommand:
    """Declare an expected sharding change. ``regbot.judge.parse_expectation`` reads ``rule``."""

    rule: str


@dataclass(frozen=True)
class AcceptCommand:
    sha: str
    reason: str


Command = RunCommand | MoreCommand | BisectCommand | ExpectCommand | AcceptCommand


@dataclass(frozen=True)
class InvalidCommand:
    """A comment that addresses regbot without a valid command."""

    verb: Verb | None
    """First word of the command; None if it is no known verb."""
    problem: str
    """What is wrong. It may quote the comment, so it must be shown as untrusted text."""


def parse_command(body: str) -> Command | InvalidCommand | None:
    """Return the command of a comment; None if the comment does not address regbot. Never raises."""
    if not _ADDRESSED.match(body):
        return None
    if len(body) > MAX_BODY_CHARACTERS:
        return InvalidCommand(None, f"the comment has more than {MAX_BODY_CHARACTERS:,} characters")
    first_line, _, text_below = body.partition("\n")
    line = first_line.removesuffix("\r").rstrip(" \t")
    if len(line) > MAX_LINE_CHARACTERS:
        return InvalidCommand(None, f"the line has more than {MAX_LINE_CHARACTERS:,} characters")
    if any(unicodedata.category(character) in _INVISIBLE_CATEGORIES for character in line):
        return InvalidCommand(None, "the line contains invisible characters; type the line instead of pasting it")
    if line != _PREFIX and not line.startswith(f"{_PREFIX} "):
        return InvalidCommand(None, f"a command begins with {_PREFIX} in lower case and one space")
    word, _, rest = line.removeprefix(_PREFIX).removeprefix(" ").partition(" ")
    verb = next((known_verb for known_verb in VERBS if known_verb == word), None)
    if verb is None:
        problem = f"there is no command {word!r}" if word else "the command is missing, with one space before it"
        return InvalidCommand(None, problem)
    if _LATER_COMMAND.search(text_below):
        return InvalidCommand(verb, "the comment contains more than one command; write a comment for each command")
    return _parse(verb, rest)


def format_command(command: Command) -> str:
    """Return the command line of ``command``. ``parse_command`` turns the line back into an equal command."""
    match command:
        case RunCommand(sha, protected=True):
            return f"{_PREFIX} run {sha} {_PROTECTED_OPTION}"
        case RunCommand(sha):
            return f"{_PREFIX} run {sha}"
        case MoreCommand(sha, pairs):
            return f"{_PREFIX} more {sha} {pairs}"
        case BisectCommand(good, bad, workload):
            return f"{_PREFIX} bisect {good}..{bad} {workload}".rstrip()
        case ExpectCommand(rule):
            return f"{_PREFIX} expect {rule}"
        case AcceptCommand(sha, reason):
            return f"{_PREFIX} accept {sha}: {reason}"


def _parse(verb: Verb, rest: str) -> Command | InvalidCommand:  # noqa: C901 (one case a verb)
    """Parse ``rest``, the command line after the verb (``FORMS``)."""
    problem = _explain_missing_commit(rest)
    match verb:
        case "run":
            if match := _RUN.fullmatch(rest):
                return RunCommand(match[1], protected=match[2] is not None)
            if re.match(rf"{_SHA} ", rest):
                problem = f"only {_PROTECTED_OPTION} may follow the commit"
        case "more":
            if match := _MORE.fullmatch(rest):
                pairs = int(match[2]) if match[2] else DEFAULT_PAIRS
                if pairs <= MAX_PAIRS:
                    return MoreCommand(match[1], pairs)
                problem = f"PAIRS is above {MAX_PAIRS}, the largest number that a command may request"
            elif re.match(rf"{_SHA} ", rest):
                problem = "PAIRS is no whole number above 0"
        case "bisect":
            if match := _BISECT.fullmatch(rest):
                if match[1] != match[2]:
                    return BisectCommand(match[1], match[2], match[3] or "")
                problem = "GOOD and BAD are the same commit"
            elif re.match(rf"{_SHA}\.\.{_SHA} ", rest):
                problem = "WORKLOAD is no valid name of a workload"
            else:
                problem = (
                    "GOOD..BAD must be two commits of 40 lower-case hexadecimal digits with two dots between them. "
                    "Branch names and short hashes are not accepted, because the commit that they name can change"
                )
        case "expect":
            try:
                reason = parse_expectation(rest).reason
            except ExpectationError as error:
                return InvalidCommand("expect", error.problem)
            if len(reason) <= MAX_REASON_CHARACTERS:
                return ExpectCommand(rest)
            problem = f"the reason has more than {MAX_REASON_CHARACTERS} characters"
        case "accept":
            if match := _ACCEPT.fullmatch(rest):
                if len(match[2]) <= MAX_REASON_CHARACTERS:
                    return AcceptCommand(match[1], match[2])
                problem = f"the reason has more than {MAX_REASON_CHARACTERS} characters"
            elif re.match(_SHA, rest):
                problem = "the reason is missing"
    return InvalidCommand(verb, problem)


def _explain_missing_commit(rest: str) -> str:
    if not rest:
        return "the commit is missing"
    return "the commit is not written as 40 lower-case hexadecimal digits after one space"
