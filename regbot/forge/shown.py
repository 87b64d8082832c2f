"""What is shown of a verdict: one text with a stamp on it, in the comment and in the check run alike.

The stamp is the first line, and cannot be seen. It says of which commit the text is and where it came from, so that the
stronger of two results can be told from the weaker, wherever they stand. Only the bot's own stamps are believed, which
whoever reads one has to see to.
"""

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Literal, get_args

from regbot.records.verdict import Status
from regbot.report.markdown import Name, sentence

Tier = Literal["static", "measured"]
"""static: by a job of the pull request, which may say what it likes. measured: by the trusted harness."""

MAX_CHARACTERS = 65_000
"""Of a comment and of a check run's summary GitHub takes 65,535."""
STALE = "<!-- regbot:stale -->"
_STAMP = re.compile(r"<!-- regbot:verdict (\{[^\n]*\}) -->")
_SHA = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Stamp:
    """Where a result came from. ``run``, ``attempt``: of the workflow that measured; ``post``: the run that posts."""

    pr: int
    head: str
    tier: Tier
    run: int
    attempt: int
    status: Status
    post: int = 0

    @property
    def self_reported(self) -> bool:
        """Whether a job of the pull request has made it, which its author has written."""
        return self.tier == "static" and self.pr != 0

    def line(self) -> str:
        """As it is written."""
        return f"<!-- regbot:verdict {json.dumps(asdict(self), separators=(',', ':'))} -->"

    @classmethod
    def read(cls, line: str) -> "Stamp | None":
        """The stamp that ``line`` is; None where it is none."""
        found = _STAMP.fullmatch(line.strip())
        if found is None:
            return None
        try:
            stamp = cls(**json.loads(found[1]))
        except (ValueError, TypeError, RecursionError):
            return None
        numbers = (stamp.pr, stamp.run, stamp.attempt, stamp.post)
        known = stamp.tier in get_args(Tier) and stamp.status in get_args(Status)
        if not known or any(type(number) is not int for number in numbers) or not isinstance(stamp.head, str):
            return None
        return stamp if _SHA.fullmatch(stamp.head) else None

    def strength(self, live: str) -> tuple[bool, bool, int, int, int]:
        """What a result is compared by: that of the ``live`` head first, measured before static, then the newest."""
        return (self.head == live, self.tier == "measured", self.run, self.attempt, self.post)


@dataclass(frozen=True)
class Shown:
    """A result as it is shown. ``text`` is markdown of ours, without the stamp."""

    stamp: Stamp
    text: str

    def body(self, live: str | None = None, base: str = "") -> str:
        """As it is posted; ``live``: the head that the pull request has by now, where it is another one; ``base``: the
        branch that it is merged into by now, where that is another one."""
        banner = ""
        if live is not None and live != self.stamp.head:
            banner = _stale(self.stamp.head, live)
        elif base:
            banner = _rebased(base)
        return f"{self.stamp.line()}\n{banner}{self.text}"

    @classmethod
    def read(cls, body: str) -> "Shown | None":
        """The result that a body shows; None where it shows none."""
        first, _, text = body.replace("\r\n", "\n").partition("\n")
        stamp = Stamp.read(first)
        if stamp is None:
            return None
        if text.startswith(STALE):
            text = text.partition("\n\n")[2]
        return cls(stamp, text)

    def renewed(self, post: int) -> "Shown":
        """The same, posted by another run."""
        return replace(self, stamp=replace(self.stamp, post=post))


def strongest(results: "list[Shown]", live: str) -> Shown:
    """The strongest of one result or more; of equally strong ones the first."""
    return max(results, key=lambda shown: shown.stamp.strength(live))


def _stale(head: str, live: str) -> str:
    of, now = Name(head[:12]), Name(live[:12])
    told = sentence(
        ("⏳ **Stale:** what stands below is of ", of, ". The head is ", now, " now; it has no verdict yet.")
    )
    return f"{STALE}\n> {told}\n\n"


def _rebased(base: str) -> str:
    told = sentence(("⏳ **Stale:** what stands below was judged against another base than ", Name(base), "."))
    return f"{STALE}\n> {told}\n\n"
