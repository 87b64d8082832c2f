"""List the files that a commit changes. GitHub lists at most 300 files of a comparison; git lists all.

git fetches the trees of both commits, without history, into a temporary repository, so that the job's checkout stays
unchanged. No file is checked out.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regbot.github.client import Forge
from regbot.github.types import CommitComparison
from regbot.workloads.checkout.changes import MAX_PYTHON_BYTES, list_changed_paths
from regbot.workloads.checkout.git import common_dir, git


def list_changed_files(forge: Forge, change: CommitComparison, sha: str) -> list[str]:
    """Return the paths of all files that ``sha`` changes since the merge base of ``change``. A renamed file appears
    with both paths. ``change.files`` is GitHub's list; None if it may not be complete. Raises ForgeError,
    CheckoutError."""
    if change.files is not None:
        return list(change.files)
    with fetched_trees(forge, change.merge_base, sha) as repo:
        return list_changed_paths(repo, change.merge_base, sha)


@contextmanager
def fetched_trees(
    forge: Forge, *commits: str, checkout: Path | None = None, with_files: bool = False
) -> Iterator[Path]:
    """Yield a temporary bare repository with ``commits`` and their trees. Raises ForgeError, CheckoutError.

    If ``checkout`` is given, git can also read the objects of this repository through the temporary one. ``with_files``
    also fetches the files, except those that are too large to be compared.
    """
    with tempfile.TemporaryDirectory(prefix="regbot-") as folder:
        repo = Path(folder)
        git(repo, "init", "--quiet", "--bare", "--template=")
        if checkout is not None:
            # Git also reads the objects in the folders that this file lists.
            alternates = repo / "objects" / "info" / "alternates"
            alternates.parent.mkdir(exist_ok=True)
            alternates.write_text(f"{common_dir(checkout) / 'objects'}\n", encoding="utf-8")
        forge.git_remote(repo).fetch_trees(*commits, max_file_bytes=MAX_PYTHON_BYTES if with_files else None)
        yield repo
