"""Decide whether a commit of a pull request may run. An approval names a full commit hash and ends when the head moves.

Protected files decide which code runs on which machine and how a result is judged. regbot's trusted jobs never read
them from a pull request. A maintainer still has to look at the changed ones and confirm the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from regbot.github.changed_files import list_changed_files
from regbot.github.client import Forge, RefusedError
from regbot.github.types import CommitComparison, Pull
from regbot.records.config.globs import matches_glob
from regbot.report.markdown import Name, Words

MAX_NAMED_FILES = 5


@dataclass(frozen=True)
class CommandRefusal:
    """Why a command was not executed."""

    reason: Words
    line: str = ""
    """A command line that the person can type instead; '' if no command line would be accepted."""
    fault: RefusedError | None = None
    """GitHub's error, if regbot accepted the command and GitHub did not execute it. None if regbot refused it."""


Effect = Literal["nothing", "started", "noted", "refused", "stale"]
"""What the gate did. started: it started a workflow. noted: it accepted a declaration. refused: it refused a command.
stale: it marked an old result as stale."""


@dataclass(frozen=True)
class GateOutcome:
    """What the gate did about an event, and a message for the job's log."""

    effect: Effect
    message: str


def find_obstacle(pull: Pull, sha: str) -> Words | None:
    """Return why the commit ``sha`` may not run in the present state of ``pull``; None if it may run.

    The result is a sentence in parts, in which a ``Name`` is untrusted text.
    """
    if not pull.open:
        return ("The pull request is closed.",)
    if pull.head_sha != sha:  # '' adds nothing to the sentence, which begins with a name
        return ("", Name(sha), " is not the head of this pull request. The head is now ", Name(pull.head_sha), ".")
    return None


def find_protected(forge: Forge, change: CommitComparison, sha: str, patterns: Sequence[str]) -> Words:
    """Return a phrase that names the files that ``sha`` changes and that match one of the globs ``patterns``; () if
    there are none. Raises ForgeError, CheckoutError.

    Case is ignored, because some file systems ignore it.
    """
    lower_case_patterns = [pattern.casefold() for pattern in patterns]
    paths = [
        path
        for path in list_changed_files(forge, change, sha)
        if any(matches_glob(pattern, path.casefold()) for pattern in lower_case_patterns)
    ]
    if not paths:
        return ()
    names: list[str] = []
    for path in paths[:MAX_NAMED_FILES]:
        names += [", " if names else "", Name(path)]
    unnamed = len(paths) - MAX_NAMED_FILES
    if unnamed > 0:
        names.append(f" and {unnamed} more")
    return ("protected files: ", *names)
