"""Grammar of comment commands, such as ``/regbot run SHA``, and the roles that they require.

A command is the first line of a comment, which must match the grammar exactly. Its words may contain only letters,
digits and a few punctuation marks. They are sent to GitHub as JSON and to workflows as inputs, never as part of a shell
line. A reason may contain any visible text. The caller takes the role of a person from GitHub.
"""

import re
import unicodedata
from dataclasses import dataclass
from typing import Any, Literal, get_args

from regbot.github.types import ROLES, Role
from regbot.judge import Expectation, ExpectationError, parse_expectation
from regbot.report.markdown import LOG_LINE_CHARACTERS

Verb = Literal["run", "more", "bisect", "expect", "accept"]
VERBS: tuple[Verb, ...] = get_args(Verb)

FORMS: dict[Verb, str] = {
    "run": "/regbot run SHA [with-protected-files]",
    "more": "/regbot more SHA [PAIRS]",
    "bisect": "/regbot bisect GOOD..BAD [WORKLOAD]",
    "expect": "/regbot expect pattern@axis@workload: reason",
    "accept": "/regbot accept SHA: reason",
}

MAX_LINE_CHARACTERS = 1000
MAX_REASON_CHARACTERS = 500
MAX_PAIRS = 64
DEFAULT_PAIRS = 4
"""Number of additional pairs if the command does not give PAIRS. It is the number of pairs between two looks."""
PROTECTED_OPTION = " with-protected-files"
PROTECTED_ROLE: Role = "maintain"
OTHER_BASE_ROLE: Role = "maintain"
"""Role required for a measurement against a base commit outside the default branch. The base commit can have its own
regbot.toml with other thresholds."""
REPLY_ROLE: Role = "triage"
"""Role required to get a reply to a refused command. regbot does not reply to people with a weaker role."""

_PREFIX = "/regbot"
_ADDRESSED = re.compile(r"/regbot(?![\w./-])", re.IGNORECASE | re.ASCII)
"""Start of a comment that addresses regbot. ``/regbotics`` and ``/regbot/forge`` do not match."""
_LATER_COMMAND = re.compile(r"^[ \t]*/regbot(?![\w./-])", re.IGNORECASE | re.ASCII | re.MULTILINE)
_SHA = "[0-9a-f]{40}"
_WORKLOAD = "[A-Za-z0-9][A-Za-z0-9_.@:/-]{0,127}"
_ARGUMENTS: dict[Verb, str] = {
    "run": rf"(?P<sha>{_SHA})({PROTECTED_OPTION})?",
    "more": rf"(?P<sha>{_SHA})(?: (?P<pairs>[1-9][0-9]?))?",
    "bisect": rf"(?P<good>{_SHA})\.\.(?!(?P=good))(?P<sha>{_SHA})(?: (?P<workload>{_WORKLOAD}))?",
    "accept": rf"(?P<sha>{_SHA}): ?(?P<reason>\S.*)",
}
"""Patterns of the part of the command line after the verb."""
_INVISIBLE_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories of characters that are not displayed, such as control and format characters."""


@dataclass(frozen=True)
class Command:
    """A valid command. Fields that its verb does not use are empty."""

    verb: Verb
    line: str
    sha: str = ""
    """The commit to measure or to accept, or the bad commit of a bisection."""
    pairs: int = DEFAULT_PAIRS
    good: str = ""
    workload: str = ""
    """Workload of a bisection; '' for all workloads in the default branch's regbot.toml."""
    reason: str = ""
    expectation: Expectation | None = None
    """The declared sharding change of ``expect``."""

    @property
    def protected(self) -> bool:
        """Whether a commit is measured even if it changes protected files."""
        return self.verb == "run" and self.line.endswith(PROTECTED_OPTION)

    @property
    def shown_line(self) -> str:
        """The line to type. If it is too long to show, the syntax of the command with placeholders."""
        return self.line if len(self.line) <= LOG_LINE_CHARACTERS else FORMS[self.verb]


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
    first_line, _, text_below = body.partition("\n")
    line = first_line.removesuffix("\r").rstrip(" \t")
    if len(line) > MAX_LINE_CHARACTERS:
        return InvalidCommand(None, f"the line has more than {MAX_LINE_CHARACTERS:,} characters")
    if any(unicodedata.category(character) in _INVISIBLE_CATEGORIES for character in line):
        return InvalidCommand(None, "the line contains invisible characters; type the line instead of pasting it")
    prefix, _, arguments = line.partition(" ")
    word, _, rest = arguments.partition(" ")
    verb = next((known_verb for known_verb in VERBS if (prefix, word) == (_PREFIX, known_verb)), None)
    if verb is None:
        words = ", ".join(VERBS)
        return InvalidCommand(
            None, f"a command begins with {_PREFIX} in lower case, one space and one of the words {words}"
        )
    if _LATER_COMMAND.search(text_below):
        return InvalidCommand(verb, "the comment contains more than one command; write a comment for each command")
    if verb == "expect":
        try:
            expectation = parse_expectation(rest)
        except ExpectationError as error:
            return InvalidCommand(verb, error.problem)
        command = Command(verb, line, reason=expectation.reason, expectation=expectation)
    else:
        match = re.fullmatch(_ARGUMENTS[verb], rest)
        if match is None:
            return InvalidCommand(
                verb,
                f"the line does not have the form {FORMS[verb]}; write each commit as 40 lower-case hexadecimal digits",
            )
        fields: dict[str, Any] = match.groupdict(default="")
        pairs = int(fields.pop("pairs", "") or DEFAULT_PAIRS)
        command = Command(verb, line, pairs=pairs, **fields)
    if command.pairs > MAX_PAIRS:
        return InvalidCommand(verb, f"PAIRS is above {MAX_PAIRS}, the largest number that a command may request")
    if len(command.reason) > MAX_REASON_CHARACTERS:
        return InvalidCommand(verb, f"the reason has more than {MAX_REASON_CHARACTERS} characters")
    return command


def build_run_command(sha: str, *, protected: bool = False) -> Command:
    return Command("run", f"{_PREFIX} run {sha}{PROTECTED_OPTION if protected else ''}", sha)


def get_required_role(command: Command) -> Role:
    """Return the weakest role that may give ``command``."""
    return "maintain" if command.verb == "accept" or command.protected else "write"


def has_role(role: Role, required: Role) -> bool:
    """Return whether ``role`` is at least ``required``. ``ROLES`` begins with the weakest role."""
    return ROLES.index(role) >= ROLES.index(required)
