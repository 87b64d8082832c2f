"""Run a program on the paper GPU: ``start.py LIBRARY PROGRAM [ARGUMENT...]``."""

import runpy
import sys
from pathlib import Path

from regbot_guest.paper.device import install

install(Path(sys.argv[1]))
sys.argv = sys.argv[2:]
sys.path.insert(0, str(Path(__file__).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
