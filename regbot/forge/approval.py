"""Whether one commit of a pull request may run: an approval is of 40 hexadecimal digits, and dies when the head moves.

Who asks was settled before (``permission``). Here it is asked whether the commit is what the pull request has as its
head *now*, and what it changes besides code. Protected files are those that decide what runs where, and how it is
judged. The trusted half never takes them from a pull request, so running the code is as safe with them as without; but
somebody who is about to merge them should have seen them, and is asked to say so.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from regbot.forge.client import RefusedError
from regbot.forge.types import Pull
from regbot.report.markdown import Name, Words

SHOWN_FILES = 5


@dataclass(frozen=True)
class Refusal:
    """Why something is not done, in a sentence, and the line that would do; '' where none would.

    ``fault``: it should have been done, and GitHub refused.
    """

    said: Words
    line: str = ""
    fault: RefusedError | None = None


@dataclass(frozen=True)
class Protected:
    """The protected files that a commit changes. ``unknown``: it changes more files than GitHub lists."""

    files: tuple[str, ...]
    unknown: bool = False

    def __bool__(self) -> bool:
        return self.unknown or bool(self.files)

    def words(self) -> Words:
        """What it changes, for the end of a sentence."""
        if self.unknown:
            return ("more files than GitHub lists, so that protected ones may be among them",)
        shown: list[str] = []
        for path in self.files[:SHOWN_FILES]:
            shown += [", " if shown else "", Name(path)]
        more = len(self.files) - SHOWN_FILES
        return ("protected files: ", *shown, *([f" and {more} more"] if more > 0 else []))


def obstacle(pull: Pull, sha: str) -> Words | None:
    """Why ``sha`` may not run for ``pull`` as it stands; None where nothing is in the way."""
    if not pull.open:
        return ("The pull request is closed.",)
    if pull.head_sha != sha:
        return ("", Name(sha), " is not the head of this pull request, which is ", Name(pull.head_sha), " now.")
    return None


def protected(paths: Sequence[str] | None, patterns: Sequence[str]) -> Protected:
    """Those of the changed ``paths`` that are protected; None: not all of them are known."""
    if paths is None:
        return Protected((), unknown=True)
    return Protected(tuple(path for path in paths if any(covers(pattern, path) for pattern in patterns)))


def covers(pattern: str, path: str) -> bool:
    """Whether a glob covers a path from the repository's root. ``*`` stays within a folder, ``**`` does not, and
    ``folder/**`` is the folder too, which a link could replace. Case is no difference: not every disk sees one."""
    return _glob(pattern).fullmatch(path.casefold()) is not None


@cache
def _glob(pattern: str) -> re.Pattern[str]:
    text = pattern.casefold()
    tail = text.endswith("/**")
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", text.removesuffix("/**"))
    body = "".join(_WILD.get(part, re.escape(part)) for part in parts)
    return re.compile(body + ("(?:/.*)?" if tail else ""), re.DOTALL)


_WILD = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
