"""Build the demo's git repository: a small MoE training code and one pull request to it.

The folder ``sources`` has the code of an invented team. The folder ``patches`` has pull requests with known effects:

    fallback   a refactoring that maps the expert axis twice by mistake, so that all-to-all becomes all-gather +
               reduce-scatter; loss and gradients stay the same
    harmless   a refactoring that does not change the device program
    slow       the experts also compute padding rows, so that a step of the small ``cpu`` variant takes about 50%
               longer; the collectives stay the same

Commit ids are the same on every machine, because authors and dates are fixed and the user's git configuration is not
read.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Literal

from regbot.workloads.checkout.git import git

PullRequest = Literal["fallback", "harmless", "slow"]

BASE_BRANCH = "main"
BRANCHES: Mapping[PullRequest, str] = {
    "fallback": "unify-token-exchange",
    "harmless": "split-dispatch",
    "slow": "batched-experts",
}


@dataclass(frozen=True)
class DemoRepository:
    """A git repository in which ``branch``, the branch of the pull request, is checked out.

    ``base`` and ``head`` are full commit ids. ``title`` is the subject of the head commit.
    """

    path: Path
    base: str
    head: str
    branch: str
    title: str
    base_branch: str = BASE_BRANCH


@dataclass(frozen=True)
class _Commit:
    """A commit of the base branch that adds ``files``, which are paths in the repository."""

    subject: str
    author: str
    email: str
    date: str
    files: tuple[str, ...]


_HISTORY = (
    _Commit(
        "MoE layer with expert parallelism",
        "Ines Moreau",
        "ines@moetrain.example",
        "2026-03-02T09:41:12+0100",
        (
            "README.md",
            "pyproject.toml",
            "src/moetrain/__init__.py",
            "src/moetrain/collectives.py",
            "src/moetrain/dispatch.py",
            "src/moetrain/experts.py",
            "src/moetrain/moe.py",
            "src/moetrain/router.py",
        ),
    ),
    _Commit(
        "Compare two ranks with one process",
        "Tomasz Lind",
        "tomasz@moetrain.example",
        "2026-03-03T16:05:47+0100",
        ("tests/test_moe.py",),
    ),
    _Commit(
        "Count the collectives of every pull request",
        "Ines Moreau",
        "ines@moetrain.example",
        "2026-03-06T11:20:03+0100",
        ("regbot.toml",),
    ),
)

_NO_CONFIGURATION = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "0",
}


def build_repository(destination: Path, pull_request: PullRequest) -> DemoRepository:
    """Build the repository in ``destination``, which must be empty or not exist.

    Raises FileExistsError if ``destination`` is not empty, and CheckoutError if git fails.
    """
    if destination.exists() and any(destination.iterdir()):
        raise FileExistsError(f"{destination}: is not empty; give a folder that does not exist yet")
    destination.mkdir(parents=True, exist_ok=True)
    # The defaults of git for the first branch and the hash depend on its version, and a template may add hooks.
    _git(destination, "init", "--quiet", "--template=", "--object-format=sha1", f"--initial-branch={BASE_BRANCH}")
    for commit in _HISTORY:
        _add_commit(destination, commit)
    base = _git(destination, "rev-parse", "HEAD")

    branch = BRANCHES[pull_request]
    _git(destination, "checkout", "--quiet", "-b", branch)
    with as_file(files("regbot.cli.demo") / "patches" / f"{pull_request}.patch") as patch:
        # The patch names its author. The merger is git's committer.
        merger = _identity("Ines Moreau", "ines@moetrain.example", roles=("COMMITTER",))
        _git(destination, "am", "--quiet", "--committer-date-is-author-date", str(patch.resolve()), env=merger)
    head, title = _git(destination, "log", "-1", "--format=%H %s").split(" ", 1)
    return DemoRepository(destination, base, head, branch, title)


def _add_commit(repository: Path, commit: _Commit) -> None:
    """Copy the files of a commit into the repository, and commit them."""
    sources = files("regbot.cli.demo") / "sources"
    for name in commit.files:
        target = repository / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(sources.joinpath(*name.split("/")).read_bytes())
    # --force is needed because git reads the user's ignore file even if the user's configuration is not read.
    _git(repository, "add", "--force", "--", *commit.files)
    dates = {"GIT_AUTHOR_DATE": commit.date, "GIT_COMMITTER_DATE": commit.date}
    identity = _identity(commit.author, commit.email, roles=("AUTHOR", "COMMITTER"))
    _git(repository, "commit", "--quiet", f"--message={commit.subject}", env={**identity, **dates})


def _identity(name: str, email: str, roles: tuple[str, ...]) -> dict[str, str]:
    """Return git's environment variables for a person in ``roles``, which are AUTHOR and COMMITTER."""
    names = {f"GIT_{role}_NAME": name for role in roles}
    return names | {f"GIT_{role}_EMAIL": email for role in roles}


def _git(repository: Path, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    return git(repository, *arguments, env={**_NO_CONFIGURATION, **(env or {})}).strip()
