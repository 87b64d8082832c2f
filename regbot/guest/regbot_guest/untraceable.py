"""The exception for a step that cannot be traced without a GPU. This module does not import torch."""


class Untraceable(Exception):
    """The step needs a value that depends on real data, or it needs something that does not exist without a GPU."""
