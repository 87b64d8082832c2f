"""The comment and the check run of one result, made to agree on the strongest that there is.

GitHub cannot be told to write only if nothing has changed, so two posters may overwrite each other. Whoever writes
reads again until a whole round has changed nothing, the one place always after the other was written; a weaker result
that was written late is then seen beside the stronger one in the other place, and goes. Without posters at the same
time a second round just reads.

A measurement that came to nothing leaves what stands there, and is told above it (``shown.STRENGTH``), unless that was
held against another base than the pull request has by now.

Only the check run is believed, which nobody but our app can change. Whoever has the role write can edit the comment: a
result that stands there alone is no more than the number of a run, which is judged again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from regbot.config import GitHub
from regbot.forge import checks, sticky
from regbot.forge.checks import Held
from regbot.forge.client import Forge
from regbot.forge.peers import peers, tell
from regbot.forge.shown import Shown, Stamp, strongest
from regbot.forge.types import Annotation

ROUNDS = 8


@dataclass(frozen=True)
class Result:
    """What is to be posted, if nothing stronger is there. ``nonce``: of its measurement, or ``checks.STATIC``;
    ``bases``: the commits that a verdict on the head is held against, None for any.

    ``fault``: the traceback where regbot itself failed on what the run left; it is for the job's log.
    """

    shown: Shown
    nonce: str
    title: str
    annotations: Sequence[Annotation] = ()
    url: str = ""
    bases: Sequence[str] | None = None
    fault: str = ""


@dataclass(frozen=True)
class Settled:
    """How it ended: what the comment shows, None without one, and whether the check run shows the result."""

    comment: Shown | None
    live: str
    concluded: bool


Again = Callable[[Stamp], Result | None]
"""The result of the run that a stamp names, judged now; None where it has none of that commit and pull request."""


def settle(forge: Forge, result: Result, github: GitHub, again: Again = lambda _: None) -> Settled:
    """Post ``result``. A deleted comment is made again. Raises ForgeError; to call it again then completes it."""
    stamp = result.shown.stamp
    own, asked, new = [result], set[int](), True
    on_comment: Shown | None = None
    for _ in range(ROUNDS):
        live = forge.pull(stamp.pr).head_sha if stamp.pr else stamp.head
        held = checks.find(forge, stamp.head, stamp.pr, github.bot)
        before = len(own)
        kept = held.kept if result.nonce == held.awaited and stamp.status == "INVALID" else None
        if kept is not None and kept.stamp.run not in asked and kept.stamp.run != stamp.run:
            asked.add(kept.stamp.run)  # what was declared since is in no check run
            judged = again(kept.stamp)
            own = [judged, *own] if judged is not None else own
        of_head = [each for each in own if each.shown.stamp.head == stamp.head]
        there_now = _standing(held, result)
        on_check = _best(new, of_head, there_now, stamp.head)
        changed = False
        concluded = held.awaited in ("", *(each.nonce for each in of_head))  # else its measurement will conclude it
        if concluded:
            mine = next((each for each in of_head if each.shown == replace(on_check, void=None)), None)
            title = mine.title if mine is not None else held.title or f"{on_check.stamp.status}: see the summary"
            notes = mine.annotations if mine is not None else ()
            others = peers(forge, held, stamp.pr, stamp.head)
            changed = checks.write(forge, on_check, held, github, title, notes, (mine or result).url, others)
            changed = tell(forge, on_check, others, github) or changed
        if stamp.pr:
            there = sticky.find(forge, stamp.pr, github.bot, live)
            of_live = on_check if live == stamp.head else checks.find(forge, live, stamp.pr, github.bot).shown
            known: list[Shown | None] = [on_check, of_live]
            for claim in _claims(there, [*known, *(each.shown for each in own)], live):
                of_claimed = None
                if claim.head not in (stamp.head, live):
                    of_claimed = checks.find(forge, claim.head, stamp.pr, github.bot).shown
                if of_claimed is not None and _outdoes(of_claimed, claim, live):
                    known.append(of_claimed)
                elif claim.run not in asked:
                    asked.add(claim.run)
                    judged = again(claim)
                    own = [judged, *own] if judged is not None else own
            on_comment = _best(new or len(own) > before, own, known, live)
            changed = sticky.write(forge, stamp.pr, github.bot, live, on_comment, there) or changed
        new = len(own) > before
        if not changed and not new:
            break
    return Settled(on_comment, live, concluded)


def _standing(held: Held, result: Result) -> list[Shown | None]:
    """What stands in the check run, or stood there before a measurement was asked for. What was held against another
    base takes nothing away from a result that could not be judged, and does not come back."""
    bases = result.bases

    def holds(shown: Shown | None) -> Shown | None:
        if shown is None or bases is None or shown.stamp.status == "INVALID" or shown.stamp.base in bases:
            return shown
        return shown.void

    return [holds(held.shown) if result.shown.stamp.status == "INVALID" else held.shown, holds(held.kept)]


def _best(new: bool, own: Sequence[Result], others: Sequence[Shown | None], live: str) -> Shown:
    """The strongest. What is ``new`` replaces what is equally strong, later what is there stays, whoever wrote it."""
    ours = [each.shown for each in own]
    known = [shown for shown in others if shown is not None]
    return strongest([*ours, *known] if new else [*known, *ours], live)


def _claims(there: sticky.Sticky | None, known: Sequence[Shown | None], live: str) -> list[Stamp]:
    """The stamps in the comment, and in younger ones, that are of more than all that is known."""
    sure = [shown for shown in known if shown is not None]
    claimed = [shown for each in there.claims for shown in (each, each.void) if shown] if there is not None else []
    found = []
    for shown in claimed:
        best = strongest([*sure, replace(shown, void=None)], live)
        stamps = [each.stamp for each in sure] + [each.void.stamp for each in sure if each.void]
        of_best = (best.stamp, best.void.stamp if best.void else None)
        if shown.stamp not in stamps and shown.stamp in of_best:
            found.append(shown.stamp)
    return found


def _outdoes(shown: Shown, claim: Stamp, live: str) -> bool:
    """Whether what is known of a commit is at least what a comment claims of it."""
    return strongest([shown, Shown(claim, "")], live).stamp != claim or shown.stamp == claim
