"""``regbot compare``: a throughput verdict on step times from files that other programs measured.

This package uses no git and no ledger, and it cannot prove which code ran. The verdict is only as good as the files.
"""

from regbot.check.compare.page import compare_page
from regbot.check.compare.verdict import ComparisonOptions, compare

__all__ = ["ComparisonOptions", "compare", "compare_page"]
