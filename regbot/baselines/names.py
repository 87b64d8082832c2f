"""Paths of stored sessions, ledgers and anchors in the store, derived from their content.

    <workload>@<version>/<class>/<environment>/<hash>.json
    <workload>@<version>/<class>/<environment>/calibration/<hash>.json
    <workload>@<version>/<class>/anchor.json
    ledgers/<hash>.json

The folder of a workload is ``[label+]shape+mesh+variant@version``, for example ``qwen3-30b-a3b+ep+smoke@1``. The name
of a class folder or an environment folder has two parts: a readable extract of the class or environment, and a short
hash of all of it. Therefore two classes or environments never share a folder.

A parameter ``workload`` is an entry, such as ``mixtral-8x7b@1/ep``.
"""

import hashlib
import re
from pathlib import PurePosixPath

from regbot.records.baseline import ABSENT, ENTRY_PATTERN, Anchor, Baseline, EnvironmentKey
from regbot.records.calibration import Calibration

ANCHOR = "anchor.json"
LEDGERS = "ledgers"
CALIBRATION = "calibration"
STATIC_CLASS = "static: traced, any machine"
"""Node class of all traces. A trace has no times, and its counts are the same on any machine."""

_MAX_SLUG_CHARS = 60
_HASH_CHARS = 10


def session_path(baseline: Baseline, digest: str) -> PurePosixPath:
    """Return the path of a stored session, relative to the store. ``digest`` is the hash of its file."""
    folder = class_folder(baseline.workload, baseline.variant, baseline.node_class)
    return folder / environment_folder(baseline.environment) / f"{digest}.json"


def calibration_path(calibration: Calibration, digest: str) -> PurePosixPath:
    """Return the path of a stored calibration, beside the sessions of its environment. ``digest`` is the hash of its
    file.
    """
    folder = class_folder(calibration.workload, calibration.variant, calibration.node_class)
    return folder / environment_folder(calibration.environment) / CALIBRATION / f"{digest}.json"


def anchor_path(anchor: Anchor) -> PurePosixPath:
    return class_folder(anchor.workload, anchor.variant, anchor.node_class) / ANCHOR


def ledger_path(digest: str) -> PurePosixPath:
    return PurePosixPath(LEDGERS, f"{digest}.json")


def class_folder(workload: str, variant: str, node_class: str) -> PurePosixPath:
    return PurePosixPath(workload_folder(workload, variant), slug(node_class, node_class))


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


def environment_folder(key: EnvironmentKey) -> str:
    """Return a folder name with the known framework, toolkit, driver and Python version, and a hash of every field."""
    words = [value for value in (key.framework, key.toolkit, key.driver) if value and value != ABSENT]
    if key.python:
        words.append(f"python {key.python}")
    # ``model`` is the hash of regbot's own model code; None if other code ran. Without it the folder keeps the name
    # that it had before this field existed.
    unhashed_fields = {"model"} if key.model is None else None
    return slug(" ".join(words) or "unknown", key.model_dump_json(exclude=unhashed_fields))


def slug(text: str, hashed_text: str) -> str:
    """Return ``text`` as a portable file name, with a short hash of ``hashed_text``.

    The hash keeps two names apart whose texts become equal when they are shortened and cleaned. A text of which nothing
    is left is replaced by ``x``.
    """
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", text)[:_MAX_SLUG_CHARS].strip("-.")
    return f"{plain or 'x'}-{hashlib.sha256(hashed_text.encode()).hexdigest()[:_HASH_CHARS]}"
