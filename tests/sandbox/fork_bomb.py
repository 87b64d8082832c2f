"""Starts more processes than it may have."""

import os
import time

from attempt import TARGETS, attempt


def fork_without_end() -> str:
    children = []
    try:
        for _ in range(TARGETS["most"] + 1):
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            children.append(child)
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)
    return f"{len(children)} processes"


attempt(fork_without_end)
