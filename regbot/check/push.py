"""The check before a push: whether the pushed commits can be compared with anything, and whether they may be pushed."""

from pathlib import Path

from regbot.checkout import has_commits_of_its_own, target_tip
from regbot.checkout.git import file_at
from regbot.config import FILE_NAME
from regbot.records.verdict import Status


def why_nothing_to_compare(repo: Path, base: str | None, head: str, config: Path | None) -> str:
    """Return why a push of ``head`` needs no check; '' if it needs one. Raises CheckoutError.

    If ``base`` is None, the target branch is guessed. ``config`` is the file that replaces the ``regbot.toml`` of the
    commits; None if there is none.
    """
    if not has_commits_of_its_own(repo, base, head):
        return f"{head} has no commits that the target branch lacks, or no history in common with it"
    if config is None and all(file_at(repo, FILE_NAME, tip) is None for tip in (target_tip(repo, base), head)):
        return f"neither {head} nor the target branch has a {FILE_NAME}"
    return ""


def stops_push(status: Status) -> bool:
    """Return whether a verdict stops a push.

    Only FAIL stops a push. A maintainer can accept a REVIEW only after the push. INVALID and INCONCLUSIVE say nothing
    about the pushed commits. For example, the base of the push that introduces regbot cannot be measured.
    """
    return status == "FAIL"
