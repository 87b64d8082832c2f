"""Training stacks with a loop of their own: one module each, that makes one of their steps countable."""
