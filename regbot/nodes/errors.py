"""What goes wrong with nodes that the user can mend."""

from regbot.records.files import RecordError


class NodeError(RecordError):
    """What is known of the nodes does not allow this. The message says why and what to do."""
