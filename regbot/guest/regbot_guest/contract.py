"""The exception for a workload that the guest refuses. This module does not import torch."""


class ContractError(Exception):
    """The workload cannot be measured as requested. ``kind`` of the refusal is such as config, entry, routing,
    liveness.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def refuse_revision(reason: str) -> ContractError:
    return ContractError("revision", f"regbot does not support this revision: {reason}")
