"""Pull requests with the same head.

GitHub assigns check runs to a commit and does not know to which pull request a check run belongs. All check runs of a
head therefore get the strictest conclusion. Otherwise a passing verdict on one pull request could let another one pass.
"""

from collections.abc import Sequence

from regbot.config import GitHub
from regbot.github import checks
from regbot.github.checks import HeadChecks
from regbot.github.client import Forge
from regbot.github.stamped_text import Stamp, StampedText


def find_peers(forge: Forge, head_checks: HeadChecks, number: int, sha: str) -> list[Stamp]:
    """Return the stamps of the verdicts on other open pull requests with the head ``sha``, sorted by pull request
    number.

    A merge group has no such pull requests. Raises ForgeError.
    """
    peers = []
    for other, other_checks in sorted(head_checks.other_pulls.items()):
        text = other_checks.completed_text or other_checks.previous_text
        if not number or not other or text is None:
            continue
        pull = forge.pull(other)
        if pull.open and pull.head_sha == sha:
            peers.append(text.stamp)
    return peers


def update_peers(forge: Forge, stamped_text: StampedText, others: Sequence[Stamp], github: GitHub) -> bool:
    """Write the check runs of ``others`` again, so that their notes and conclusions include ``stamped_text``. Return
    whether a check run was changed.

    Each check run is read immediately before it is written. A check run that waits for a measurement is not changed.
    Raises ForgeError.
    """
    changed = False
    for other in others:
        head_checks = checks.find(forge, other.head, other.pr, github.bot)
        other_text = head_checks.completed_text
        if other_text is None or head_checks.pending_nonce:
            continue
        all_others = [stamp for stamp in (stamped_text.stamp, *others) if stamp.pr != other.pr]
        peers = sorted(all_others, key=lambda stamp: stamp.pr)
        changed = checks.write(forge, other_text, head_checks, github, head_checks.title, peers=peers) or changed
    return changed
