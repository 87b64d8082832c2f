"""Pull requests with the same head.

GitHub assigns check runs to a commit and does not know to which pull request a check run belongs. The check run that a
required check looks at must therefore have the strictest conclusion of all. Otherwise a passing verdict on one pull
request could let another one pass.

Anybody can open pull requests with the same head, so the number of requests to GitHub must not depend on how many there
are. Only a few pull requests are looked up, and the others count as open. Of their check runs only the newest one is
written, because a required check looks at the newest one.
"""

from collections.abc import Sequence

from regbot.config import GitHub
from regbot.github import checks
from regbot.github.checks import HeadChecks
from regbot.github.client import Forge
from regbot.github.stamped_text import Stamp, StampedText

MAX_LOOKUPS = 3
"""Number of pull requests that are looked up, those with the strictest verdicts first."""


class SameHead:
    """The other pull requests with the head ``sha`` of pull request ``number``, for the time of one job.

    ``number`` is 0 for a merge group, which has no such pull requests. Methods raise ForgeError.
    """

    def __init__(self, forge: Forge, number: int, sha: str, github: GitHub) -> None:
        self._forge, self._number, self._sha, self._github = forge, number, sha, github
        self._is_open: dict[int, bool] = {}

    def find_peers(self, head_checks: HeadChecks) -> list[Stamp]:
        """Return the stamps of the verdicts on other open pull requests, sorted by pull request number.

        A pull request that was not looked up counts as open, so that nobody can hide a verdict behind many others.
        """
        texts = {other: run.completed_text or run.previous_text for other, run in head_checks.other_pulls.items()}
        stamps = [text.stamp for other, text in sorted(texts.items()) if self._number and other and text is not None]
        by_strictness = sorted(stamps, key=lambda stamp: -checks.get_strictness(stamp, self._github))
        return sorted((stamp for stamp in by_strictness if self._may_be_open(stamp.pr)), key=lambda stamp: stamp.pr)

    def _may_be_open(self, number: int) -> bool:
        if number not in self._is_open:
            if len(self._is_open) >= MAX_LOOKUPS:
                return True
            pull = self._forge.pull(number)
            self._is_open[number] = pull.open and pull.head_sha == self._sha
        return self._is_open[number]

    def update_newest_peer(self, stamped_text: StampedText, peers: Sequence[Stamp], head_checks: HeadChecks) -> bool:
        """Write the newest check run of ``peers`` again, so that its note and conclusion include ``stamped_text``.
        Return whether it was changed.

        ``head_checks``: as read in this round. The check run is read again immediately before it is written. One that
        waits for a measurement is not changed.
        """
        numbers = [peer.pr for peer in peers if peer.pr in head_checks.other_pulls]
        if not numbers:
            return False
        number = max(numbers, key=lambda other: head_checks.other_pulls[other].runs[-1].id)
        others = sorted(
            (stamp for stamp in (stamped_text.stamp, *peers) if stamp.pr != number), key=lambda stamp: stamp.pr
        )

        def is_current(other: HeadChecks) -> bool:
            text = other.completed_text
            return text is None or bool(other.pending_nonce) or checks.is_current(text, other, self._github, others)

        if is_current(head_checks.other_pulls[number]):
            return False
        present = checks.find(self._forge, self._sha, self._number, self._github.bot).other_pulls.get(number)
        if present is None or present.completed_text is None or is_current(present):
            return False
        return checks.write(self._forge, present.completed_text, present, self._github, present.title, peers=others)
