"""Build the proposal record of one night. The job that opens the pull request reads it (``regbot.github.refresh``)."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import PurePosixPath

from regbot import __version__
from regbot.baselines import Store
from regbot.baselines.names import ANCHOR, LEDGERS
from regbot.baselines.store import ATTRIBUTES
from regbot.records.baseline import format_time
from regbot.records.proposal import Proposal
from regbot.records.refresh import RefreshReport


def build_proposal(store: Store, report: RefreshReport, added: Iterable[PurePosixPath], now: datetime) -> Proposal:
    """Build the proposal from the report and from the records in the files ``added`` of the store. Raises
    BaselineError."""
    paths = [path for path in added if path != PurePosixPath(ATTRIBUTES)]
    ledgers = [path for path in paths if path.parts[0] == LEDGERS]
    anchors = [path for path in paths if path.name == ANCHOR]
    sessions = [store.session(path) for path in paths if path not in ledgers and path not in anchors]
    return Proposal(
        regbot=__version__,
        created=format_time(now),
        refreshed=report,
        sessions=sessions,
        ledgers=[store.ledger(path.stem) for path in ledgers],
        anchors=[store.read_anchor(path) for path in anchors],
    )
