"""Print the JSON Schema of a record, or the names of all: ``python -m regbot.records.schema_files [NAME]``.

A wheel has the schemas as files in ``regbot/records/schemas`` (``hatch_build.py``).
"""

import json
import sys

from regbot.records.base import Record
from regbot.records.baseline import Anchor, Baseline, BaselineAddition, BaselineCheck, BaselineListing
from regbot.records.bisection import Bisection, BisectionHeader, BisectionPlan
from regbot.records.calibration import Calibration
from regbot.records.history import History
from regbot.records.ledger import Ledger
from regbot.records.node import NodeHistory, RawNodeProbe
from regbot.records.preflight import Preflight
from regbot.records.proposal import Proposal
from regbot.records.refresh import RefreshReport
from regbot.records.run import RawRun, Run
from regbot.records.session import SessionHeader
from regbot.records.verdict import LedgerDiff, Verdict

RECORDS: dict[str, type[Record]] = {
    "anchor@1": Anchor,
    "baseline@1": Baseline,
    "baseline-added@1": BaselineAddition,
    "baseline-list@1": BaselineListing,
    "baseline-verify@1": BaselineCheck,
    "bisect@1": Bisection,
    "bisect-plan@1": BisectionPlan,
    "bisection-log@1": BisectionHeader,
    "calibration@1": Calibration,
    "history@1": History,
    "ledger@1": Ledger,
    "ledger-diff@1": LedgerDiff,
    "node-history@1": NodeHistory,
    "node-probe-raw@1": RawNodeProbe,
    "preflight@1": Preflight,
    "proposal@1": Proposal,
    "raw-run@1": RawRun,
    "refresh@1": RefreshReport,
    "run@1": Run,
    "session@1": SessionHeader,
    "verdict@1": Verdict,
}


def schema_text(name: str) -> str:
    """Return the schema of the record called ``name``, such as "run@1", as JSON."""
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"regbot/{name}"}
    return json.dumps({**document, **RECORDS[name].json_schema()}, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write("".join(map(schema_text, sys.argv[1:])) or "\n".join([*RECORDS, ""]))
