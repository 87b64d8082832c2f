"""``regbot compare``: a throughput verdict on step times that somebody else measured, from files.

``read`` turns one file into one run (CSV, a Run record, or a log of a training framework), ``trust`` asks whether the
runs may be compared (``scale``: in one unit? ``environment``: what do they tell of where they were made? ``whole``: do
they tell everything?), ``cut`` chooses the steps, ``paired`` and ``unpaired`` decide, ``verdict`` puts the answer
together, ``page`` says it to people. There is no git, no ledger and no proof of what ran here: the verdict is as good
as the files.
"""

from regbot.compare.page import compare_page
from regbot.compare.read import StepFile, read_steps
from regbot.compare.verdict import Comparison, compare

__all__ = ["Comparison", "StepFile", "compare", "compare_page", "read_steps"]
