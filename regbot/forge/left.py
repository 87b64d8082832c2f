"""What a run left: the newest artifact of one name, in memory, or why there is nothing that can be used."""

from collections.abc import Callable
from typing import TypeVar

from regbot.forge.client import Forge, RefusedError, TooLargeError
from regbot.records.files import RecordError
from regbot.report.markdown import Said, Words

T = TypeVar("T")


class Unusable(Exception):
    """What a run left cannot be used. ``said``: why, in a sentence in which others' words are marked."""

    def __init__(self, *said: str) -> None:
        super().__init__("".join(said))
        self.said: Words = said


class Expired(Unusable):
    """GitHub has deleted what a run left, because of its age."""


def artifact_of(forge: Forge, run: int, name: str, most_bytes: int, read: Callable[[bytes], T]) -> T:
    """What ``read`` makes of the newest artifact ``name`` of a run, a zip archive of ``most_bytes`` at most.

    Raises Unusable, also where ``read`` raises RecordError; ForgeError.
    """
    found = [each for each in forge.artifacts(run) if each.name == name]
    there = [each for each in found if not each.expired]
    if not there:
        if found:
            raise Expired(f"its artifact {name} has expired")
        raise Unusable(f"the job left no artifact {name}; its log says why")
    too_large = Unusable(f"its artifact has more than {most_bytes:,} bytes, and was not read")
    if there[-1].size > most_bytes:
        raise too_large
    try:
        return read(forge.download(there[-1].id, most_bytes))
    except TooLargeError as error:
        raise too_large from error
    except RecordError as error:
        raise Unusable("what the job left cannot be read: ", Said(str(error))) from error


def spent(forge: Forge, run: int, name: str) -> bool:
    """Whether nothing of a run can be judged again: it is gone, ended badly when it was last started, or what it left
    under ``name`` has expired. Raises ForgeError."""
    try:
        ended_badly = forge.run(run).conclusion not in (None, "success")
        found = [each for each in forge.artifacts(run) if each.name == name]
    except RefusedError as error:
        if error.status == 404:
            return True
        raise
    return ended_badly or (bool(found) and all(each.expired for each in found))
