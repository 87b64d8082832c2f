"""The refusal of a step that cannot be traced without a GPU. Nothing here imports torch."""


class Untraceable(Exception):
    """The step asks for a value that depends on real data, or for something that is not there without a GPU."""
