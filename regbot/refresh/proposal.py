"""A night as the one record that crosses to the job that opens the pull request (``regbot.forge.refresh``)."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import PurePosixPath

from regbot import __version__
from regbot.baselines import Store
from regbot.baselines.names import ANCHOR, LEDGERS
from regbot.baselines.store import ATTRIBUTES
from regbot.records.baseline import utc
from regbot.records.proposal import Proposal
from regbot.records.refresh import Refreshed


def proposal_of(store: Store, found: Refreshed, added: Iterable[PurePosixPath], now: datetime) -> Proposal:
    """What ``found`` says, and the records in the files that it ``added``, read back. Raises BaselineError."""
    paths = [path for path in added if path != PurePosixPath(ATTRIBUTES)]
    ledgers = [path for path in paths if path.parts[0] == LEDGERS]
    anchors = [path for path in paths if path.name == ANCHOR]
    sessions = [store.session(path) for path in paths if path not in ledgers and path not in anchors]
    return Proposal(
        regbot=__version__,
        created=utc(now),
        refreshed=found,
        sessions=sessions,
        ledgers=[store.ledger(path.stem) for path in ledgers],
        anchors=[store.read_anchor(path) for path in anchors],
    )
