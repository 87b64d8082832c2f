"""Whether ``regbot bisect`` names the culprit, how seldom it accuses falsely, and for how many runs, beside others.

    python benchmarks/bisect.py [--cases 300] [--jobs 2] [--quick] [--without-peer]

The benchmark is in ``bisections.py``. This file has the name of a module of the standard library, which scripts in this
folder, and numpy in them, find here first: imported, it is that module.
"""

import sys

if __name__ == "__main__":
    from bisections import main

    sys.exit(main())

from _bisect import bisect_left, bisect_right, insort_left, insort_right

bisect, insort = bisect_right, insort_right

__all__ = ["bisect", "bisect_left", "bisect_right", "insort", "insort_left", "insort_right"]
