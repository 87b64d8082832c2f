"""Decide for a pre-push hook whether the pushed commits need a check, and whether its verdict stops the push."""

from pathlib import Path

from regbot.records.config import FILE_NAME
from regbot.records.verdict import Status
from regbot.workloads.checkout.arms import has_commits_of_its_own, target_tip
from regbot.workloads.checkout.git import file_at


def why_nothing_to_compare(repo: Path, base: str | None, head: str, config: Path | None) -> str:
    """Return why a push of ``head`` needs no check; '' if it needs one. ``base`` None guesses the target branch.
    ``config`` replaces the ``regbot.toml`` of the commits. Raises CheckoutError.
    """
    if not has_commits_of_its_own(repo, base, head):
        return f"{head} has no commits that the target branch lacks, or no history in common with it"
    if config is not None:
        return ""
    if all(file_at(repo, FILE_NAME, revision) is None for revision in (target_tip(repo, base), head)):
        return f"neither {head} nor the target branch has a {FILE_NAME}"
    return ""


def stops_push(status: Status) -> bool:
    """REVIEW does not stop it, because a maintainer can accept the change only after the push. INVALID and INCONCLUSIVE
    show no regression. For example, a push that introduces regbot is INVALID.
    """
    return status == "FAIL"
