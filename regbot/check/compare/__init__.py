"""``regbot compare``: a throughput verdict on step times from files that other programs measured.

``run_files`` reads one file as one run (CSV, a Run record, or a log of a training framework). ``faults`` decides
whether the runs can be compared. ``completeness`` finds files that lack a part of the run. ``steady_cut`` chooses the
steps, ``paired`` and ``unpaired`` decide, ``verdict`` assembles the answer, and ``page`` formats it as text. This
package uses no git and no ledger, and it cannot prove which code ran. The verdict is only as good as the files.
"""

from regbot.check.compare.page import compare_page
from regbot.check.compare.verdict import ComparisonOptions, compare

__all__ = ["ComparisonOptions", "compare", "compare_page"]
