"""Complete a private clone from a partial clone (``git clone --filter=blob:none``) of the user.

A partial clone lacks files, and git fetches each one from the remote when a command reads it. regbot prevents this,
because git would write into the user's repository, and could wait for a network or a password. Instead, commits and
trees are copied into a private clone, and then the needed files: from the user's repository, and those that it lacks
from its remote.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from regbot.checkout.git import (
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
from regbot.text.printable import printable
from regbot.text.words import count

CONTACT_TIMEOUT_S = 60.0
"""Time limit in seconds for the first answer of a remote."""
NO_PROMPT = {"GIT_ASKPASS": "", "SSH_ASKPASS": "", "SSH_ASKPASS_REQUIRE": "never", "GCM_INTERACTIVE": "never"}
"""Environment in which neither git, ssh nor a credential helper asks a person for a password."""
_STALLED = {"http.lowSpeedLimit": "1", "http.lowSpeedTime": "60"}
"""Settings that end a transfer after 60 seconds without a byte."""
_NO_NEGOTIATION = {"fetch.negotiationAlgorithm": "noop"}
"""Setting for a fetch of named files: no commit of the receiver says anything about them."""
SERVE_LOCALLY = (
    "GIT_ALLOW_PROTOCOL=none git -c uploadpack.allowFilter=true -c uploadpack.allowAnySHA1InWant=true upload-pack"
)
"""Shell command that serves a repository of this machine without fetching what it lacks from its own remote. It allows
what a partial clone needs, whatever the repository's settings."""
_FETCH = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--no-auto-maintenance")


_REMOTE = "partial"


def find_promisor(repo: Path) -> str:
    """Return the name of the remote that a partial clone fetches missing files from; '' for a complete clone."""
    listing = try_git(repo, "config", "--null", "--get-regexp", r"^remote\..*\.promisor$").out
    entries = (entry.partition("\n") for entry in listing.split("\0") if entry)
    names = [key.removeprefix("remote.").removesuffix(".promisor") for key, _, value in entries if value != "false"]
    return names[0] if names else ""


def copy_history(clone: Path, git_dir: Path, refspec: str) -> GitResult:
    """Fetch commits and trees from the partial clone ``git_dir``, without files."""
    return _fetch_locally(clone, git_dir, "--force", "--update-shallow", _REMOTE, refspec)


def copy_files(clone: Path, git_dir: Path, commits: Iterable[str], blobs: Collection[str]) -> None:
    """Copy ``blobs`` of ``commits`` into the private clone, unless it has them. Raises CheckoutError.

    Blobs that the partial clone ``git_dir`` lacks are fetched from its remote. Nothing is written to ``git_dir``.
    """
    needed = _list_lacking(clone, blobs)
    if not needed:
        return
    lacking = _list_missing(git_dir, commits) & needed
    if present := needed - lacking:
        copied = _fetch_locally(clone, git_dir, "--stdin", _REMOTE, settings=_NO_NEGOTIATION, stdin=_lines(present))
        if copied.code != 0:
            raise CheckoutError(f"{git_dir}: files cannot be copied: {copied.error_line}", "see git fsck")
    if lacking:
        _fetch_from_remote(clone, git_dir, lacking)


def _fetch_locally(
    clone: Path, git_dir: Path, *arguments: str, settings: Mapping[str, str] | None = None, stdin: str = ""
) -> GitResult:
    """Fetch from the partial clone ``git_dir``, which is the remote of this one command."""
    remote = {
        f"remote.{_REMOTE}.url": str(git_dir),
        f"remote.{_REMOTE}.promisor": "true",  # so that git does not miss the files
        f"remote.{_REMOTE}.partialclonefilter": "blob:none",
    }
    options = ("--filter=blob:none", f"--upload-pack={SERVE_LOCALLY}")
    return try_git(
        clone,
        *(f"--git-dir={clone}", *_FETCH, *options, *arguments),
        settings={**remote, **(settings or {})},
        env={"GIT_ALLOW_PROTOCOL": "file"},
        timeout_s=TRANSFER_TIMEOUT_S,
        stdin=stdin,
    )


def _fetch_from_remote(clone: Path, git_dir: Path, blobs: Collection[str]) -> None:
    """Fetch blobs from the remote of ``git_dir``, with its settings and credentials, into the private clone."""
    remote = find_promisor(git_dir)
    location = f"--git-dir={git_dir}"
    contact = _contact(git_dir, location, remote)
    if not contact:
        env = {
            **NO_PROMPT,
            "GIT_OBJECT_DIRECTORY": str(clone / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(git_dir / "objects"),
        }
        command = (location, *_FETCH, "--refmap=", "--stdin", remote)
        settings = {**_STALLED, **_NO_NEGOTIATION}
        fetched = try_git(
            git_dir, *command, settings=settings, env=env, timeout_s=TRANSFER_TIMEOUT_S, stdin=_lines(blobs)
        )
        contact = fetched.error_line if fetched.code != 0 else ""
    if contact:
        url = without_credentials(printable(origin_of(git_dir))) or remote
        raise CheckoutError(
            f"{git_dir}: {FILTERED_REASON} ({count(len(blobs), 'file')}), and they cannot be fetched from {url} "
            f"without a password: {contact}",
            f"make the remote reachable without a prompt, or {FILTERED_ADVICE}",
        )


def _contact(git_dir: Path, location: str, remote: str) -> str:
    """Return why the remote does not answer; '' if it does."""
    try:
        command = (location, "ls-remote", "--quiet", remote, "HEAD")
        result = try_git(git_dir, *command, settings=_STALLED, env=NO_PROMPT, timeout_s=CONTACT_TIMEOUT_S)
    except CheckoutError:
        return f"it did not answer within {CONTACT_TIMEOUT_S:.0f} s"
    return result.error_line if result.code != 0 else ""


def _list_lacking(clone: Path, blobs: Collection[str]) -> set[str]:
    """Return those of ``blobs`` that the private clone lacks. It has no remote, so git fetches nothing."""
    check = ("cat-file", "--batch-check=%(objectname)", "--buffer")
    listing = try_git(clone, f"--git-dir={clone}", *check, env=OFFLINE, stdin=_lines(blobs))
    return {line.split(" ")[0] for line in listing.out.splitlines() if line.endswith(" missing")}


def _list_missing(git_dir: Path, commits: Iterable[str]) -> set[str]:
    """Return the objects of ``commits`` that the partial clone lacks. Raises CheckoutError."""
    command = (f"--git-dir={git_dir}", "rev-list", "--objects", "--no-walk", "--missing=print", *commits)
    listing = try_git(git_dir, *command, env=OFFLINE, timeout_s=TRANSFER_TIMEOUT_S)
    if listing.code != 0:
        raise CheckoutError(f"{git_dir}: {FILTERED_REASON}: {listing.error_line}", FILTERED_ADVICE)
    return {line[1:] for line in listing.out.splitlines() if line.startswith("?")}


def _lines(blobs: Iterable[str]) -> str:
    return "".join(f"{blob}\n" for blob in sorted(blobs))
