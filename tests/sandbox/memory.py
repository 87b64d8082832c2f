"""Takes more memory than it may have."""

from attempt import TARGETS, attempt


def take_it() -> str:
    taken = [bytearray(b"x") * 2**20 for _ in range(TARGETS["limit_mb"])]
    return f"{len(taken)} MB"


attempt(take_it)
