"""Run the git command without the user's hooks and without variables that an outer git command has set.

No function of this module writes into a repository unless its caller asks for it. Queries take no optional locks.
Otherwise even ``git status`` would write the index of the repository.
"""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from regbot.errors import UserError
from regbot.records.text.clip import clip, clip_label
from regbot.records.text.printable import printable

QUERY_TIMEOUT_S = 120.0
TRANSFER_TIMEOUT_S = 1800.0
"""Time limit in seconds for a fetch or a checkout. It suffices for the largest training repositories with submodules on
a slow connection."""

_INHERITED_VARIABLES = re.compile(
    r"GIT_(SSH|SSH_COMMAND|SSH_VARIANT|ASKPASS|SSL_\w+|HTTP_\w+|PROXY_\w+|EXEC_PATH|CONFIG_(GLOBAL|SYSTEM"
    r"|NOSYSTEM|COUNT|KEY_\d+|VALUE_\d+))"
)
"""GIT_ variables that say how to reach other machines and which of them to trust. They are kept. Other GIT_ variables
(GIT_DIR, GIT_INDEX_FILE, ...) are removed. They would redirect regbot's git commands, for example if a hook starts
regbot."""

_SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.autocrlf": "false",
    "core.attributesFile": "/dev/null",
    "submodule.recurse": "false",
    "fetch.prune": "false",
    "fetch.pruneTags": "false",
    "core.quotePath": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.version": "2",  # version 0 refuses to send a commit that no ref reaches
    "i18n.logOutputEncoding": "UTF-8",
    "advice.detachedHead": "false",
}

_VARIABLES = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_LFS_SKIP_SMUDGE": "1",
}

NO_MACHINE_CONFIG = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_COUNT": "0"}
"""Environment that hides the machine's git configuration. Otherwise .gitattributes of a commit could select a filter
that is configured there."""

OFFLINE = {"GIT_ALLOW_PROTOCOL": "none"}
"""Environment for commands that read trees and blobs. Without it, a partial clone would fetch missing objects and write
them into the repository."""

DEEPEN_ADVICE = "fetch the rest of the history: git fetch --unshallow, or fetch-depth: 0 of actions/checkout"

FILTERED_REASON = "the repository is a partial clone (git clone --filter) and lacks files of these commits"
FILTERED_ADVICE = "run git fetch --refetch --no-filter (git 2.36 or newer), or use a fresh clone without --filter"

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")


class CheckoutError(UserError):
    """A requested revision cannot be resolved, read or checked out. The user can fix this error."""


@dataclass(frozen=True)
class GitResult:
    code: int
    out: str
    error: str

    @property
    def error_line(self) -> str:
        """The line of the error output that names the reason, printable and without credentials in URLs.

        Without error output, this is the exit code."""
        lines = [printable(line) for line in self.error.splitlines() if line.strip()]
        fatal_lines = [line for line in lines if line.startswith(("fatal:", "error:"))]
        first_line, *_ = fatal_lines or lines or [f"exit code {self.code}"]
        return clip_label(without_credentials(first_line))


_GITHUB_REMOTE = re.compile(
    r"(?:https://|ssh://git@|git@)github\.com[:/]([A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,96}?)(?:\.git)?/?"
)


def git(
    folder: Path,
    *arguments: str,
    timeout_s: float = QUERY_TIMEOUT_S,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
) -> str:
    """Return the output of git. Raises CheckoutError if it fails. See ``try_git``."""
    result = try_git(folder, *arguments, timeout_s=timeout_s, env=env, stdin=stdin)
    if result.code != 0:
        subcommand = next((word for word in arguments if not word.startswith("-")), "")
        raise CheckoutError(f"{folder}: git {subcommand} failed: {result.error_line}")
    return result.out


def try_git(
    folder: Path,
    *arguments: str,
    settings: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = QUERY_TIMEOUT_S,
    stdin: str = "",
) -> GitResult:
    """Run git in ``folder`` and return its result, also if git fails. ``settings`` are those of ``git -c``.

    Raises CheckoutError if git cannot be started or exceeds its time limit.
    """
    all_settings = {**_SETTINGS, **(settings or {})}
    options = [word for key, value in all_settings.items() for word in ("-c", f"{key}={value}")]
    inherited = [name for name in os.environ if not name.startswith("GIT_") or _INHERITED_VARIABLES.fullmatch(name)]
    try:
        process = subprocess.Popen(
            ["git", *options, *arguments],
            cwd=folder,
            env={**{name: os.environ[name] for name in inherited}, **_VARIABLES, **(env or {})},
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that git cannot prompt for a password, and all its processes can be killed
        )
    except OSError as error:
        if not folder.is_dir():
            raise CheckoutError(f"{folder}: is not a folder", "give the path of a git repository") from error
        raise CheckoutError(f"git cannot be run in {folder}: {error.strerror}", "install git 2.31 or newer") from error
    with process:
        try:
            input_bytes = stdin.encode("utf-8", "surrogateescape") or None
            output, error_output = process.communicate(input_bytes, timeout=timeout_s)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            problem = f"'git {clip(' '.join(arguments), 200)}' did not end within {timeout_s:.0f} s and was ended"
            raise CheckoutError(f"{folder}: {problem}") from error
    texts = (data.decode("utf-8", "surrogateescape") for data in (output, error_output))
    return GitResult(process.returncode, *texts)


