"""Files of a commit without a checkout of it: what a check reads of the base besides its code."""

import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from regbot.checkout.git import TRANSFER_TIMEOUT_S, git, try_git


def export(repo: Path, commit: str, paths: Sequence[str], to: Path) -> list[str]:
    """Put those of ``paths`` that ``commit`` has below the folder ``to``; returns them. Raises CheckoutError."""
    there = [path for path in paths if try_git(repo, "cat-file", "-e", f"{commit}:{path}").code == 0]
    if there:
        with tempfile.TemporaryDirectory(prefix="regbot-") as scratch:
            archive = Path(scratch) / "files.tar"
            git(
                repo,
                "archive",
                "--format=tar",
                f"--output={archive}",
                commit,
                "--",
                *there,
                timeout_s=TRANSFER_TIMEOUT_S,
            )
            with tarfile.open(archive) as files:
                files.extractall(to, filter="data")
    return there
