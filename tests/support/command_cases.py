"""Shared by the tests of command check and others."""

CONFIG = """
version = 1
[workloads.train]
adapter = "command"
command = ["{python}", "train.py", "{steps}"]
shapes = ["mixtral-8x7b"]
[session]
steps = 5
warmup = 1
"""


TRAIN = """
import sys, time
for step in range(int(sys.argv[1])):
    begun = time.perf_counter()
    time.sleep(SECONDS)
    took = time.perf_counter() - begun
    print(f"completed step: {step}, seconds: {took:.6f}, TFLOP/s/device: 1.000, loss: 7.{9 - step}")
"""


def train(seconds: float) -> str:
    return TRAIN.replace("SECONDS", str(seconds))
