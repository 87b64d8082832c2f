"""Which role each command and label needs. GitHub says who has which; nobody is asked here."""

from regbot.forge.commands import Accept, Bisect, Command, Expect, More, Run
from regbot.forge.types import ROLES, Role

LABEL: Role = "write"
"""Of whoever sets the label that has a pull request measured."""
PROTECTED: Role = "maintain"
"""Of whoever has code run that also changes protected files."""

OTHER_BASE: Role = "maintain"
"""Of whoever has code run against a base that is no commit of the default branch, and brings its own regbot.toml."""
ANSWERED: Role = "triage"
"""Of whoever is told why nothing was done: a stranger cannot make the bot write."""


def needed(command: Command) -> Role:
    """The weakest role that may give ``command``."""
    match command:
        case Run(protected=True):
            return PROTECTED
        case Run() | More() | Bisect() | Expect():
            return "write"
        case Accept():
            return "maintain"


def may(role: Role, need: Role) -> bool:
    """Whether somebody with ``role`` may do what needs ``need``."""
    return ROLES.index(role) >= ROLES.index(need)
