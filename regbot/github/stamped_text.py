"""The posted text of a verdict with its stamp. The comment and the check run contain the same stamped text.

The stamp is the invisible first line. It names the commit and the run that the text came from, so that two posted
results can be ranked. Only stamps in the bot's own comments and check runs can be trusted. The caller must check the
author.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, get_args

from regbot.records.verdict import Status
from regbot.report.markdown import Markdown, Name, sentence
from regbot.text.clip import short_commit

Tier = Literal["static", "measured"]
"""static: the result is self-reported. It comes from a job of the pull request or merge group, which can claim
anything. measured: the result comes from the trusted harness."""

STRENGTH: Mapping[Tier, Mapping[Status, int]] = {
    "measured": {"PASS": 3, "FAIL": 3, "REVIEW": 3, "INCONCLUSIVE": 3, "INVALID": 1},
    "static": {"PASS": 0, "FAIL": 2, "REVIEW": 2, "INCONCLUSIVE": 0, "INVALID": 0},
}
"""Rank of a result by tier and status. Of the results of one commit, the one with the highest rank is shown.

An INVALID measurement ranks below every measured verdict and below a static verdict that blocks the change. It ranks
above all other static results, because a requested measurement without a result must not be green. Before ranks are
compared, older results are dropped: only the newest static result, the newest valid measurement and the newest INVALID
measurement remain.
"""
MAX_CHARACTERS = 65_000
"""Largest length of a posted text. GitHub limits a comment and the summary of a check run to 65,535 characters."""
STALE = "<!-- regbot:stale -->"
NOTE = "<!-- regbot:note -->"
_BANNERS = (STALE, NOTE)
_STAMP = re.compile(r"<!-- regbot:(?:verdict|void) (\{[^\n]*\}) -->")
VOID_BANNER = "> ⛔ **A measurement of this commit gave no result:** "
VOID_BANNER_END = " The verdict below is on the same commit, but from another job."
INVALID_HEADING = "### ⛔ INVALID: "
_LOG = re.compile(r"The log is in \[the run\]\([^()\s]{1,220}\)\.")
_MAX_VOID_CHARACTERS = 2_000
_SHA = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Stamp:
    """Origin of a result. ``run``, ``attempt``: id and attempt of the workflow run that measured. ``post``: id of the
    regbot-post run that posted the result. ``base``: commit that head was compared with; '' where the result was not
    judged. ``target``: name of the pull request's base branch at that time."""

    pr: int
    head: str
    tier: Tier
    run: int
    attempt: int
    status: Status
    post: int = 0
    base: str = ""
    target: str = ""

    @property
    def is_void(self) -> bool:
        """Whether the result is an INVALID measurement."""
        return self.tier == "measured" and self.status == "INVALID"

    @property
    def strength(self) -> int:
        """Rank in ``STRENGTH``."""
        return STRENGTH[self.tier][self.status]

    @property
    def age(self) -> tuple[int, int, int]:
        """Sort key: newer results have higher values."""
        return self.run, self.attempt, self.post

    def line(self, kind: str = "verdict") -> str:
        """Return the line that carries the stamp."""
        text = json.dumps(asdict(self), separators=(",", ":")).replace(">", "\\u003e")  # a branch may be called "-->"
        return f"<!-- regbot:{kind} {text} -->"

    @classmethod
    def read(cls, line: str) -> "Stamp | None":
        """Return the stamp in ``line``; None where the line contains no valid stamp."""
        match = _STAMP.fullmatch(line.strip())
        if match is None:
            return None
        try:
            stamp = cls(**json.loads(match[1]))
        except (ValueError, TypeError, RecursionError):
            return None
        numbers = (stamp.pr, stamp.run, stamp.attempt, stamp.post)
        is_known = stamp.tier in get_args(Tier) and stamp.status in get_args(Status)
        has_texts = all(isinstance(text, str) for text in (stamp.head, stamp.base, stamp.target))
        if not is_known or not has_texts or any(type(number) is not int for number in numbers):
            return None
        return stamp if _SHA.fullmatch(stamp.head) and (not stamp.base or _SHA.fullmatch(stamp.base)) else None


