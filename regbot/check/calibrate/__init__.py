"""``regbot calibrate``: the noise of this node class, and the gate's error rates on it."""
