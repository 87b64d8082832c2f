"""How often ``regbot bisect`` names the culprit or a false one, and how many runs it needs, compared with other tools.

    python benchmarks/bisect.py [--cases 300] [--jobs 2] [--quick] [--without-peer]

The benchmark itself is in ``bisections.py``. This file has the name of a module of the standard library. Scripts in
this folder, and numpy in them, import this file instead of that module, so it exports the names of that module.
"""

import sys

if __name__ == "__main__":
    from bisections import main

    sys.exit(main())

from _bisect import bisect_left, bisect_right, insort_left, insort_right

bisect, insort = bisect_right, insort_right

__all__ = ["bisect", "bisect_left", "bisect_right", "insort", "insort_left", "insort_right"]
