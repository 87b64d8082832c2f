"""``UserError``, the base class of all errors that the user can fix. The command line catches only this class."""

from typing import ClassVar


class UserError(Exception):
    """An expected error. ``message`` says what is wrong and where. ``advice`` says what to do; '' if obvious."""

    exit_code: ClassVar[int] = 2
    """Exit code of a command that ends with this error."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message, advice)
        self.message, self.advice = message, advice

    def __str__(self) -> str:
        return f"{self.message}; {self.advice}" if self.advice else self.message
