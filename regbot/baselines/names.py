"""Paths of stored sessions, ledgers and anchors in the store, derived from their content.

    <workload>@<version>/<class>/<hash>.json
    <workload>@<version>/<class>/calibration/<hash>.json
    <workload>@<version>/<class>/anchor.json
    ledgers/<hash>.json

Folders only sort the files: the facts, such as the environment, stand in the files.
"""

import re
from pathlib import PurePosixPath

from regbot.records.baseline import ENTRY_PATTERN, Anchor, Baseline
from regbot.records.calibration import Calibration

ANCHOR = "anchor.json"
LEDGERS = "ledgers"
CALIBRATION = "calibration"
STATIC_CLASS = "static: traced, any machine"

MAX_NAME_CHARACTERS = 200


def session_path(baseline: Baseline, digest: str) -> PurePosixPath:
    """Return the path of a stored session, relative to the store. ``digest`` is the hash of its file."""
    folder = class_folder(baseline.workload, baseline.variant, baseline.node_class)
    return folder / f"{digest}.json"


def calibration_path(calibration: Calibration, digest: str) -> PurePosixPath:
    """Return the path of a stored calibration, beside the sessions of its class. ``digest`` is the hash of its file."""
    folder = class_folder(calibration.workload, calibration.variant, calibration.node_class)
    return folder / CALIBRATION / f"{digest}.json"


def anchor_path(anchor: Anchor) -> PurePosixPath:
    return class_folder(anchor.workload, anchor.variant, anchor.node_class) / ANCHOR


def ledger_path(digest: str) -> PurePosixPath:
    return PurePosixPath(LEDGERS, f"{digest}.json")


def class_folder(workload: str, variant: str, node_class: str) -> PurePosixPath:
    name = re.sub(r"[^A-Za-z0-9.]+", "-", node_class)[:MAX_NAME_CHARACTERS].strip("-.")
    return PurePosixPath(workload_folder(workload, variant), name or "x")


def workload_folder(workload: str, variant: str) -> str:
    """Return the name of the folder of a workload and variant.

    Label, shape, mesh and variant contain no ``+``, so two workloads never share a name. Raises ValueError if
    ``workload`` does not have the form ``[label:]shape@version/mesh``.
    """
    match = ENTRY_PATTERN.fullmatch(workload)
    if match is None:
        raise ValueError(f"{workload!r} is not a workload entry; entries have the form [label:]shape@version/mesh")
    label, shape, version, mesh = match.groups()
    parts = [part for part in (label, shape, mesh, variant) if part]  # label is None if the entry has none
    return f"{'+'.join(parts)}@{version}"
