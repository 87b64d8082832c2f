"""``UserError``, the base class of all errors that the user can fix, and exit codes of commands without a result."""

from typing import ClassVar

INTERNAL_ERROR = 70
"""Exit code of a bug in regbot. No verdict has this exit code, so CI does not take it for a regression."""
INTERRUPTED = 130
"""Exit code of a command that the user has ended with Ctrl-C, as in shells."""


class UserError(Exception):
    """An expected error. ``message`` says what is wrong and where. ``advice`` says what to do; '' if obvious."""

    exit_code: ClassVar[int] = 2
    """Exit code of a command that ends with this error."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message, advice)
        self.message, self.advice = message, advice

    def __str__(self) -> str:
        return f"{self.message}; {self.advice}" if self.advice else self.message
