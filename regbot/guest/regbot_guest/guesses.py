"""Guesses: what a trace assumed about values that depend on data. Each is a sentence with a kind of ``GuessKind`` in
``regbot/records/ledger.py``. The judge decides by the kind, and never by the sentence.
"""

from collections.abc import Mapping
from typing import Any

VALUE = "value"
"""A value was filled in, which can decide a size."""
EXECUTION = "execution"
"""A region of the code ran in another way than on a real GPU."""
MAX_GUESSES = 20


def as_ledger_fields(guesses: Mapping[str, str]) -> dict[str, Any]:
    """Return the ledger's sentences and kinds of the first MAX_GUESSES."""
    listed = dict(list(guesses.items())[:MAX_GUESSES])
    return {"guesses": list(listed), "guess_kinds": listed}
