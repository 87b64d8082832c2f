"""The posted text of a verdict with its stamp. The comment and the check run contain the same stamped text.

The stamp is the invisible first line. It names the commit and the workflow run, so that two results can be ranked.
Anybody can write a stamp into a comment, so the caller must check that regbot's app is the author.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from regbot.records.text.clip import short_commit
from regbot.records.verdict import Status
from regbot.report.markdown import code

Tier = Literal["static", "measured"]
"""static: the result is self-reported. It comes from a job of the pull request or merge group, which could have forged
it. measured: the result comes from regbot-measure, whose workflow file the pull request cannot change."""

STRENGTH: Mapping[Tier, Mapping[Status, int]] = {
    "measured": {"PASS": 3, "FAIL": 3, "REVIEW": 3, "INCONCLUSIVE": 3, "INVALID": 1},
    "static": {"PASS": 0, "FAIL": 2, "REVIEW": 2, "INCONCLUSIVE": 0, "INVALID": 0},
}
"""Rank of a result by tier and status. The result with the highest rank is shown for a commit.

Only the newest static result, the newest valid measurement and the newest INVALID measurement of the commit are
compared. An INVALID measurement ranks below every valid measurement, and below the static results FAIL and REVIEW. It
ranks above all other static results, because a commit must not pass if its requested measurement failed.
"""
MAX_CHARACTERS = 65_000
"""Largest length of a posted text. GitHub limits a comment and the summary of a check run to 65,535 characters."""
STALE = "<!-- regbot:stale -->"
"""Invisible first line of a banner that says that the result is stale."""
NOTE = "<!-- regbot:note -->"
"""Invisible first line of any other note above the text."""
_BANNERS = (STALE, NOTE)
_STAMP = re.compile(r"<!-- regbot:(?:verdict|void) (\{[^\n]*\}) -->")
VOID_BANNER = "> ⛔ **A measurement of this commit gave no result:** "
VOID_BANNER_END = " The verdict below is on the same commit, but from another job."
INVALID_HEADING = "### ⛔ INVALID: "
_LOG = re.compile(r"The log is in \[the run\]\([^()\s]{1,220}\)\.")
_MAX_VOID_CHARACTERS = 2_000


@pydantic_dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Stamp:
    pr: int
    """Number of the pull request; 0 for a merge group."""
    head: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    tier: Tier
    run: int
    attempt: int
    """Attempt of ``run``. GitHub counts the attempts if somebody runs the workflow run again."""
    status: Status
    base: Annotated[str, Field(pattern=r"^([0-9a-f]{40})?$")] = ""
    """Commit that head was compared with; '' if the result was not judged."""
    target: str = ""

    @property
    def is_void(self) -> bool:
        return self.tier == "measured" and self.status == "INVALID"

    @property
    def recency(self) -> tuple[int, int]:
        """Sort key. Newer results have higher values, because GitHub's ids grow with time."""
        return self.run, self.attempt

    def line(self, kind: str = "verdict") -> str:
        """Return the stamp as an invisible line. ``kind`` is "verdict", or "void" for the INVALID measurement in a
        banner."""
        text = json.dumps(asdict(self), separators=(",", ":"))
        escaped_text = text.replace(">", "\\u003e")  # a branch may be called "-->", which would end the HTML comment
        return f"<!-- regbot:{kind} {escaped_text} -->"

    @classmethod
    def read(cls, line: str) -> "Stamp | None":
        """Return the stamp in ``line``; None if the line contains no valid stamp."""
        match = _STAMP.fullmatch(line.strip())
        if match is None:
            return None
        try:
            return _STAMP_ADAPTER.validate_json(match[1])
        except ValidationError:  # somebody has edited the comment
            return None


_STAMP_ADAPTER = TypeAdapter(Stamp)


@dataclass(frozen=True)
class StampedText:
    stamp: Stamp
    text: str
    void: "StampedText | None" = None

    def body(self, current_head: str | None = None, note: str | None = None) -> str:
        """Return the posted body: stamp, banners and text.

        If it is not the stamp's commit, a banner says that the text is stale. It is left out if there is a banner about
        a stale text.
        """
        banner = f"{NOTE}\n> {note}\n\n" if note else ""
        if current_head is not None and current_head != self.stamp.head:
            banner = _write_stale_banner(self.stamp.head, current_head)
        void_banner = ""
        if self.void is not None:
            reason = self.void.text.removeprefix(INVALID_HEADING)
            void_banner = f"{self.void.stamp.line('void')}\n{VOID_BANNER}{reason}{VOID_BANNER_END}\n\n"
        return f"{self.stamp.line()}\n{banner}{void_banner}{self.text}"

    @classmethod
    def read(cls, body: str) -> "StampedText | None":
        """Return the result in a posted body; None if the body has no stamp. The method
        ``body`` writes such a body. Stale banners and notes are left out."""
        first_line, _, text = body.replace("\r\n", "\n").partition("\n")
        stamp = Stamp.read(first_line)
        if stamp is None:
            return None
        if text.startswith(_BANNERS):
            _, _, text = text.partition("\n\n")  # an empty line ends a banner
        possible_stamp, _, rest = text.partition("\n")
        void_stamp = Stamp.read(possible_stamp)
        if void_stamp is None:
            return cls(stamp, text)
        void_banner, _, text = rest.partition("\n\n")
        reason = void_banner.removeprefix(VOID_BANNER).removesuffix(VOID_BANNER_END)
        return cls(stamp, text, cls(void_stamp, f"{INVALID_HEADING}{reason}"))


def select_strongest(results: Sequence[StampedText]) -> StampedText:
    """Return the strongest of one or more results on one commit (``STRENGTH``). Of two judgements of one run, the last
    of ``results`` counts.

    A newer INVALID measurement becomes a banner above the text.
    """
    texts = [text for result in results for text in (replace(result, void=None), result.void) if text is not None]
    latest_by_run = {(text.stamp.tier, *text.stamp.recency): text for text in texts}
    newest_of_kind: dict[tuple[Tier, bool], StampedText] = {}
    for text in sorted(latest_by_run.values(), key=lambda text: text.stamp.recency):
        newest_of_kind[text.stamp.tier, text.stamp.is_void] = text
    strongest = max(newest_of_kind.values(), key=lambda text: STRENGTH[text.stamp.tier][text.stamp.status])
    void_text = newest_of_kind.get(("measured", True))
    if void_text is None or void_text is strongest:
        return strongest
    is_void_outdated = strongest.stamp.tier == "measured" and void_text.stamp.recency < strongest.stamp.recency
    return strongest if is_void_outdated else replace(strongest, void=_shorten(void_text))


def _shorten(stamped_text: StampedText) -> StampedText:
    first_line, _, rest = stamped_text.text.strip().partition("\n")
    if not rest:
        return replace(stamped_text, text=first_line)
    log = _LOG.search(rest)
    short_text = f"{first_line}. {log[0]}" if log else f"{first_line}."
    if len(short_text) >= _MAX_VOID_CHARACTERS:
        short_text = f"{INVALID_HEADING}see run {stamped_text.stamp.run}."
    return replace(stamped_text, text=short_text)


def _write_stale_banner(head: str, current_head: str) -> str:
    old_name, new_name = code(short_commit(head)), code(short_commit(current_head))
    message = (
        f"⏳ **Stale:** the result below belongs to {old_name}. The head is now {new_name}, which has no verdict yet. "
        f"Commands below that name {old_name} are refused."
    )
    return f"{STALE}\n> {message}\n\n"
