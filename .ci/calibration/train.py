"""A program of a few seconds for the stage ``calibration``. It computes on one core and prints a step log.

python train.py STEPS SLOWDOWN_PCT
"""

import sys
import time

import numpy as np


def main() -> None:
    steps, slowdown = int(sys.argv[1]), float(sys.argv[2])
    weights = np.random.default_rng(1).normal(size=(300, 300))
    for step in range(steps):
        begun = time.perf_counter()
        product = weights
        for _ in range(6):
            product = np.tanh(product @ weights / 20)
        time.sleep((time.perf_counter() - begun) * slowdown / 100)
        took = time.perf_counter() - begun
        loss = float(np.abs(product).mean())
        print(f"completed step: {step}, seconds: {took:.6f}, TFLOP/s/device: 1.000, loss: {loss:.6f}")


if __name__ == "__main__":
    main()
