"""Hash of regbot's own part of the timed program: the smoke model, or the transformer around a user's layer.

The version of a shape covers only the shape's numbers. If regbot's model code becomes faster or slower, times of the
old and of the new code must not be compared. The hash is therefore part of the environment of timed runs.
"""

import hashlib
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from regbot.records.text.python_code import dump_code

TRANSFORMER = ("harness.py", "model.py")
LAYER = ("moe.py", "routing.py", "rows.py", "dispatch.py", "exchange.py", "deepep.py", "hybridep.py")
MODEL_FILES = {"module": TRANSFORMER, "smoke": TRANSFORMER + LAYER}
"""Files of the guest's code that run in timed steps, by adapter. With other adapters, no model code of regbot runs."""


@cache
def model_hash(adapter: str) -> str | None:
    """Return the SHA-256 of the model code that ``adapter`` runs, or None if it runs none."""
    if adapter not in MODEL_FILES:
        return None
    folder = resources.files("regbot") / "guest" / "regbot_guest"
    return hash_files(folder, MODEL_FILES[adapter])


def hash_files(folder: Traversable, names: tuple[str, ...]) -> str:
    """Return the SHA-256 of the code in Python files. Comments, layout, docstrings and the version of Python do not
    affect it.
    """
    code = [dump_code((folder / name).read_text(encoding="utf-8")) for name in names]
    return hashlib.sha256("\n".join(code).encode()).hexdigest()
