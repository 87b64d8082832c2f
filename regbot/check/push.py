"""Decide for a pre-push hook whether the pushed commits need a check, and whether its verdict stops the push."""

from pathlib import Path

from regbot.records.config import FILE_NAME
from regbot.records.verdict import Status
from regbot.workloads.checkout import has_commits_of_its_own, target_tip
from regbot.workloads.checkout.git import file_at


def why_nothing_to_compare(repo: Path, base: str | None, head: str, config: Path | None) -> str:
    """Return why a push of ``head`` needs no check; '' if it needs one. Raises CheckoutError.

    ``head`` is a revision, such as HEAD. ``base`` is the target branch; None to guess it. ``config`` is the file that
    replaces the ``regbot.toml`` of the commits; None if their own file is used.
    """
    if not has_commits_of_its_own(repo, base, head):
        return f"{head} has no commits that the target branch lacks, or no history in common with it"
    if config is not None:
        return ""
    if all(file_at(repo, FILE_NAME, revision) is None for revision in (target_tip(repo, base), head)):
        return f"neither {head} nor the target branch has a {FILE_NAME}"
    return ""


def stops_push(status: Status) -> bool:
    """Return whether a verdict stops a push. Only FAIL does.

    REVIEW does not stop it, because a maintainer can accept the change only after the push. INVALID and INCONCLUSIVE do
    not stop it, because they do not show a regression. For example, a push that introduces regbot is INVALID, because
    its base cannot be measured.
    """
    return status == "FAIL"
