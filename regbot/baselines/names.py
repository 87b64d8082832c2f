"""Where a stored session, a ledger and an anchor lie in the store, told from what they are.

    <workload>@<version>/<class>/<environment>/<hash>.json
    <workload>@<version>/<class>/<environment>/calibration/<hash>.json
    <workload>@<version>/<class>/anchor.json
    ledgers/<hash>.json

The workload's folder is ``[label+]shape+mesh+variant@version``. A class or an environment is a text or several; its
folder is what a file name can show of it, and a short hash of all of it, so that no two share one.
"""

import hashlib
import re
from pathlib import PurePosixPath

from regbot.records.baseline import ENTRY, NONE, Anchor, Baseline, EnvironmentKey
from regbot.records.calibration import Calibration

ANCHOR = "anchor.json"
LEDGERS = "ledgers"
CALIBRATION = "calibration"
STATIC_CLASS = "static: traced, any machine"
"""The class of a trace: it has no times, and its counts are the same wherever it is made."""

_SHOWN = 60
_HASH = 10


def session_path(baseline: Baseline, digest: str) -> PurePosixPath:
    """Of a stored session whose file has the hash ``digest``, relative to the store."""
    folder = class_folder(baseline.workload, baseline.variant, baseline.node_class)
    return folder / environment_folder(baseline.environment) / f"{digest}.json"


def calibration_path(calibration: Calibration, digest: str) -> PurePosixPath:
    """Of a stored calibration: beside the sessions that were timed in its environment."""
    folder = class_folder(calibration.workload, calibration.variant, calibration.node_class)
    return folder / environment_folder(calibration.environment) / CALIBRATION / f"{digest}.json"


def anchor_path(anchor: Anchor) -> PurePosixPath:
    return class_folder(anchor.workload, anchor.variant, anchor.node_class) / ANCHOR


def ledger_path(digest: str) -> PurePosixPath:
    return PurePosixPath(LEDGERS, f"{digest}.json")


def class_folder(workload: str, variant: str, node_class: str) -> PurePosixPath:
    return PurePosixPath(workload_folder(workload, variant), slug(node_class, node_class))


def workload_folder(workload: str, variant: str) -> str:
    """Raises ValueError for what is no entry of a verdict. ``+`` stands in no part, so no two entries share one."""
    found = ENTRY.fullmatch(workload)
    if found is None:
        raise ValueError(f"{workload!r} is no entry of a verdict, which are named [label:]shape@version/mesh")
    label, shape, version, mesh = found.groups()
    return f"{'+'.join(part for part in (label, shape, mesh, variant) if part)}@{version}"


def environment_folder(key: EnvironmentKey) -> str:
    """Framework, toolkit and driver are shown, where they are known; the hash is of every field."""
    words = [word for word in (key.framework, key.toolkit, key.driver) if word not in (None, NONE)]
    python = [f"python {key.python}"] if key.python else []
    return slug(" ".join([*(word for word in words if word), *python]) or "unknown", key.model_dump_json())


def slug(shown: str, whole: str) -> str:
    """``shown`` as a file name that no system misreads, and a short hash of ``whole``."""
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", shown)[:_SHOWN].strip("-.")
    return f"{plain or 'x'}-{hashlib.sha256(whole.encode()).hexdigest()[:_HASH]}"
