"""Pull requests with one and the same head. GitHub asks for check runs of a commit, and cannot tell whose they are: so
that the verdict on one is never taken for that on another, all of their check runs have the strictest conclusion.
"""

from collections.abc import Sequence

from regbot.config import GitHub
from regbot.forge import checks
from regbot.forge.checks import Held
from regbot.forge.client import Forge
from regbot.forge.shown import Shown, Stamp


def peers(forge: Forge, held: Held, number: int, sha: str) -> list[Stamp]:
    """Of the verdicts on the other open pull requests with the head ``sha``, by their numbers; none for a merge group.
    Raises ForgeError."""
    found = []
    for other, theirs in sorted(held.beside.items()):
        shown = theirs.shown or theirs.kept
        if not number or not other or shown is None:
            continue
        pull = forge.pull(other)
        if pull.open and pull.head_sha == sha:
            found.append(shown.stamp)
    return found


def tell(forge: Forge, shown: Shown, others: Sequence[Stamp], github: GitHub) -> bool:
    """Bring the check runs of ``others`` up to date with the verdict that ``shown`` is; whether one was changed.

    Each is looked at directly before it is written, and one that waits for a measurement is left to that. Raises
    ForgeError.
    """
    changed = False
    for other in others:
        held = checks.find(forge, other.head, other.pr, github.bot)
        theirs = held.shown
        if theirs is None or held.awaited:
            continue
        all_others = [stamp for stamp in (shown.stamp, *others) if stamp.pr != other.pr]
        ordered = sorted(all_others, key=lambda stamp: stamp.pr)
        changed = checks.write(forge, theirs, held, github, held.title, peers=ordered) or changed
    return changed
