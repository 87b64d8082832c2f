"""Leaves a process behind, with a session of its own, nothing in its environment and no file of ours open."""

import os
import sys
import time

from attempt import TARGETS

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 64)
        os.execve("/bin/sleep", ["sleep", TARGETS["seconds"]], {})
    os._exit(0)
time.sleep(0.3)
sys.exit(0)
