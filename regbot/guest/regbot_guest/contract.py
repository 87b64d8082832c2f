"""The exception for a workload that the guest refuses. This module does not import torch."""


class ContractError(Exception):
    """The workload cannot be measured as requested, or its module violates the module contract.

    ``kind`` is the kind of the refusal in the record, such as config, entry, routing or liveness.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def refuse_revision(reason: str) -> ContractError:
    """Return the refusal of a revision of a framework that regbot does not support."""
    return ContractError("revision", f"regbot does not support this revision: {reason}")
