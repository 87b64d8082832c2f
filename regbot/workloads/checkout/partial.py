"""Complete a private clone from a partial clone (``git clone --filter=blob:none``) of the user.

A partial clone lacks files, and git fetches each one from the remote when a command reads it. regbot prevents this,
because git would write into the user's repository, and could wait for a network or a password. Instead, commits and
trees are copied into a private clone. Then the needed files are copied from the user's repository. Needed files that
the user's repository lacks are fetched from its remote.
"""

from collections.abc import Collection, Iterable, Mapping
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

CONTACT_TIMEOUT_S = 60.0
"""Time limit in seconds for the first answer of a remote."""
NO_PROMPT = {"GIT_ASKPASS": "", "SSH_ASKPASS": "", "SSH_ASKPASS_REQUIRE": "never", "GCM_INTERACTIVE": "never"}
"""Environment in which neither git, ssh nor a credential helper asks a person for a password."""
_STALLED = {"http.lowSpeedLimit": "1", "http.lowSpeedTime": "60"}
"""Settings that end a transfer after 60 seconds without a byte."""
_NO_NEGOTIATION = {"fetch.negotiationAlgorithm": "noop"}
"""Setting for a fetch of single files. The private clone does not report its commits, because these do not show which
files it has."""
SERVE_LOCALLY = (
    "GIT_ALLOW_PROTOCOL=none git -c uploadpack.allowFilter=true -c uploadpack.allowAnySHA1InWant=true upload-pack"
)
"""Shell command that serves a repository of this machine to a fetch. It does not fetch missing files from the
repository's own remote. It allows filters and requests of single files, whatever the repository's settings."""
_FETCH = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--no-auto-maintenance")

_REMOTE = "partial"
"""Name of the remote for fetches from the user's partial clone."""


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
    """Copy those ``blobs`` of ``commits`` that the private clone lacks into it. Raises CheckoutError.

    Blobs that the partial clone ``git_dir`` lacks too are fetched from its remote. Nothing is written to ``git_dir``.
    """
    needed_blobs = _list_missing_in_private_clone(clone, blobs)
    if not needed_blobs:
        return
    # Those that the user's repository lacks too, so that only its remote has them.
    remote_blobs = _list_missing_in_partial_clone(git_dir, commits) & needed_blobs
    if local_blobs := needed_blobs - remote_blobs:
        copy_result = _fetch_locally(
            clone, git_dir, "--stdin", _REMOTE, settings=_NO_NEGOTIATION, stdin=_lines(local_blobs)
        )
        if copy_result.code != 0:
            raise CheckoutError(f"{git_dir}: files cannot be copied: {copy_result.error_line}", "see git fsck")
    if remote_blobs:
        _fetch_from_remote(clone, git_dir, remote_blobs)


def _fetch_locally(
    clone: Path, git_dir: Path, *arguments: str, settings: Mapping[str, str] | None = None, stdin: str = ""
) -> GitResult:
    """Fetch from the partial clone ``git_dir``, which is configured as a remote of ``clone`` for this command only."""
    remote_settings = {
        f"remote.{_REMOTE}.url": str(git_dir),
        f"remote.{_REMOTE}.promisor": "true",  # so that git accepts that files are missing
        f"remote.{_REMOTE}.partialclonefilter": "blob:none",
    }
    options = ("--filter=blob:none", f"--upload-pack={SERVE_LOCALLY}")
    return try_git(
        clone,
        *(f"--git-dir={clone}", *_FETCH, *options, *arguments),
        settings={**remote_settings, **(settings or {})},
        env={"GIT_ALLOW_PROTOCOL": "file"},
        timeout_s=TRANSFER_TIMEOUT_S,
        stdin=stdin,
    )


def _fetch_from_remote(clone: Path, git_dir: Path, blobs: Collection[str]) -> None:
    """Fetch blobs from the remote of the partial clone ``git_dir`` into the private clone. Raises CheckoutError.

    Git runs with the settings and credentials of ``git_dir``, and writes the objects into the private clone.
    """
    remote = find_promisor(git_dir)
    git_dir_option = f"--git-dir={git_dir}"
    fault = _find_contact_fault(git_dir, git_dir_option, remote)
    if not fault:
        env = {
            **NO_PROMPT,
            "GIT_OBJECT_DIRECTORY": str(clone / "objects"),  # git writes fetched objects there
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(git_dir / "objects"),  # git only reads these
        }
        command = (git_dir_option, *_FETCH, "--refmap=", "--stdin", remote)
        settings = {**_STALLED, **_NO_NEGOTIATION}
        fetch_result = try_git(
            git_dir, *command, settings=settings, env=env, timeout_s=TRANSFER_TIMEOUT_S, stdin=_lines(blobs)
        )
        fault = fetch_result.error_line if fetch_result.code != 0 else ""
    if fault:
        url = without_credentials(printable(origin_of(git_dir))) or remote
        raise CheckoutError(
            f"{git_dir}: {FILTERED_REASON} ({count(len(blobs), 'file')}), and they cannot be fetched from {url} "
            f"without a password: {fault}",
            f"make the remote reachable without a prompt, or {FILTERED_ADVICE}",
        )


def _find_contact_fault(git_dir: Path, git_dir_option: str, remote: str) -> str:
    """Return why the remote of the partial clone ``git_dir`` does not answer; '' if it answers.

    ``git_dir_option`` is git's option that names ``git_dir``, and ``remote`` is the name of the remote.
    """
    try:
        command = (git_dir_option, "ls-remote", "--quiet", remote, "HEAD")
        result = try_git(git_dir, *command, settings=_STALLED, env=NO_PROMPT, timeout_s=CONTACT_TIMEOUT_S)
    except CheckoutError:
        return f"it did not answer within {CONTACT_TIMEOUT_S:.0f} s"
    return result.error_line if result.code != 0 else ""


def _list_missing_in_private_clone(clone: Path, blobs: Collection[str]) -> set[str]:
    """Return those of ``blobs`` that the private clone lacks. A private clone has no remote, so git fetches nothing."""
    check = ("cat-file", "--batch-check=%(objectname)", "--buffer")
    listing = try_git(clone, f"--git-dir={clone}", *check, env=OFFLINE, stdin=_lines(blobs))
    return {line.split(" ")[0] for line in listing.out.splitlines() if line.endswith(" missing")}


def _list_missing_in_partial_clone(git_dir: Path, commits: Iterable[str]) -> set[str]:
    """Return the objects of ``commits`` that the partial clone lacks. Raises CheckoutError."""
    command = (f"--git-dir={git_dir}", "rev-list", "--objects", "--no-walk", "--missing=print", *commits)
    listing = try_git(git_dir, *command, env=OFFLINE, timeout_s=TRANSFER_TIMEOUT_S)
    if listing.code != 0:
        raise CheckoutError(f"{git_dir}: {FILTERED_REASON}: {listing.error_line}", FILTERED_ADVICE)
    # git writes a question mark before the id of a missing object.
    return {line[1:] for line in listing.out.splitlines() if line.startswith("?")}


def _lines(blobs: Iterable[str]) -> str:
    return "".join(f"{blob}\n" for blob in sorted(blobs))
