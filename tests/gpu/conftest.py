"""Makes ``benchmarks/`` importable, behind everything else: one of its modules has the name of a standard module."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
