"""Guesses: what a trace assumed about values that depend on data. Each is a sentence with a kind.

The kinds are those of ``GuessKind`` in ``regbot/records/ledger.py``. The judge decides by the kind, and never by the
sentence. The paper GPU's library names the kinds ``finite`` and ``assertion`` itself.
"""

from collections.abc import Mapping
from typing import Any

VALUE = "value"
"""A value was filled in, which can decide a size."""
EXECUTION = "execution"
"""A region of the code ran in another way than on a real GPU."""
MAX_GUESSES = 20
"""The ledger lists at most this many guesses."""


def as_ledger_fields(guesses: Mapping[str, str]) -> dict[str, Any]:
    """Return two fields of a ledger: the sentences of ``guesses``, and the mapping from sentence to kind.

    Only the first MAX_GUESSES are included.
    """
    listed = dict(list(guesses.items())[:MAX_GUESSES])
    return {"guesses": list(listed), "guess_kinds": listed}