@dataclass(frozen=True)
class StampedText:
    """A result as it is posted. ``text``: regbot's markdown without the stamp.

    ``void``: an INVALID measurement of the same commit, with a text of one line. It is shown as a banner above
    ``text``.
    """

    stamp: Stamp
    text: str
    void: "StampedText | None" = None

    def body(self, current_head: str | None = None, new_target: str = "", note: Markdown | None = None) -> str:
        """Return the posted body.

        ``current_head``: present head of the pull request; if it differs from the stamp's commit, a banner says that
        the text is stale. ``new_target``: present base branch of the pull request, if it has changed since the
        verdict; a banner then says so.
        ``note``: an additional line above the text.
        """
        banner = f"{NOTE}\n> {note}\n\n" if note else ""
        if current_head is not None and current_head != self.stamp.head:
            banner = _write_stale_banner(self.stamp.head, current_head)
        elif new_target:
            banner = _write_target_banner(self.stamp, new_target)
        void = ""
        if self.void is not None:
            reason = self.void.text.removeprefix(INVALID_HEADING)
            void = f"{self.void.stamp.line('void')}\n{VOID_BANNER}{reason}{VOID_BANNER_END}\n\n"
        return f"{self.stamp.line()}\n{banner}{void}{self.text}"

    @classmethod
    def read(cls, body: str) -> "StampedText | None":
        """Return the result in a posted body; None where there is none."""
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
        void_text, _, text = rest.partition("\n\n")
        reason = void_text.removeprefix(VOID_BANNER).removesuffix(VOID_BANNER_END)
        return cls(stamp, text, cls(void, f"{INVALID_HEADING}{reason}"))


def select_strongest(results: Sequence[StampedText], current_head: str) -> StampedText:
    """Return the text to show, chosen from one or more results. Of equally new results the first one counts.

    The chosen text is the strongest one on the current head. Without a result on the current head, it is the strongest
    one on the head of the newest result. A newer INVALID measurement of the same head becomes a banner above the text.
    """
    texts = [replace(text, void=None) for text in results] + [text.void for text in results if text.void]
    newest = max(
        texts, key=lambda text: (text.stamp.head == current_head, text.stamp.tier == "measured", text.stamp.age)
    )
    latest: dict[tuple[Tier, int, int], StampedText] = {}
    for text in (candidate for candidate in texts if candidate.stamp.head == newest.stamp.head):
        stamp = text.stamp
        earlier = latest.setdefault((stamp.tier, stamp.run, stamp.attempt), text)
        if earlier.stamp.post < stamp.post:  # ``text`` is the same measurement, judged again later
            latest[stamp.tier, stamp.run, stamp.attempt] = text
    newest_of_kind: dict[tuple[Tier, bool], StampedText] = {}
    for text in sorted(latest.values(), key=lambda text: text.stamp.age):
        newest_of_kind[text.stamp.tier, text.stamp.is_void] = text
    best = max(newest_of_kind.values(), key=lambda text: text.stamp.strength)
    void = newest_of_kind.get(("measured", True))
    if void is None or void is best or (best.stamp.tier == "measured" and void.stamp.age < best.stamp.age):
        return best
    return replace(best, void=_shorten(void))


def _shorten(stamped_text: StampedText) -> StampedText:
    """Shorten the text of an INVALID measurement to one line for the banner: the reason and the place of the log."""
    first, _, rest = stamped_text.text.strip().partition("\n")
    if not rest:
        return replace(stamped_text, text=first)
    log = _LOG.search(rest)
    line = f"{first}. {log[0]}" if log else f"{first}."
    return replace(
        stamped_text,
        text=line if len(line) < _MAX_VOID_CHARACTERS else f"{INVALID_HEADING}see run {stamped_text.stamp.run}.",
    )


def _write_stale_banner(head: str, current_head: str) -> str:
    old_name, new_name = Name(short_commit(head)), Name(short_commit(current_head))
    message = sentence(
        (
            "⏳ **Stale:** the result below belongs to ",
            old_name,
            ". The head is now ",
            new_name,
            ", which has no verdict yet. Commands below that name ",
            old_name,
            " are refused.",
        )
    )
    return f"{STALE}\n> {message}\n\n"


def _write_target_banner(stamp: Stamp, target: str) -> str:
    """Return the banner for a verdict whose head is current, but whose base branch is no longer the pull request's.

    ``target``: the present base branch of the pull request.
    """
    old_branch = (" against ", Name(stamp.target)) if stamp.target else (" against another base branch",)
    old_commit = (" at ", Name(short_commit(stamp.base))) if stamp.base else ()
    message = sentence(
        (
            "⏳ **Stale:** the result below belongs to ",
            Name(short_commit(stamp.head)),
            *old_branch,
            *old_commit,
            ". The base branch is now ",
            Name(target),
            ". There is no verdict against it yet.",
        )
    )
    return f"{STALE}\n> {message}\n\n"
