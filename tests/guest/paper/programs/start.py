"""Run a program on the paper GPU: ``start.py LIBRARY PROGRAM [ARGUMENT...]``.

The variable PAPER_GPU chooses the GPU that is imitated.
"""

import os
import runpy
import sys
from pathlib import Path

from regbot_guest.paper.loading import install

install(Path(sys.argv[1]), os.environ.get("PAPER_GPU", "h100"))
sys.argv = sys.argv[2:]
sys.path.insert(0, str(Path(__file__).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
sys.stdout.flush()
os._exit(0)  # a thread of autograd that still holds Python objects would end the interpreter's own way out with SIGABRT
