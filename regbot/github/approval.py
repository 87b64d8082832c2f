"""Decide whether a commit of a pull request may run. An approval names a full commit hash and ends when the head moves.

Protected files decide which code runs on which machine and how a result is judged. regbot's trusted jobs never read
them from a pull request. A maintainer still has to look at the changed ones and confirm the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from regbot.github.changed_files import list_changed_files
from regbot.github.client import Forge
from regbot.github.types import CommitComparison, Pull
from regbot.records.config.globs import matches_glob
from regbot.report.markdown import code

MAX_NAMED_FILES = 5


class CommandRefusal(Exception):
    """Why a command is not executed. ``reason`` is markdown. ``line`` is a command line that the person can type
    instead; '' if no command line would be accepted."""

    def __init__(self, reason: str, line: str = "") -> None:
        super().__init__(reason)
        self.reason, self.line = reason, line


Effect = Literal["nothing", "started", "noted", "refused", "stale"]
"""What the gate did. started: it started a workflow. noted: it accepted a declaration. refused: it refused a command.
stale: it marked an old result as stale."""


@dataclass(frozen=True)
class GateOutcome:
    """What the gate did about an event, and a message for the job's log."""

    effect: Effect
    message: str


def check_head(pull: Pull, sha: str, line: str = "") -> None:
    """Check that the commit ``sha`` may run in the present state of ``pull``. Raises CommandRefusal, for a moved head
    with the advice to type ``line``."""
    if not pull.open:
        raise CommandRefusal("The pull request is closed.")
    if pull.head_sha != sha:
        reason = f"{code(sha)} is not the head of this pull request. The head is now {code(pull.head_sha)}."
        raise CommandRefusal(f"{reason} Look at the new head first, then type this line:" if line else reason, line)


def find_protected(forge: Forge, change: CommitComparison, sha: str, patterns: Sequence[str]) -> str:
    """Return a phrase in markdown that names the files that ``sha`` changes and that match one of the globs
    ``patterns``; '' if there are none. Raises ForgeError, CheckoutError.

    Case is ignored, because some file systems ignore it.
    """
    lower_case_patterns = [pattern.casefold() for pattern in patterns]
    paths = [
        path
        for path in list_changed_files(forge, change, sha)
        if any(matches_glob(pattern, path.casefold()) for pattern in lower_case_patterns)
    ]
    if not paths:
        return ""
    unnamed = len(paths) - MAX_NAMED_FILES
    more = f" and {unnamed} more" if unnamed > 0 else ""
    return f"protected files: {', '.join(code(path) for path in paths[:MAX_NAMED_FILES])}{more}"
