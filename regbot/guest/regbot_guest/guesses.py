"""Guesses: what a trace assumed about values that depend on data. Each is a sentence with a kind of ``GuessKind`` in
``regbot/records/ledger.py``. The judge decides by the kind, and never by the sentence.
"""

VALUE = "value"
"""A value was filled in, which can decide a size."""
EXECUTION = "execution"
"""A region of the code ran in another way than on a real GPU."""
