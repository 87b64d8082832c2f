"""Roles that commands and labels require. The caller takes the role of a person from GitHub."""

from regbot.github.commands import AcceptCommand, BisectCommand, Command, ExpectCommand, MoreCommand, RunCommand
from regbot.github.types import ROLES, Role

PROTECTED_ROLE: Role = "maintain"

OTHER_BASE_ROLE: Role = "maintain"
"""Role required for a measurement against a base commit outside the default branch. The base commit can have its own
regbot.toml with other thresholds."""
REPLY_ROLE: Role = "triage"
"""Role required to get a reply to a refused command. regbot does not reply to people with a weaker role."""


def get_required_role(command: Command) -> Role:
    """Return the weakest role that may give ``command``."""
    match command:
        case RunCommand(protected=True):
            return PROTECTED_ROLE
        case RunCommand() | MoreCommand() | BisectCommand() | ExpectCommand():
            return "write"
        case AcceptCommand():
            return "maintain"


def has_role(role: Role, required: Role) -> bool:
    """Return whether ``role`` is at least ``required``. ``ROLES`` begins with the weakest role."""
    return ROLES.index(role) >= ROLES.index(required)
