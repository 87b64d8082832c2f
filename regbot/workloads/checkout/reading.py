"""Choose the repository from which a check reads trees and files of commits."""

from collections.abc import Sequence
from pathlib import Path

from regbot.workloads.checkout.cache import lock
from regbot.workloads.checkout.clone_pruning import mark_used
from regbot.workloads.checkout.clones import clone_name, fetch_commit, find_source
from regbot.workloads.checkout.git import TRANSFER_TIMEOUT_S


def find_readable_repository(repo: Path, cache_dir: Path, commits: Sequence[str]) -> Path:
    """Return a repository that has all files of ``commits``: ``repo``, or for a partial clone a private clone of it in
    ``cache_dir``, the cache folder of the repository. Raises CheckoutError.
    """
    source = find_source(repo)
    if not source.is_partial:
        return repo
    clone = cache_dir.resolve() / "repos" / clone_name(source)
    with lock(clone.with_suffix(".lock"), 2 * TRANSFER_TIMEOUT_S):
        for commit in commits:
            fetch_commit(clone, source, commit)
        mark_used(clone)
    return clone
