"""Fetch a commit from a partial clone (``git clone --filter=blob:none``) of the user into a private clone.

Git would fetch a missing file into the user's repository when a command reads it. regbot only reads that repository. So
the files that it lacks are fetched from its remote into the private clone.
"""

from collections.abc import Collection
from pathlib import Path

from regbot.records.text.printable import printable
from regbot.records.text.words import count
from regbot.workloads.checkout.git import (
    FILTERED_ADVICE,
    FILTERED_REASON,
    OFFLINE,
    TRANSFER_TIMEOUT_S,
    CheckoutError,
    GitResult,
    origin_of,
    try_git,
    without_credentials,
)

SERVE_LOCALLY = (
    "GIT_ALLOW_PROTOCOL=none git -c uploadpack.allowFilter=true -c uploadpack.allowAnySHA1InWant=true upload-pack"
)
"""Shell command that serves a repository of this machine to a fetch. It does not fetch missing files from the
repository's own remote. It allows filters and requests of single files, whatever the repository's settings."""
_NO_PROMPT = {"GIT_ASKPASS": "", "SSH_ASKPASS": "", "SSH_ASKPASS_REQUIRE": "never", "GCM_INTERACTIVE": "never"}
"""Environment in which neither git, ssh nor a credential helper asks a person for a password."""
_STALLED = {"http.lowSpeedLimit": "1", "http.lowSpeedTime": "60"}
"""Settings that end a transfer after 60 seconds without a byte."""
_NO_NEGOTIATION = {"fetch.negotiationAlgorithm": "noop"}
"""Setting for a fetch of single files. The private clone does not report its commits, because these do not show which
files it has."""
_FETCH = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--no-auto-maintenance")


def find_promisor(repo: Path) -> str:
    """Return the name of the remote that a partial clone fetches missing files from; '' for a complete clone."""
    listing = try_git(repo, "config", "--null", "--name-only", "--get-regexp", r"^remote\..*\.promisor$").out
    return listing.partition("\0")[0].removeprefix("remote.").removesuffix(".promisor")


def copy_history(clone: Path, git_dir: Path, refspec: str) -> GitResult:
    """Fetch commits and trees from the partial clone ``git_dir``, without files."""
    return _fetch_locally(clone, git_dir, "--force", "--update-shallow", "partial", refspec)


def copy_files(clone: Path, git_dir: Path, commit: str) -> None:
    """Fetch the files of ``commit`` that ``clone`` lacks from the partial clone ``git_dir``, or else from its remote.

    Raises CheckoutError.
    """
    needed = list_missing(clone, commit)
    remote_blobs = needed & list_missing(git_dir, commit)
    if local_blobs := needed - remote_blobs:
        result = _fetch_locally(clone, git_dir, "--stdin", "partial", blobs=local_blobs)
        if result.code != 0:
            raise CheckoutError(f"{git_dir}: files cannot be copied: {result.error_line}", "see git fsck")
    if not remote_blobs:
        return
    remote = find_promisor(git_dir)
    result = try_git(  # with the settings and credentials of the user's repository
        git_dir,
        *(f"--git-dir={git_dir}", *_FETCH, "--refmap=", "--stdin", remote),
        settings={**_STALLED, **_NO_NEGOTIATION},
        env={
            **_NO_PROMPT,
            "GIT_OBJECT_DIRECTORY": str(clone / "objects"),  # git writes fetched objects there
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(git_dir / "objects"),  # git only reads these
        },
        timeout_s=TRANSFER_TIMEOUT_S,
        stdin=_lines(remote_blobs),
    )
    if result.code != 0:
        url = without_credentials(printable(origin_of(git_dir))) or remote
        raise CheckoutError(
            f"{git_dir}: {FILTERED_REASON} ({count(len(remote_blobs), 'file')}), and they cannot be fetched from {url} "
            f"without a password: {result.error_line}",
            f"make the remote reachable without a prompt, or {FILTERED_ADVICE}",
        )


def list_missing(git_dir: Path, *commits: str) -> set[str]:
    """Return the objects of ``commits`` that a partial clone lacks. Nothing is fetched. Raises CheckoutError."""
    command = (f"--git-dir={git_dir}", "rev-list", "--objects", "--no-walk", "--missing=print", *commits)
    listing = try_git(git_dir, *command, env=OFFLINE, timeout_s=TRANSFER_TIMEOUT_S)
    if listing.code != 0:
        raise CheckoutError(f"{git_dir}: {FILTERED_REASON}: {listing.error_line}", FILTERED_ADVICE)
    # git writes a question mark before the id of a missing object.
    return {line[1:] for line in listing.out.splitlines() if line.startswith("?")}


def _fetch_locally(clone: Path, git_dir: Path, *arguments: str, blobs: Collection[str] = ()) -> GitResult:
    settings = {
        "remote.partial.url": str(git_dir),
        "remote.partial.promisor": "true",  # so that git accepts that files are missing
        "remote.partial.partialclonefilter": "blob:none",
    }
    options = ("--filter=blob:none", f"--upload-pack={SERVE_LOCALLY}")
    return try_git(
        clone,
        *(f"--git-dir={clone}", *_FETCH, *options, *arguments),
        settings={**settings, **(_NO_NEGOTIATION if blobs else {})},
        env={"GIT_ALLOW_PROTOCOL": "file"},
        timeout_s=TRANSFER_TIMEOUT_S,
        stdin=_lines(blobs),
    )


def _lines(blobs: Collection[str]) -> str:
    return "".join(f"{blob}\n" for blob in sorted(blobs))
