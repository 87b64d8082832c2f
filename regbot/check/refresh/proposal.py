"""Build the proposal record of one night. ``regbot.github.refresh`` reads the record and opens the pull request."""

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


def build_proposal(store: Store, report: RefreshReport, written: Iterable[PurePosixPath], now: datetime) -> Proposal:
    """Build the proposal from the report and from the records in ``written``, the new and changed files of the store.

    ``now`` is the time of the proposal. Raises BaselineError.
    """
    # ``.gitattributes`` is no record.
    record_paths = [path for path in written if path != PurePosixPath(ATTRIBUTES)]
    ledger_paths = [path for path in record_paths if path.parts[0] == LEDGERS]
    anchor_paths = [path for path in record_paths if path.name == ANCHOR]
    session_paths = [path for path in record_paths if path not in ledger_paths and path not in anchor_paths]
    return Proposal(
        regbot=__version__,
        created=format_time(now),
        refreshed=report,
        sessions=[store.session(path) for path in session_paths],
        # The file of a ledger is named after its digest.
        ledgers=[store.ledger(path.stem) for path in ledger_paths],
        anchors=[store.read_anchor(path) for path in anchor_paths],
    )