def read_blobs(repo: Path, sizes: Mapping[str, int]) -> dict[str, bytes] | None:
    """Return the contents of blobs, whose ``sizes`` are known; None if git cannot read one of them."""
    names = "".join(f"{blob}\n" for blob in sizes)
    result = try_git(repo, "cat-file", "--batch", "--buffer", env=OFFLINE, stdin=names, timeout_s=TRANSFER_TIMEOUT_S)
    output = result.out.encode("utf-8", "surrogateescape")
    contents, position = {}, 0
    for blob, size in sizes.items():
        header = f"{blob} blob {size}\n".encode()
        if result.code != 0 or not output.startswith(header, position):
            return None
        position += len(header)
        contents[blob] = output[position : position + size]
        position += size + 1  # a newline follows the content
    return contents


def find_web_address(repo: Path) -> str:
    """Return the web address of the remote ``origin`` on github.com; '' if there is none."""
    match = _GITHUB_REMOTE.fullmatch(try_git(repo, "config", "--get", "remote.origin.url").out.strip())
    return f"https://github.com/{match[1]}" if match is not None else ""


def without_credentials(text: str) -> str:
    return _CREDENTIALS.sub("", text)


def common_dir(repo: Path) -> Path:
    """Return the git directory that all worktrees of the repository share. Raises CheckoutError."""
    result = try_git(repo, "rev-parse", "--path-format=absolute", "--git-common-dir")
    if result.code != 0:
        raise CheckoutError(f"{repo}: cannot be used as a git repository: {result.error_line}")
    return Path(result.out.removesuffix("\n")).resolve()


def origin_of(repo: Path) -> str:
    return try_git(repo, "config", "--get", "remote.origin.url").out.strip()


def find_commit(repo: Path, revision: str, option: str) -> str:
    """Return the full id of the commit that ``revision``, the value of the user's ``option``, names. Raises
    CheckoutError.
    """
    if revision and "\0" not in revision:
        result = try_git(repo, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}", env=OFFLINE)
        if result.code == 0:
            return result.out.strip()
    shallow_advice = f"the repository is shallow, {DEEPEN_ADVICE}"
    advice = shallow_advice if is_shallow(repo) else "check its spelling, or fetch it first"
    raise CheckoutError(f"{repo}: {option} {revision!r} names no commit here", advice)


def file_at(repo: Path, path: str, revision: str) -> str | None:
    """Return the text of the file ``path`` at a revision; None if the revision has no such file.

    Raises CheckoutError if a partial clone lacks the file. Nothing is fetched.
    """
    result = try_git(repo, "show", f"{revision}:{path}", env=OFFLINE)
    if result.code == 0:
        return result.out
    listing = try_git(repo, "ls-tree", "--full-tree", "-z", revision, "--", path, env=OFFLINE)
    if listing.code == 0 and listing.out:
        raise CheckoutError(f"{repo}: {path} of {revision} cannot be read: {FILTERED_REASON}", FILTERED_ADVICE)
    return None


def refuse_missing_files(repo: Path, *commits: str) -> None:
    """Raise CheckoutError if ``repo`` is a partial clone that lacks files of ``commits``. Nothing is fetched."""
    if try_git(repo, "config", "--get-regexp", r"^remote\..*\.promisor$").code != 0:
        return
    listing = try_git(repo, "rev-list", "--objects", "--no-walk", "--missing=print", *commits, env=OFFLINE)
    if listing.code != 0 or any(line.startswith("?") for line in listing.out.splitlines()):  # "?OBJECT" is missing
        raise CheckoutError(f"{repo}: {FILTERED_REASON}", FILTERED_ADVICE)


def is_shallow(repo: Path) -> bool:
    return git(repo, "rev-parse", "--is-shallow-repository").strip() == "true"
