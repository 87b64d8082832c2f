"""What is shown of a verdict: one text with a stamp on it, in the comment and in the check run alike.

The stamp is the first line, and cannot be seen. It says of which commit the text is and where it came from, so that the
stronger of two results can be told from the weaker, wherever they stand. Only the bot's own stamps are believed, which
whoever reads one has to see to.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, get_args

from regbot.records.verdict import Status
from regbot.report.markdown import Markdown, Name, sentence

Tier = Literal["static", "measured"]
"""static: by a job of the pull request, which may say what it likes. measured: by the trusted harness."""

STRENGTH: Mapping[Tier, Mapping[Status, int]] = {
    "measured": {"PASS": 3, "FAIL": 3, "REVIEW": 3, "INCONCLUSIVE": 3, "INVALID": 1},
    "static": {"PASS": 0, "FAIL": 2, "REVIEW": 2, "INCONCLUSIVE": 0, "INVALID": 0},
}
"""Which result of one commit stands: the highest.

A measurement that came to nothing takes no verdict away that stops the change, and none that was measured. It does
replace a static one that lets the change pass: a measurement was asked for, there is none, and that is not green.
Before that, of each tier the newest counts; of measurements the newest that came to something, where one did.
"""
MAX_CHARACTERS = 65_000
"""Of a comment and of a check run's summary GitHub takes 65,535."""
STALE = "<!-- regbot:stale -->"
NOTE = "<!-- regbot:note -->"
_BANNERS = (STALE, NOTE)
_STAMP = re.compile(r"<!-- regbot:(?:verdict|void) (\{[^\n]*\}) -->")
_VOID = "> ⛔ **A measurement of this commit came to nothing, and what stands below is not its result:** "
_INVALID = "### ⛔ INVALID: "
_LOG = re.compile(r"The log is in \[the run\]\([^()\s]{1,220}\)\.")
_MAX_VOID = 2_000
_SHA = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Stamp:
    """Where a result came from. ``run``, ``attempt``: of the workflow that measured; ``post``: the run that posts;
    ``base``: the commit that it was held against, '' where it was not judged."""

    pr: int
    head: str
    tier: Tier
    run: int
    attempt: int
    status: Status
    post: int = 0
    base: str = ""

    @property
    def self_reported(self) -> bool:
        """Whether a job of the pull request has made it, which its author has written."""
        return self_reported(self.tier, self.pr)

    @property
    def nothing(self) -> bool:
        """Whether it is a measurement that came to nothing."""
        return self.tier == "measured" and self.status == "INVALID"

    @property
    def strength(self) -> int:
        """Of ``STRENGTH``."""
        return STRENGTH[self.tier][self.status]

    @property
    def age(self) -> tuple[int, int, int]:
        """The higher, the newer."""
        return self.run, self.attempt, self.post

    def line(self, what: str = "verdict") -> str:
        """As it is written."""
        return f"<!-- regbot:{what} {json.dumps(asdict(self), separators=(',', ':'))} -->"

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
        texts = isinstance(stamp.head, str) and isinstance(stamp.base, str)
        if not known or not texts or any(type(number) is not int for number in numbers):
            return None
        return stamp if _SHA.fullmatch(stamp.head) and (not stamp.base or _SHA.fullmatch(stamp.base)) else None


def self_reported(tier: Tier, number: int) -> bool:
    """Whether a job of the pull request ``number``, 0 for a merge group, has made a result."""
    return tier == "static" and number != 0


@dataclass(frozen=True)
class Shown:
    """A result as it is shown. ``text`` is markdown of ours, without the stamp.

    ``void``: a measurement of the same commit that came to nothing, which is told above it; its text is one line.
    """

    stamp: Stamp
    text: str
    void: "Shown | None" = None

    def body(self, live: str | None = None, base: str = "", note: Markdown | None = None) -> str:
        """As it is posted; ``live``: the head that the pull request has by now, where it is another one; ``base``: the
        branch that it is merged into by now, where that is another one; ``note``: what else is said above it."""
        banner = f"{NOTE}\n> {note}\n\n" if note else ""
        if live is not None and live != self.stamp.head:
            banner = _stale(self.stamp.head, live)
        elif base:
            banner = _rebased(base)
        void = ""
        if self.void is not None:
            void = f"{self.void.stamp.line('void')}\n{_VOID}{self.void.text.removeprefix(_INVALID)}\n\n"
        return f"{self.stamp.line()}\n{banner}{void}{self.text}"

    @classmethod
    def read(cls, body: str) -> "Shown | None":
        """The result that a body shows; None where it shows none."""
        first, _, text = body.replace("\r\n", "\n").partition("\n")
        stamp = Stamp.read(first)
        if stamp is None:
            return None
        if text.startswith(_BANNERS):
            text = text.partition("\n\n")[2]
        line, _, rest = text.partition("\n")
        void = Stamp.read(line)
        if void is None:
            return cls(stamp, text)
        told, _, text = rest.partition("\n\n")
        return cls(stamp, text, cls(void, f"{_INVALID}{told.removeprefix(_VOID)}"))


def strongest(results: Sequence[Shown], live: str) -> Shown:
    """What is to be shown of one result or more: the strongest on the ``live`` head, or else on another one, and above
    it the newest measurement of that head that came to nothing since. Of equally new ones the first counts."""
    single = [replace(shown, void=None) for shown in results] + [shown.void for shown in results if shown.void]
    newest = max(single, key=lambda shown: (shown.stamp.head == live, shown.stamp.tier == "measured", shown.stamp.age))
    last: dict[tuple[Tier, int, int], Shown] = {}
    for shown in (each for each in single if each.stamp.head == newest.stamp.head):
        stamp = shown.stamp
        before = last.setdefault((stamp.tier, stamp.run, stamp.attempt), shown)
        if before.stamp.post < stamp.post:  # the same measurement, judged again
            last[stamp.tier, stamp.run, stamp.attempt] = shown
    kinds: dict[tuple[Tier, bool], Shown] = {}
    for shown in sorted(last.values(), key=lambda shown: shown.stamp.age):
        kinds[shown.stamp.tier, shown.stamp.nothing] = shown
    best = max(kinds.values(), key=lambda shown: shown.stamp.strength)
    void = kinds.get(("measured", True))
    if void is None or void is best or (best.stamp.tier == "measured" and void.stamp.age < best.stamp.age):
        return best
    return replace(best, void=_in_a_line(void))


def _in_a_line(shown: Shown) -> Shown:
    """A measurement that came to nothing, as it is told above another result: why, and where its log is."""
    first, _, rest = shown.text.strip().partition("\n")
    if not rest:
        return replace(shown, text=first)
    log = _LOG.search(rest)
    line = f"{first}. {log[0]}" if log else f"{first}."
    return replace(shown, text=line if len(line) < _MAX_VOID else f"{_INVALID}see run {shown.stamp.run}.")


def _stale(head: str, live: str) -> str:
    of, now = Name(head[:12]), Name(live[:12])
    told = sentence(
        ("⏳ **Stale:** what stands below is of ", of, ". The head is ", now, " now; it has no verdict yet.")
    )
    return f"{STALE}\n> {told}\n\n"


def _rebased(base: str) -> str:
    told = sentence(("⏳ **Stale:** what stands below was judged against another base than ", Name(base), "."))
    return f"{STALE}\n> {told}\n\n"
