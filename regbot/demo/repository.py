"""The demo's repository: a small MoE training code and one pull request to it, made into real git history on the spot.

``sources`` is the code of a team that does not exist, ``patches`` are pull requests to it whose effect is known:

    fallback   a refactoring in good faith; the expert axis is mapped twice, so all-to-all becomes all-gather +
               reduce-scatter, with the same loss and gradients
    harmless   a refactoring that leaves the device program as it is
    slow       the same collectives, but the experts compute on rows that are padding: half again as long a step of
               the small ``cpu`` variant

Commit ids are the same on every machine: authors and dates are fixed, and no configuration of the user is read.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Literal

from regbot.checkout.git import git

PullRequest = Literal["fallback", "harmless", "slow"]

BASE_BRANCH = "main"
BRANCHES: Mapping[PullRequest, str] = {
    "fallback": "unify-token-exchange",
    "harmless": "split-dispatch",
    "slow": "batched-experts",
}


@dataclass(frozen=True)
class DemoRepository:
    """A git repository with ``branch`` checked out. ``base`` and ``head`` are full commit ids, ``title`` a subject."""

    path: Path
    base: str
    head: str
    branch: str
    title: str
    base_branch: str = BASE_BRANCH


@dataclass(frozen=True)
class _Commit:
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
        "Hold two ranks against one process",
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
    """Make the repository in ``destination``, a folder that is empty or not there yet.

    Raises FileExistsError where it holds something, CheckoutError where git does not do its part.
    """
    if destination.exists() and any(destination.iterdir()):
        raise FileExistsError(f"{destination}: is not empty; give a folder that does not exist yet")
    destination.mkdir(parents=True, exist_ok=True)
    # Newer versions of git may have other defaults for the first branch and the hash; a template may bring hooks.
    _git(destination, "init", "--quiet", "--template=", "--object-format=sha1", f"--initial-branch={BASE_BRANCH}")
    for commit in _HISTORY:
        _add(destination, commit)
    base = _git(destination, "rev-parse", "HEAD")

    branch = BRANCHES[pull_request]
    _git(destination, "checkout", "--quiet", "-b", branch)
    with as_file(files("regbot.demo") / "patches" / f"{pull_request}.patch") as patch:
        merger = _identity("Ines Moreau", "ines@moetrain.example", roles=("COMMITTER",))
        _git(destination, "am", "--quiet", "--committer-date-is-author-date", str(patch.resolve()), env=merger)
    head, title = _git(destination, "log", "-1", "--format=%H %s").split(" ", 1)
    return DemoRepository(destination, base, head, branch, title)


def _add(repository: Path, commit: _Commit) -> None:
    sources = files("regbot.demo") / "sources"
    for name in commit.files:
        target = repository / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(sources.joinpath(*name.split("/")).read_bytes())
    # By force: a user's ignore file is found without any configuration.
    _git(repository, "add", "--force", "--", *commit.files)
    dates = {"GIT_AUTHOR_DATE": commit.date, "GIT_COMMITTER_DATE": commit.date}
    identity = _identity(commit.author, commit.email, roles=("AUTHOR", "COMMITTER"))
    _git(repository, "commit", "--quiet", f"--message={commit.subject}", env={**identity, **dates})


def _identity(name: str, email: str, roles: tuple[str, ...]) -> dict[str, str]:
    return {f"GIT_{role}_{what}": value for role in roles for what, value in (("NAME", name), ("EMAIL", email))}


def _git(repository: Path, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    return git(repository, *arguments, env={**_NO_CONFIGURATION, **(env or {})}).strip()
