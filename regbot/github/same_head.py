"""Pull requests with the same head commit.

GitHub assigns a check run to a commit and does not know to which pull request it belongs. A required check looks at the
newest check run of a name. This check run must therefore have the strictest conclusion of all pull requests with this
head. Otherwise the passing verdict on one pull request could let another pull request pass.

Anybody can open pull requests with the same head, and many of them must not use up the job's request quota. Therefore
only ``MAX_LOOKUPS`` pull requests are looked up, and the others count as open. Only the newest check run of the other
pull requests is written.

A parameter ``github`` has the settings of the table ``[github]``.
"""

from collections.abc import Sequence

from regbot.github import checks
from regbot.github.checks import HeadChecks
from regbot.github.client import Forge
from regbot.github.stamped_text import Stamp, StampedText
from regbot.records.config import GitHub

MAX_LOOKUPS = 3
"""Largest number of other pull requests whose state is requested from GitHub. The strictest verdicts come first."""


class SameHead:
    """The other pull requests that have the same head ``sha`` as the pull request ``number``.

    The state of a pull request is requested only once in a job. For a merge group, ``number`` is 0, and there are no
    other pull requests. Methods raise ForgeError.
    """

    def __init__(self, forge: Forge, number: int, sha: str, github: GitHub) -> None:
        self._forge, self._number, self._sha, self.github = forge, number, sha, github
        self._is_open: dict[int, bool] = {}

    def find_peers(self, head_checks: HeadChecks) -> list[Stamp]:
        """Return the stamps of the verdicts on other open pull requests, sorted by pull request number; [] for a
        merge group."""
        if not self._number:
            return []
        stamps: list[Stamp] = []
        for number, peer_checks in sorted(head_checks.other_pulls.items()):
            text = peer_checks.completed_text or peer_checks.previous_text
            is_merge_group = number == 0
            if text is not None and not is_merge_group:
                stamps.append(text.stamp)
        # The strictest verdicts are looked up first, because the number of look-ups is limited.
        strictest_first = sorted(stamps, key=lambda stamp: -checks.get_strictness(stamp, self.github))
        open_stamps = [stamp for stamp in strictest_first if self._may_be_open(stamp.pr)]
        return sorted(open_stamps, key=lambda stamp: stamp.pr)

    def _may_be_open(self, number: int) -> bool:
        """Return whether a pull request is open and has the same head. A pull request that is not looked up counts as
        open, so that nobody can hide a verdict behind many other pull requests."""
        if number not in self._is_open:
            if len(self._is_open) >= MAX_LOOKUPS:
                return True
            pull = self._forge.pull(number)
            self._is_open[number] = pull.open and pull.head_sha == self._sha
        return self._is_open[number]

    def update_newest_peer(self, stamped_text: StampedText, peers: Sequence[Stamp], head_checks: HeadChecks) -> bool:
        """Write the newest check run of ``peers`` again, so that its note and conclusion take ``stamped_text`` into
        account. Return whether the check run was changed.

        ``head_checks`` has the check runs that the caller has read. The check run is read once more immediately before
        it is written. A check run that waits for a measurement is not changed.
        """
        peer_numbers = [peer.pr for peer in peers if peer.pr in head_checks.other_pulls]
        if not peer_numbers:
            return False
        number = max(peer_numbers, key=lambda other: head_checks.other_pulls[other].runs[-1].id)
        other_stamps = [stamp for stamp in (stamped_text.stamp, *peers) if stamp.pr != number]
        other_stamps.sort(key=lambda stamp: stamp.pr)

        def needs_update(peer_checks: HeadChecks) -> bool:
            """Return whether the check run shows its result with an outdated conclusion or note. A check run without a
            result, or one that waits for a measurement, needs no update."""
            text = peer_checks.completed_text
            if text is None or peer_checks.pending_nonce:
                return False
            return not checks.is_current(text, peer_checks, self.github, other_stamps)

        if not needs_update(head_checks.other_pulls[number]):
            return False
        present_checks = checks.find(self._forge, self._sha, self._number, self.github.bot).other_pulls.get(number)
        if present_checks is None or present_checks.completed_text is None or not needs_update(present_checks):
            return False
        return checks.write(
            self._forge,
            present_checks.completed_text,
            present_checks,
            self.github,
            present_checks.title,
            peers=other_stamps,
        )
