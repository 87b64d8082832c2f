"""Choose the repository from which a check reads trees and files of commits.

If the user's repository is complete, the check reads from it. If it is a partial clone, the check reads from a private
clone. Otherwise git would fetch the missing files into the user's repository one by one.
"""

from collections.abc import Sequence
from pathlib import Path

from regbot.workloads.checkout.cache import lock
from regbot.workloads.checkout.changes import MAX_FILES, list_diff_entries
from regbot.workloads.checkout.clone_pruning import mark_used
from regbot.workloads.checkout.clones import clone_name, fetch_history, find_source, reset_configuration
from regbot.workloads.checkout.git import TRANSFER_TIMEOUT_S, git
from regbot.workloads.checkout.partial import copy_files


def find_readable_repository(repo: Path, cache_dir: Path, commits: Sequence[str], paths: Sequence[str]) -> Path:
    """Return a repository that has the trees of ``commits``, their files at ``paths`` and below, and the files that
    differ between the first and the last commit.

    If ``repo`` is a partial clone, this is a private clone in ``cache_dir``, the cache folder of the repository. Files
    that ``repo`` lacks are fetched from its remote into the private clone. Raises CheckoutError.
    """
    source = find_source(repo)
    if not source.is_partial:
        return repo
    clone = cache_dir.resolve() / "repos" / clone_name(source)
    with lock(clone.with_suffix(".lock"), 2 * TRANSFER_TIMEOUT_S):
        for commit in commits:
            fetch_history(clone, source, commit)
        entries = list_diff_entries(clone, commits[0], commits[-1])
        # If more files have changed, the check does not compare their contents.
        entries_to_read = entries if len(entries) <= MAX_FILES else []
        blobs = set()
        for entry in entries_to_read:
            blobs |= {blob for mode, blob in zip(entry.modes, entry.blobs, strict=True) if _is_file(mode)}
        for commit in commits:
            blobs |= _list_blobs(clone, commit, paths)
        copy_files(clone, source.git_dirs[0], commits, blobs)
        reset_configuration(clone, commits[0])
        mark_used(clone)
    return clone


def _is_file(mode: str) -> bool:
    """Return whether git's mode is that of a file (100644, 100755) or a link (120000).

    A submodule has the mode 160000, and a missing file has 000000.
    """
    return mode.startswith("1") and mode != "160000"


def _list_blobs(clone: Path, commit: str, paths: Sequence[str]) -> set[str]:
    """Return the blobs of a commit at ``paths`` and below; none if ``paths`` is empty."""
    if not paths:
        return set()  # without paths, git would list the whole commit
    command = ("ls-tree", "-r", "-z", "--full-tree", commit, "--", *paths)
    listing = git(clone, f"--git-dir={clone}", *command, env={"GIT_LITERAL_PATHSPECS": "1"})
    fields = [line.partition("\t")[0].split() for line in listing.split("\0") if line]
    return {blob for mode, _kind, blob in fields if _is_file(mode)}
